"""What a collection is made with: the options that decide which rollouts a run holds."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from fpa.errors import UsageError

COLDEST = 0.01  # below it, sampling is greedy decoding, and powers of probabilities overflow


@dataclass(frozen=True)
class Settings:
    """The configuration of a collection. A run can only be resumed with the same one.

    Attributes:
        strategy: ``grid``, ``branches``, ``stratified``, ``adaptive``, or one that steers: ``entropix``, ``eager``.
        every: resample at every N-th token or sentence.
        unit: ``token`` or ``sentence``.
        samples: continuations per position (per kept token with ``branches``; ``stratified`` gives as many to
            the whole question as ``grid`` would, but elsewhere; ``eager`` at most so many to a question).
        temperature: sampling temperature of the continuations, and of every stored probability.
        base_tokens: most tokens of a base path.
        rollout_tokens: most new tokens of a continuation.
        stop: strings that end a continuation.
        seed: first seed of the run.
        top_k, min_p: which next tokens ``branches`` keeps.
        budget: tokens that ``adaptive`` may generate over all questions; None for no limit.
        target_error: mean half-width of the 90 % bands at which ``adaptive`` leaves a question; None for none.
        readout: read the answer from the model where a response names none.
        prompt: style of the prompt.
        keep_text, keep_ids: store each continuation's text, token ids.
        options: the strategy's own options, as its class names them.
    """

    strategy: str = "grid"
    every: int = 1
    unit: str = "token"
    samples: int = 20
    temperature: float = 1.0
    base_tokens: int = 400
    rollout_tokens: int = 400
    stop: tuple[str, ...] = ()
    seed: int = 0
    top_k: int = 10
    min_p: float = 0.05
    budget: int | None = None
    target_error: float | None = None
    readout: bool = True
    prompt: str = "published"
    keep_text: bool = False
    keep_ids: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what no engine could do, naming the option."""
        for name in ("every", "samples", "base_tokens", "rollout_tokens", "top_k"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if self.unit not in ("token", "sentence"):
            raise UsageError(f"--unit must be token or sentence, got {self.unit!r}")
        if not (math.isfinite(self.temperature) and self.temperature >= COLDEST):
            raise UsageError(f"--temperature must be a number of at least {COLDEST}, got {self.temperature}")
        if "" in self.stop:
            raise UsageError(
                "--stop is empty, which would end every continuation at its first token: leave it out"
            )
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"--min-p must be between 0 and 1, got {self.min_p}")
        if self.budget is not None and self.budget < 1:
            raise UsageError(f"--budget must be at least 1 token, got {self.budget}")
        if self.target_error is not None and not 0 < self.target_error < 1:
            raise UsageError(f"--target-error must be between 0 and 1, got {self.target_error}")
        if self.strategy == "adaptive" and self.budget is None and self.target_error is None:
            raise UsageError("strategy adaptive needs --budget TOKENS, --target-error E, or both")
        if self.seed < 0:
            raise UsageError(f"--seed must not be negative, got {self.seed}")

    def config(self) -> dict[str, Any]:
        """The settings as plain values, for the manifest."""
        return dataclasses.asdict(self)
