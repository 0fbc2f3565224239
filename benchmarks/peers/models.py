"""The embedded model in the forms that other engines read, written once from its GGUF file.

Knows nothing of engines. Every form is made of the values that the file stands for, so that all are one model.
"""

import json
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from safetensors.torch import load_file, save_file

from chairlift.config.model_source import resolve_model_source

GGUF_TYPES = {
    "gguf-f16": GGMLQuantizationType.F16,
    "gguf-q8_0": GGMLQuantizationType.Q8_0,
    "gguf-q4_0": GGMLQuantizationType.Q4_0,
}
"""Forms of one GGUF file: what its matrices are stored in."""
FORMS = ("gguf", *GGUF_TYPES, "folder", "folder-int8")
"""All forms: the package's own file, files of another type, and Hugging Face folders."""


def model_path(form: str, cache: Path) -> Path:
    """Return where the model is in this form; write it there first if nobody has."""
    source = resolve_model_source(None).path
    if form == "gguf":
        return source
    target = cache / (f"{form}.gguf" if form in GGUF_TYPES else form)
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.unfinished")
    if form in GGUF_TYPES:
        write_gguf(source, unfinished, GGUF_TYPES[form])
    elif form == "folder":
        write_folder(source, unfinished)
    else:
        write_int8_folder(model_path("folder", cache), unfinished)
    unfinished.rename(target)
    return target


def write_gguf(source: Path, target: Path, kind: GGMLQuantizationType) -> None:
    """Write the file again with its matrices in another type."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        element = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        stored = tensor.tensor_type if values.ndim == 1 else kind
        writer.add_tensor(tensor.name, gguf.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_folder(source: Path, folder: Path) -> None:
    """Write a Hugging Face folder with float32 weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    folder.mkdir()
    # Its own save_pretrained refuses a model that came from a GGUF file.
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set[str]()
    tensors = {name: values.contiguous() for name, values in model.state_dict().items() if name not in tied}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {**model.config.to_diff_dict(), "architectures": [type(model).__name__]}
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n", encoding="utf-8")
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def write_int8_folder(plain: Path, folder: Path) -> None:
    """Write the folder again with 8-bit weights, one scale per row, and activations quantised per token at run time.

    The format is that of compressed-tensors, ``int-quantized``; embeddings and the output head stay as they are.
    """
    folder.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for name, values in load_file(plain / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = values
            continue
        scale = values.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
        tensors[name] = (values / scale).round().clamp(-127, 127).to(torch.int8)
        tensors[f"{name}_scale"] = scale
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
    shared = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**shared, "strategy": "channel", "dynamic": False},
        "input_activations": {**shared, "strategy": "token", "dynamic": True},
    }
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for file in plain.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (folder / file.name).write_bytes(file.read_bytes())
