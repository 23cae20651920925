"""Whether the files of a Hugging Face directory are whole and of a kind that can be trained.

Looked at before anything heavy is loaded, so that an error names the file and the remedy. Needs no torch.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"

_POINTER = b"version https://git-lfs"
_MOST_POINTER_BYTES = 1_024
_HEADER_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""As the safetensors library has it."""
_QUANTISED_BESIDE_CONFIG = ("quantize_config.json", "quant_config.json")
"""In which older GPTQ and AWQ checkpoints say what they are."""
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
_DOWNLOAD = "download it again"


def fault_in_files(directory: Path) -> str | None:
    """Why the weights in a directory cannot be trained, by the file that is at fault; None if they can."""
    return _pointer(directory) or _quantised(directory) or _weights(directory)


def fault_in_tokenizer(
    directory: Path, vocabulary: Mapping[str, int], files: Iterable[str], embedding_rows: int
) -> str | None:
    """Why a tokenizer cannot be used with a model; None if it can.

    Args:
        vocabulary: token ids by token, added tokens included.
        files: those that its class reads a vocabulary from.
        embedding_rows: of the model.
    """
    known = dict.fromkeys((*files, *_VOCABULARIES))
    if not any((directory / name).is_file() for name in known):
        # Without any of them transformers makes a tokenizer of no or one token, without an error.
        return f"no tokenizer: found none of {', '.join(known)}: copy the base model's tokenizer files here"
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
    """Whether the tokenizer in a directory has a chat template."""
    if any((directory / name).exists() for name in _CHAT_TEMPLATES):
        return True
    return bool(_read_object(directory / "tokenizer_config.json").get("chat_template"))


def file_of_weight(directory: Path, name: str | None = None) -> str:
    """The name of the file that has a weight, or of the one that says which files have which."""
    if (directory / WEIGHTS).is_file():
        return WEIGHTS
    shards = _read_object(directory / SHARD_INDEX).get("weight_map")
    return str(shards.get(name, SHARD_INDEX)) if isinstance(shards, dict) else SHARD_INDEX


def fault_in_config(directory: Path) -> str | None:
    """Why config.json describes no model, as far as JSON tells; None if it may."""
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
    remedy = "quantised weights cannot be trained: use the model's own, in bfloat16 or float32"
    if how:
        method = how.get("quant_method", "unknown") if isinstance(how, dict) else "unknown"
        return f"config.json: quantization_config says {method}: {remedy}"
    name = next((name for name in _QUANTISED_BESIDE_CONFIG if (directory / name).is_file()), None)
    return None if name is None else f"{name}: is of a GPTQ or AWQ checkpoint: {remedy}"


def _weights(directory: Path) -> str | None:
    present = sorted(path.name for path in directory.glob("*.safetensors"))
    if (directory / WEIGHTS).is_file():
        names = [WEIGHTS]
    elif (directory / SHARD_INDEX).is_file():
        shards = _read_object(directory / SHARD_INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            return f"{SHARD_INDEX}: names no shards: {_DOWNLOAD}"
        names = sorted({str(name) for name in shards.values()})
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            return (
                f"{missing[0]}: is missing, {len(missing)} of the {len(names)} shards that {SHARD_INDEX} "
                "names: download the missing shards"
            )
    elif present:
        return f"{SHARD_INDEX}: is missing, and there is no {WEIGHTS}, only {present[0]}: download it"
    else:
        return "no safetensors weights; pickled weights are refused: save the model as safetensors"
    return next((fault for name in names if (fault := _safetensors(directory / name)) is not None), None)


def _safetensors(path: Path) -> str | None:
    """Compare a file's size with that in its header (safetensors' format: length, JSON header, data)."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_HEADER_LENGTH_BYTES), "little")
            if size < _HEADER_LENGTH_BYTES or header_bytes > _MOST_HEADER_BYTES:
                return f"{path.name}: is not a safetensors file: {_DOWNLOAD}"
            header = file.read(header_bytes)
    except OSError as error:
        return f"{path.name}: cannot be read: {error.strerror}"
    if len(header) < header_bytes:
        return f"{path.name}: is cut short within its header: {_DOWNLOAD}"
    try:
        tensors: dict[str, Any] = json.loads(header)
        data_bytes = max(
            (int(each["data_offsets"][1]) for name, each in tensors.items() if name != "__metadata__"),
            default=0,
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return f"{path.name}: is not a safetensors file: {_DOWNLOAD}"
    expected = _HEADER_LENGTH_BYTES + header_bytes + data_bytes
    if size < expected:
        return f"{path.name}: is cut short, it has {size} of {expected} bytes: {_DOWNLOAD}"
    if size > expected:
        return f"{path.name}: has {size} bytes, {expected} were expected: {_DOWNLOAD}"
    return None


def _read_object(path: Path) -> Mapping[str, Any]:
    """A JSON object in a file; empty where there is none, which the caller's library will complain of."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
