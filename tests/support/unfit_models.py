"""Ways to harm the files of a Hugging Face directory, and the error that names the file and the remedy."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Harm = Callable[[Path], object]

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 538090408\n"
GPTQ = {"quant_method": "gptq", "bits": 4}
BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def configure(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def cast(folder: Path, suffix: str, dtype: torch.dtype) -> None:
    """Store the weights with a suffix as another type."""
    tensors = load_file(folder / "model.safetensors")
    cast = {name: tensor.to(dtype) for name, tensor in tensors.items() if name.endswith(suffix)}
    assert cast
    save_file(tensors | cast, folder / "model.safetensors", {"format": "pt"})


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def remove_tokenizer(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in ("config.json", "generation_config.json", "model.safetensors"):
            path.unlink()


FAULTS: dict[str, tuple[Harm, str]] = {
    "a git-lfs pointer": (
        lambda folder: (folder / "model.safetensors").write_bytes(POINTER),
        r"model\.safetensors: is a git-lfs pointer, not the file itself: run `git lfs pull`",
    ),
    "a pointer for a tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_bytes(POINTER),
        r"tokenizer\.json: is a git-lfs pointer",
    ),
    "weights cut short": (
        lambda folder: cut(folder / "model.safetensors", 30_000),
        r"model\.safetensors: is cut short, it has 30000 of \d+ bytes: download it again",
    ),
    "a header cut short": (
        lambda folder: cut(folder / "model.safetensors", 100),
        r"model\.safetensors: is cut short within its header: download it again",
    ),
    "an empty file": (
        lambda folder: cut(folder / "model.safetensors", 0),
        r"model\.safetensors: is not a safetensors file: download it again",
    ),
    "a page of a login": (
        lambda folder: (folder / "model.safetensors").write_text("<!DOCTYPE html><html>" + 500 * " "),
        r"model\.safetensors: is not a safetensors file: download it again",
    ),
    "more than the header says": (
        lambda folder: (folder / "model.safetensors").open("ab").write(b"tail"),
        r"model\.safetensors: has \d+ bytes, \d+ were expected",
    ),
    "pickled weights only": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "no safetensors weights; pickled weights are refused",
    ),
    "a GPTQ checkpoint": (
        lambda folder: configure(folder, quantization_config=GPTQ),
        r"config\.json: quantization_config names gptq: quantised weights cannot be trained",
    ),
    "a bitsandbytes checkpoint": (
        lambda folder: configure(folder, quantization_config=BITSANDBYTES),
        r"config\.json: quantization_config names bitsandbytes",
    ),
    "an older AWQ checkpoint": (
        lambda folder: (folder / "quant_config.json").write_text('{"w_bit": 4}'),
        r"quant_config\.json: is of a GPTQ or AWQ checkpoint",
    ),
    "a folder for the weights": (
        lambda folder: make_folder(folder / "model.safetensors"),
        r"model\.safetensors: is a folder, not a file: download it again$",
    ),
    "shards without an index": (
        lambda folder: (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors"),
        r"model\.safetensors\.index\.json: is missing, .* only model-00001-of-00002\.safetensors",
    ),
}


CONFIGURATIONS: dict[str, tuple[Harm, str]] = {
    "a list": (
        lambda folder: (folder / "config.json").write_text("[]"),
        r"config\.json: is a JSON list, not an object",
    ),
    "a file cut short": (lambda folder: cut(folder / "config.json", 40), r"config\.json: is not JSON: "),
    "a number for a name": (
        lambda folder: configure(folder, architectures=5),
        r"config\.json: architectures must be a list of names, not 5",
    ),
    "another activation": (
        lambda folder: configure(folder, hidden_act="nonsense"),
        r"config\.json: describes no model that can be built: KeyError: 'nonsense': compare it",
    ),
    "too few layers": (
        lambda folder: configure(folder, num_hidden_layers=1),
        r"model\.safetensors: has 9 weights that LlamaForCausalLM does not have .*, such as "
        r"model\.layers\.1\..*: use a config\.json and weights that were saved together",
    ),
    "too many layers": (
        lambda folder: configure(folder, num_hidden_layers=3),
        r"model\.safetensors: 9 weights of LlamaForCausalLM are missing, such as model\.layers\.2\.",
    ),
    "other widths": (
        lambda folder: configure(folder, intermediate_size=17),
        r"model\.safetensors: \d+ weights have other shapes than config\.json describes, such as .*: "
        r"\[\d+, \d+\] instead of ",
    ),
    "one position": (
        lambda folder: configure(folder, max_position_embeddings=1),
        r"config\.json: max_position_embeddings 1: sequences of 1 tokens at most, and training takes 2",
    ),
}
NO_VOCABULARY = (
    r"no tokenizer: found none of tokenizer\.json, .*: copy the base model's tokenizer files here$"
)
