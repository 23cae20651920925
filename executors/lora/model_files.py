"""Checks that the files of a Hugging Face directory are complete and of a kind that can be trained.

They run before anything heavy is loaded, so that an error names the file and the remedy. They need no torch.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"

_POINTER = b"version https://git-lfs"
_MOST_POINTER_BYTES = 1_024
_HEADER_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""Limit of the safetensors library."""
_QUANTISATION_FILES = ("quantize_config.json", "quant_config.json")
"""Files that describe the quantisation of older GPTQ and AWQ checkpoints."""
_CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
_VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "tiktoken.model",
)
_RARE_VOCABULARIES = (
    "merges.txt",
    "sentencepiece.model",
    "spm.model",
    "spm_char.model",
    "vocab-src.json",
    "prophetnet.tokenizer",
    "byte_maps.json",
)
"""Vocabulary files of the other tokenizers of transformers."""
_FLOATING_POINT = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
"""Names of data types in safetensors. Smaller floating point types are packed, or hold scales."""
_MOST_NAME_CHARACTERS = 255
_DOWNLOAD = "download it again"
USE_UNQUANTISED = "quantised weights cannot be trained: use the model's own, in bfloat16 or float32"


def fault_in_files(directory: Path) -> str | None:
    """Return why the weights in a directory cannot be trained, with the file at fault; None if they can."""
    return _pointer(directory) or _quantised(directory) or _weights(directory)


def fault_in_tokenizer_files(directory: Path) -> str | None:
    """Return why no tokenizer can be loaded from a directory; None if it has a file with a vocabulary."""
    if any((directory / name).is_file() for name in (*_VOCABULARIES, *_RARE_VOCABULARIES)):
        return None
    # transformers would advise to install libraries, or make a tokenizer of one token without an error.
    return (
        f"no tokenizer: found none of {', '.join(_VOCABULARIES)}: copy the base model's tokenizer files here"
    )


def fault_in_tokenizer(vocabulary: Mapping[str, int], embedding_rows: int) -> str | None:
    """Return why a tokenizer cannot be used with a model; None if it can.

    Args:
        vocabulary: token ids by token, added tokens included.
        embedding_rows: rows of the model's embeddings.
    """
    if len(vocabulary) < 2:
        return f"the tokenizer has {len(vocabulary)} tokens: copy the base model's tokenizer files here"
    tokens = max(vocabulary.values()) + 1
    if tokens > embedding_rows:
        return (
            f"the tokenizer has {tokens} tokens, the model {embedding_rows} embeddings: use the tokenizer of "
            "this model, or resize the model's embeddings and save it"
        )
    return None


def has_chat_template(directory: Path) -> bool:
    """Return whether the tokenizer in a directory has a chat template."""
    if any((directory / name).exists() for name in _CHAT_TEMPLATES):
        return True
    return bool(_read_object(directory / "tokenizer_config.json").get("chat_template"))


def file_of_chat_template(directory: Path) -> str:
    """Return the name of the file with the chat template of a directory, as transformers selects it."""
    name = _CHAT_TEMPLATES[0]
    return name if (directory / name).is_file() else "tokenizer_config.json"


