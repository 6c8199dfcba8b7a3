"""Engines by name. Each is imported only when asked for, so that its heavy dependencies stay optional."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fpa.engines.base import Engine, EngineError
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
    if name not in ENGINES:
        raise UsageError(f"no engine named {name!r}: choose one of {', '.join(ENGINES)}")
    module, attribute, extra = ENGINES[name]
    try:
        engine_class = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise EngineError(
            f"engine {name} needs the package {error.name}: pip install 'fpa[{extra}]'"
        ) from error
    engine: Engine = engine_class(model, **options)
    return engine
