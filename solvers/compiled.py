"""How kernels are compiled, and the types of their array arguments."""

import hashlib
from pathlib import Path

import numpy as np
from numba import config, njit
from numpy.typing import NDArray
from platformdirs import user_cache_path

_DIGEST_BYTES = 16


def _digest_of_sources() -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _keep_compiled_code(folder: Path) -> None:
    parent = Path(config.CACHE_DIR or folder)  # type: ignore[attr-defined]
    config.CACHE_DIR = str(parent / _digest_of_sources())  # type: ignore[attr-defined]


_keep_compiled_code(user_cache_path("millrace") / "kernels")

kernel = njit(cache=True, nogil=True)
"""Decorates a function that is compiled on its first call, and then runs without holding the interpreter."""


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
