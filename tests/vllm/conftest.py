"""Models for the tests that need torch, vLLM or Ray; ``make test-vllm`` sets their environment up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / ".cache" / "models"

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is fetched
sys.path.insert(0, str(ROOT / "tests"))
pytest.register_assert_rewrite("test_engine_contract")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """In an environment without torch these tests are not there: ``make test-vllm`` has its own."""
    return True if find_spec("torch") is None and collection_path.name.startswith("test_") else None


def demo_gguf() -> Path:
    """The demo model's GGUF file."""
    from fpa.engines.llamacpp import demo_model

    return demo_model()


def made(name: str, make: str) -> Path:
    """A model made once, in a process of its own, and kept under ``.cache``."""
    path = MODELS / name
    if not path.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        scratch = MODELS / f"{name}.{os.getpid()}"
        subprocess.run([sys.executable, "-c", make, str(demo_gguf()), str(scratch)], check=True, cwd=ROOT)
        if path.exists():  # another process was quicker
            shutil.rmtree(scratch) if scratch.is_dir() else scratch.unlink()
        else:
            scratch.rename(path)
    return path


@pytest.fixture(scope="session")
def demo_hub() -> str:
    """The demo model as a Hugging Face folder in float32."""
    return str(
        made("demo-float32", "import sys; from fpa.engines.convert import *; gguf_to_hub(*sys.argv[1:])")
    )


@pytest.fixture(scope="session")
def demo_floats() -> str:
    """The demo model as a GGUF file of 32-bit floats."""
    return str(
        made("demo.gguf", "import sys; from fpa.engines.convert import *; gguf_to_floats(*sys.argv[1:])")
    )


TINY = """
import sys, torch, transformers
from pathlib import Path
gguf, folder = Path(sys.argv[1]), sys.argv[2]
tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=2048, initializer_range=0.3,
    bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=False,
)
model = transformers.LlamaForCausalLM(config)
model.lm_head.weight.data *= 2.0  # sharper than chance, so that few tokens hold most of the mass
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
"""


@pytest.fixture(scope="session")
def tiny_hub() -> str:
    """A Llama of two layers with random weights and the demo model's tokenizer."""
    return str(made("tiny-llama", TINY))
