"""vLLM from a script of the user's own, and the model that it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fpa.engines.base import EngineError
from fpa.engines.convert import gguf_to_hub
from fpa.errors import UsageError

pytest.importorskip("torch", reason="needs the environment of make test-vllm")

SCRIPT = """
import sys
import smoothing  # loads the compiler behind the smoothers
from fpa import load_engine

if __name__ == "__main__":
    with load_engine("vllm", sys.argv[1], context=64) as engine:
        path = engine.greedy(engine.encode("one two three"), 3, 1.0)
    print("tokens", len(path.token_ids), __file__ == sys.argv[2])
"""


def test_a_script_that_imports_the_smoothers_can_run_vllm(tiny_hub: str, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), tiny_hub, str(script)], capture_output=True, text=True, timeout=600
    )
    assert "tokens 3 True" in done.stdout, done.stderr[-2000:]


def test_a_converted_model_replaces_nothing(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such model file"):
        gguf_to_hub(tmp_path / "none.gguf", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(UsageError, match="there already"):
        gguf_to_hub(gguf, tmp_path)
