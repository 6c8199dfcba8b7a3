"""Entropix' rules inside vLLM: a logits processor that leaves of each row the distribution to be drawn from.

vLLM loads this in the processes that run the model; a request asks for it in ``SamplingParams.extra_args``. Draws are
vLLM's own, from the transformed logits at temperature 1. There is no attention, and nothing is kept of the
alternatives of a branching token: vLLM's sequences cannot split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from fpa.engines.vllm import ARGUMENT
from fpa.entropix import RULES, Rules, Seen
from fpa.signals import entropy, varentropy


class EntropixProcessor(AdapterLogitsProcessor):
    """Applies the rules that a request names to its logits; leaves other requests alone."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse rules that are none."""
        steer = (sampling_params.extra_args or {}).get(ARGUMENT)
        if steer is not None:
            try:
                rules_of(steer)
            except (KeyError, TypeError) as error:
                raise ValueError(f"{ARGUMENT}: {error}") from error

    def is_argmax_invariant(self) -> bool:
        """It changes which token is the likeliest."""
        return False

    def new_req_logits_processor(
        self, params: SamplingParams
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        """The rules of one request, or None where it asks for none."""
        steer = (params.extra_args or {}).get(ARGUMENT)
        if steer is None:
            return None
        rules, clarify, temperature = rules_of(steer), int(steer["clarify"]), float(steer["temperature"])
        last = int(steer["last"])  # of the prefix

        def apply(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            asked = (output_ids[-1] if output_ids else last) == clarify
            row = logits.double().cpu().numpy()
            return torch.from_numpy(steered(row, rules, clarify, temperature, asked)).to(logits)

        return apply


def rules_of(steer: Mapping[str, Any]) -> Rules:
    """The rule set that a request names."""
    return RULES[steer["rules"]](**steer["numbers"])


def steered(
    logits: NDArray[np.float64], rules: Rules, clarify: int, temperature: float, asked: bool
) -> NDArray[np.float64]:
    """(vocabulary,) logits whose softmax is what the rules make of the softmax of ``logits``."""
    p = np.exp(logits - logits.max())
    p /= p.sum()
    choice = rules.choose(Seen(p, entropy(p), varentropy(p), temperature, asked=asked))
    if choice.p is None:
        inserted = np.full_like(p, -np.inf)
        inserted[clarify] = 0.0
        return inserted
    with np.errstate(divide="ignore"):
        return np.log(choice.p)