def weight_files(directory: Path) -> list[str]:
    """Return the names of the files with the weights.

    Raises:
        ValueError: a file is missing, or the index names none or others than files in the directory; the
            message names the file.
    """
    for name in (WEIGHTS, SHARD_INDEX):
        if (directory / name).is_dir():
            raise ValueError(f"{name}: is a folder, not a file: {_DOWNLOAD}")
    if (directory / WEIGHTS).is_file():
        return [WEIGHTS]
    if not (directory / SHARD_INDEX).is_file():
        present = sorted(path.name for path in directory.glob("*.safetensors"))
        if present:
            raise ValueError(
                f"{SHARD_INDEX}: is missing, and there is no {WEIGHTS}, only {present[0]}: {_DOWNLOAD}"
            )
        raise ValueError("no safetensors weights; pickled weights are refused: save the model as safetensors")
    shards = _read_object(directory / SHARD_INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ValueError(f"{SHARD_INDEX}: names no shards: {_DOWNLOAD}")
    for name in shards.values():
        if not _is_file_name(name):
            raise ValueError(
                f"{SHARD_INDEX}: names {json.dumps(name)[:80]}, which is not the name of a file in its own "
                f"folder: {_DOWNLOAD}"
            )
    names = sorted(set(shards.values()))
    if folder := next((name for name in names if (directory / name).is_dir()), None):
        raise ValueError(f"{folder}: is a folder, not a file: {_DOWNLOAD}")
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise ValueError(
            f"{missing[0]}: is missing, {len(missing)} of the {len(names)} shards that {SHARD_INDEX} "
            "names: download the missing shards"
        )
    return names


def weights_not_floating(directory: Path) -> dict[str, str]:
    """Return the data types of weights that are not floating point numbers, by name.

    Raises:
        OSError, ValueError: a file cannot be read; `fault_in_files` finds the fault.
    """
    return {
        name: str(tensor.get("dtype"))
        for file in weight_files(directory)
        for name, tensor in _read_header(directory / file)[0].items()
        if tensor.get("dtype") not in _FLOATING_POINT
    }


def stored_weights(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights in a directory, by name.

    Raises:
        OSError, ValueError: a file cannot be read; `fault_in_files` finds the fault.
    """
    return {
        name: tensor["shape"]
        for file in weight_files(directory)
        for name, tensor in _read_header(directory / file)[0].items()
    }


def file_of_weight(directory: Path, name: str | None = None) -> str:
    """Return the name of the file with a weight, or of the index of the files."""
    if (directory / WEIGHTS).is_file():
        return WEIGHTS
    shards = _read_object(directory / SHARD_INDEX).get("weight_map")
    return str(shards.get(name, SHARD_INDEX)) if isinstance(shards, dict) else SHARD_INDEX


def fault_in_config(directory: Path) -> str | None:
    """Return why config.json describes no model, by its JSON only; None if it may."""
    try:
        found = json.loads((directory / "config.json").read_bytes())
    except OSError as error:
        return f"config.json: cannot be read: {error.strerror}"
    except (ValueError, RecursionError) as error:
        return f"config.json: is not JSON: {error}: {_DOWNLOAD}"
    if not isinstance(found, dict):
        return f"config.json: is a JSON {type(found).__name__}, not an object: {_DOWNLOAD}"
    names = found.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        return (
            f"config.json: architectures must be a list of names, not {json.dumps(names)[:80]}: {_DOWNLOAD}"
        )
    return None


def _pointer(directory: Path) -> str | None:
    for path in sorted(directory.iterdir()):
        try:
            if path.is_file() and path.stat().st_size <= _MOST_POINTER_BYTES:
                with path.open("rb") as file:
                    if file.read(len(_POINTER)) == _POINTER:
                        return f"{path.name}: is a git-lfs pointer, not the file itself: run `git lfs pull`"
        except OSError as error:
            return f"{path.name}: cannot be read: {error.strerror}"
    return None


def _quantised(directory: Path) -> str | None:
    how = _read_object(directory / "config.json").get("quantization_config")
    if how:
        method = how.get("quant_method", "unknown") if isinstance(how, dict) else "unknown"
        return f"config.json: quantization_config names {method}: {USE_UNQUANTISED}"
    name = next((name for name in _QUANTISATION_FILES if (directory / name).is_file()), None)
    return None if name is None else f"{name}: is of a GPTQ or AWQ checkpoint: {USE_UNQUANTISED}"


def _weights(directory: Path) -> str | None:
    try:
        names = weight_files(directory)
    except ValueError as error:
        return str(error)
    return next((fault for name in names if (fault := _safetensors(directory / name)) is not None), None)


def _is_file_name(name: object) -> bool:
    """Return whether it names a file directly in a folder."""
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and len(name.encode(errors="replace")) <= _MOST_NAME_CHARACTERS
        and name.isprintable()
        and not any(separator in name for separator in "/\\:")
    )


def _safetensors(path: Path) -> str | None:
    """Compare a file's size with the size in its header."""
    try:
        _, expected = _read_header(path)
        size = path.stat().st_size
    except OSError as error:
        return f"{path.name}: cannot be read: {error.strerror}"
    except ValueError as error:
        return f"{path.name}: {error}"
    if size < expected:
        return f"{path.name}: is cut short, it has {size} of {expected} bytes: {_DOWNLOAD}"
    if size > expected:
        return f"{path.name}: has {size} bytes, {expected} were expected: {_DOWNLOAD}"
    return None


def _read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the tensors of a file by name, and its expected size (safetensors' format: length, JSON header,
    data) (bytes).

    Raises:
        OSError: it cannot be read.
        ValueError: it has no valid header.
    """
    not_safetensors = f"is not a safetensors file: {_DOWNLOAD}"
    with path.open("rb") as file:
        length = file.read(_HEADER_LENGTH_BYTES)
        header_bytes = int.from_bytes(length, "little")
        if len(length) < _HEADER_LENGTH_BYTES or header_bytes > _MOST_HEADER_BYTES:
            raise ValueError(not_safetensors)
        header = file.read(header_bytes)
    if len(header) < header_bytes:
        raise ValueError(f"is cut short within its header: {_DOWNLOAD}")
    try:
        tensors: dict[str, dict[str, Any]] = json.loads(header)
        tensors.pop("__metadata__", None)
        data_bytes = max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
        for tensor in tensors.values():
            tensor["shape"] = tuple(map(int, tensor["shape"]))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ValueError(not_safetensors) from None
    return tensors, _HEADER_LENGTH_BYTES + header_bytes + data_bytes


def _read_object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file; empty without one, for which the caller's library raises an error."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
