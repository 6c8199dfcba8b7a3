"""Models in other forms: GGUF weights as a Hugging Face folder, and as a GGUF file of plain floats.

Quantised weights are dequantised, not retrained: the result is the very same function of its input as far as
single precision goes, so engines that read different formats can be compared with each other.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from fpa.engines.base import EngineError
from fpa.engines.hub import loading, package
from fpa.errors import UsageError
from fpa.parts import writing


def gguf_to_hub(gguf: str | Path, folder: str | Path) -> Path:
    """Write a GGUF model as a Hugging Face folder in float32, tokenizer and chat template included.

    Raises:
        EngineError: a package is missing, no such file, or an architecture that ``transformers`` cannot read.
        UsageError: ``folder`` is there already.
        FpaError: it cannot be written.
    """
    gguf, folder = Path(gguf), Path(folder)
    if not gguf.is_file():
        raise EngineError(f"{gguf}: no such model file; give the path of a GGUF file")
    if folder.exists():
        raise UsageError(f"{folder} is there already: name another folder, or remove it")
    torch = package("torch", "transformers", "transformers")
    transformers = package("transformers", "transformers", "transformers")
    package("gguf", "transformers", "transformers")
    with loading(str(gguf)):
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        read = transformers.AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
        )
        # What was read remembers that it came from a GGUF file, and would not load as anything else.
        for name in ("quantization_config", "_pre_quantization_dtype"):
            if hasattr(read.config, name):
                delattr(read.config, name)
        model = transformers.AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
        model.load_state_dict(read.state_dict())
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            whole = Path(scratch) / folder.name
            model.save_pretrained(whole)
            tokenizer.save_pretrained(whole)
            whole.rename(folder)
    return folder


def gguf_to_floats(gguf: str | Path, target: str | Path) -> Path:
    """Write a GGUF model with every tensor as 32-bit floats; all metadata is kept.

    Raises:
        EngineError: the package ``gguf`` is missing, or no such file.
    """
    gguf, target = Path(gguf), Path(target)
    if not gguf.is_file():
        raise EngineError(f"{gguf}: no such model file; give the path of a GGUF file")
    library = package("gguf", "transformers", "transformers")
    reader = library.GGUFReader(gguf)
    architecture = reader.get_field("general.architecture").contents()
    writer = library.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind, *inner = field.types
        value = field.contents()
        if kind == library.GGUFValueType.ARRAY:
            writer.add_key_value(name, value, kind, sub_type=inner[0])
        else:
            writer.add_key_value(name, value, kind)
    writer.add_file_type(library.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        floats = library.dequantize(tensor.data, tensor.tensor_type).astype("float32")
        # A file lists the fastest axis first, arrays have it last.
        writer.add_tensor(tensor.name, floats.reshape([int(n) for n in reversed(tensor.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
