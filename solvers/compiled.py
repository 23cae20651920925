"""How kernels are compiled, and the types of their array arguments."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numba import config, njit
from numba.core.dispatcher import Dispatcher
from numpy.typing import NDArray
from platformdirs import user_cache_path

_DIGEST_BYTES = 16
_SOLVERS = Path(__file__).parent
_CACHE_DIR = config.CACHE_DIR  # type: ignore[attr-defined]
"""Where the environment says that numba keeps code; empty where it does not."""


F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> "Dispatcher[F]":
    """Decorate a function that is compiled on its first call, and then runs without holding the interpreter.

    The machine code is kept on disk, by a digest of all sources of the function's package: whatever it calls
    is in there, or in none of ours.
    """
    package = Path(function.__code__.co_filename).relative_to(_SOLVERS).parts[0]
    folder = Path(_CACHE_DIR or user_cache_path("millrace") / "kernels")
    config.CACHE_DIR = str(folder / digest_of_sources(package))  # type: ignore[attr-defined]
    return njit(cache=True, nogil=True)(function)


@cache
def digest_of_sources(package: str) -> str:
    """Of all files of a package below `solvers`."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in sorted((_SOLVERS / package).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
