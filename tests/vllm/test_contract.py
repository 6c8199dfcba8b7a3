"""The engine contract, held by the engines that need an environment of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from test_engine_contract import *  # noqa: F403
from test_engine_contract import Engine, make


@pytest.fixture(scope="module", params=["transformers", "vllm"])
def engine(request: pytest.FixtureRequest, tiny_hub: str) -> Iterator[Engine]:
    with ExitStack() as stack:
        yield make(request.param, stack, tiny_hub)
