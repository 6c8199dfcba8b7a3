"""Speed of guided sampling with several requests in a step, against one request after another, in one run.

    python -m benchmarks.steps [--questions 8] [--every 8]

The same requests to the same samplers on the embedded engine: ``entropix`` draws ``--samples`` continuations from every
``--every``-th token, ``eager`` grows a tree of at most as many sequences from each prompt. ``plain`` is the engine's
own sampling of the requests that ``entropix`` got, which reads no distributions. The draws of one seed differ between
ways, as sums round differently beside other sequences, so speeds are tokens per second.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from fpa.demo import SETTINGS
from fpa.engines.base import Completion, Request, Sampler
from fpa.engines.llamacpp import LlamaCppEngine
from fpa.prompts import messages, prompt_style
from fpa.questions import load_questions
from fpa.strategies.eager import Eager
from fpa.strategies.entropix import Entropix


def requests(engine: LlamaCppEngine, questions: int, every: int | None, samples: int) -> list[Request]:
    """From every ``every``-th token of each base path, or from the prompts alone."""
    style = prompt_style(SETTINGS.prompt)
    asked = []
    for question in load_questions("demo", limit=questions).questions:
        prompt = engine.encode_chat(messages(question, style))
        path = engine.greedy(prompt, SETTINGS.base_tokens, SETTINGS.temperature).token_ids
        for position in range(0, len(path) if every else 1, every or 1):
            asked.append(
                Request(
                    f"{question.question_id}/{position}",
                    prompt + path[:position],
                    samples,
                    1_000 * len(asked),
                    SETTINGS.temperature,
                    SETTINGS.rollout_tokens,
                )
            )
    return asked


def speed(sample: Callable[[], Iterable[Completion]]) -> float:
    """Tokens per second, those counted once that several sequences share."""
    began = time.monotonic()
    tokens = 0
    for completion in sample():
        assert completion.error is None, completion.error
        for made in completion.continuations:
            tokens += len(made.token_ids) - (made.trace.shared if made.trace else 0)
    return tokens / (time.monotonic() - began)


def one_by_one(sampler: Sampler, asked: list[Request]) -> Iterator[Completion]:
    """Each request alone."""
    for request in asked:
        yield from sampler.sample([request])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--theta", type=float, default=1.5, help="of eager: how readily a sequence splits")
    options = parser.parse_args()
    measured: dict[str, dict[str, float]] = {}
    with LlamaCppEngine("demo") as engine:
        free = requests(engine, options.questions, options.every, options.samples)
        trees = requests(engine, options.questions, None, options.samples)
        samplers: dict[str, tuple[Sampler, list[Request]]] = {
            "entropix": (Entropix().sampler(engine, replace(SETTINGS, strategy="entropix")), free),
            "eager": (Eager(theta=options.theta).sampler(engine, replace(SETTINGS, strategy="eager")), trees),
        }
        plain = speed(lambda: engine.sample(free))
        for name, (sampler, asked) in samplers.items():
            alone = speed(lambda: one_by_one(sampler, asked))  # noqa: B023 - called at once
            together = speed(lambda: sampler.sample(asked))  # noqa: B023
            measured[name] = {
                "requests": len(asked),
                "one_by_one_tokens_per_second": round(alone, 1),
                "in_step_tokens_per_second": round(together, 1),
                "in_step_over_one_by_one": round(together / alone, 2),
            }
    print(json.dumps({"plain_tokens_per_second": round(plain, 1), **measured}, indent=2))


if __name__ == "__main__":
    main()
