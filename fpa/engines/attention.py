"""What the last layer's attention says, beside the fused kernels that never form its scores (``transformers``).

The kernels stay as they are: this only remembers the queries and keys of the last layer that attended, and works
the scores of the last position out from them.
"""

from __future__ import annotations

import math
from typing import Any

from fpa.engines.hub import package
from fpa.records import AttentionSignals
from fpa.signals import attention_signals

IMPLEMENTATION = "fpa_sdpa"
"""Name under which the remembering kernel is known to ``transformers``."""


class LastAttention:
    """Remembers the queries and keys of whichever layer attended last; after a pass, of the last layer."""

    def __init__(self) -> None:
        self._last: tuple[Any, Any, Any, float] | None = None

    @classmethod
    def watch(cls, model: Any) -> LastAttention | None:
        """Have a model's layers remembered; None where they cannot be (a model with attention code of its own)."""
        if not getattr(model, "_supports_attention_backend", False):
            return None
        _register()
        model.set_attn_implementation(IMPLEMENTATION)
        seen = cls()
        for module in model.modules():
            if hasattr(module, "layer_idx"):
                module.fpa_seen = seen
        return seen

    def forget(self) -> None:
        """Before a pass: what an earlier one left is not of this one."""
        self._last = None

    def remember(self, query: Any, key: Any, mask: Any, scaling: float | None, capped: bool) -> None:
        """One layer's (batch, heads, q, d) queries and (batch, kv heads, k, d) keys, turned as they attend."""
        self._last = (
            None if capped else (query[:, :, -1], key, mask, scaling or 1 / math.sqrt(query.shape[-1]))
        )

    def signals(self) -> list[AttentionSignals] | None:
        """The signals of each sequence of the last pass; None where its scores are not plain products."""
        if self._last is None:
            return None
        query, key, mask, scaling = self._last
        batch, kv_heads, length, size = key.shape
        grouped = query.reshape(batch, kv_heads, -1, size).double()  # heads that share a key are neighbours
        scores = (grouped @ key.double().transpose(-1, -2) * scaling).reshape(batch, -1, length)
        if mask is None:
            counts = [None] * batch
        else:
            row = mask[:, 0, -1, :length].expand(batch, length)
            # Masks are true where attended to, or numbers that are added: 0, or next to minus infinity.
            counts = list((row if row.dtype.is_floating_point is False else row > -1e4).cpu().numpy())
        return [attention_signals(s, c) for s, c in zip(scores.cpu().numpy(), counts, strict=True)]


def _register() -> None:
    transformers = package("transformers", "transformers", "transformers")
    sdpa = package("transformers.integrations.sdpa_attention", "transformers", "transformers")
    masks = package("transformers.masking_utils", "transformers", "transformers")

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **how: Any) -> Any:
        seen = getattr(module, "fpa_seen", None)
        if seen is not None:
            capped = any(how.get(name) is not None for name in ("softcap", "s_aux", "position_bias"))
            seen.remember(query, key, attention_mask, how.get("scaling"), capped)
        return sdpa.sdpa_attention_forward(module, query, key, value, attention_mask, **how)

    transformers.AttentionInterface.register(IMPLEMENTATION, attend)
    masks.AttentionMaskInterface.register(IMPLEMENTATION, masks.sdpa_mask)
