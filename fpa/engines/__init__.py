"""Engines by name. Each is imported only when asked for, so that its heavy dependencies stay optional."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from fpa.engines.base import Engine, EngineError
from fpa.engines.options import check_options
from fpa.errors import UsageError

# name -> (module, class, the extra to install)
ENGINES: dict[str, tuple[str, str, str]] = {
    "llamacpp": ("fpa.engines.llamacpp", "LlamaCppEngine", "local"),
    "vllm": ("fpa.engines.vllm", "VllmEngine", "vllm"),
    "openai": ("fpa.engines.openai", "OpenAIEngine", ""),
    "transformers": ("fpa.engines.transformers", "TransformersEngine", "transformers"),
    "fake": ("fpa.engines.fake", "FakeEngine", ""),
}


def load_engine(name: str, model: str, **options: Any) -> Engine:
    """Load ``model`` into the engine of that name.

    Raises:
        UsageError: no engine of that name, or options that it does not take.
        EngineError: the engine's package is missing, or the model does not load.
    """
    engine: Engine = engine_class(name)(model, **options)
    return engine


def check_engine(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a wrong name or wrong options before anything is loaded.

    Where the engine's package is missing nothing is known of its options: loading it says so.

    Raises:
        UsageError: no engine of that name, or options that it does not take.
    """
    with suppress(EngineError):
        check_options(name, engine_class(name).__init__, options)


def engine_class(name: str) -> Any:
    """The class of that engine, imported now.

    Raises:
        UsageError: no engine of that name.
        EngineError: the engine's package is missing.
    """
    if name not in ENGINES:
        raise UsageError(f"no engine named {name!r}: choose one of {', '.join(ENGINES)}")
    module, attribute, extra = ENGINES[name]
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise EngineError(
            f"engine {name} needs the package {error.name}: pip install 'fpa[{extra}]'"
        ) from error
