"""The file with the sample paths that a model's tokens took at the end of its training, which a service of
the model begins with (thesis, section 4.5.2; erratum I4)."""

from hashlib import blake2b
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from solvers.experts.paths import PathProfile

SAMPLE_PATHS = "sample_paths.safetensors"
_MOST_PATHS = 1_024
_MOST_CELLS = 2**20
"""Most counts of a profile."""
_MOST_BYTES = 32 * 2**20
"""Most bytes of the file: twice those of all counts with as many paths, and some for names."""


def bounded_profile(experts: int, layers: int, length: int) -> PathProfile:
    """Return an empty profile that keeps 1,024 paths of each table, or as many as about a million counts in
    all have room for, and one at least.

    Raises:
        ValueError: see `PathProfile`.
    """
    tables = sum(min(length, layer) + 1 for layer in range(layers))
    return PathProfile(experts, layers, length, max(1, min(_MOST_PATHS, _MOST_CELLS // (tables * experts))))


def file_of_paths(profile: PathProfile, routers: bytes) -> bytes:
    """Return the content of the file.

    Args:
        routers: weights of the model's routers, by which it is recognised.
    """
    return save(profile.arrays(), {"routers": _digest(routers), "length": str(profile.length)})


def read_paths(directory: Path, routers: bytes, experts: int, layers: int, length: int) -> PathProfile | None:
    """Read the profile of a model; None if it has none.

    Args:
        routers: weights of the model's routers.
        length: number of layers of a path.

    Raises:
        ValueError: the file is of another model, is damaged or too large, or has only shorter paths; the
            message names it.
    """
    path = directory / SAMPLE_PATHS
    if not path.is_file():
        return None
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ValueError(f"has {size} bytes, more than {_MOST_BYTES}")
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            if about.get("routers") != _digest(routers):
                raise ValueError("is of a model with other routers")
            stored = _length_of(about)
            most_paths = bounded_profile(experts, layers, stored).most_paths
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- no mapping
        return PathProfile.of_arrays(arrays, experts, layers, stored, most_paths).shortened(length)
    except (OSError, SafetensorError, TypeError, ValueError) as error:  # TypeError: no type of numpy's
        raise ValueError(f"{SAMPLE_PATHS}: {error}") from error


def _length_of(about: dict[str, str]) -> int:
    length = about.get("length", "")
    if not (length.isascii() and length.isdigit() and len(length) == 1):
        raise ValueError(f"has paths of {length[:20]!r} layers, not of 1 to 9")
    return int(length)


def _digest(routers: bytes) -> str:
    return blake2b(routers, digest_size=32).hexdigest()
