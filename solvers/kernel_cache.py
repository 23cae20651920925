"""Machine code of kernels on disk, by a digest of the sources, so that installations share it."""

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from numba import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator
from platformdirs import user_cache_path

COMPILED_WITHIN_S = 1_800.0
"""Timeout: a process that compiles kernels for longer hangs. It usually takes two minutes of a core, at low
priority."""
_DIGEST_BYTES = 16
_SOLVERS = Path(__file__).parent

_log = logging.getLogger(__name__)


def kernels_folder() -> Path:
    """Return the folder of all machine code: NUMBA_CACHE_DIR, or one in the user's cache."""
    return Path(config.CACHE_DIR or user_cache_path("millrace") / "kernels")  # type: ignore[attr-defined]


def keeping_fault() -> str:
    """Return why no machine code can be kept on disk, and the remedy; empty if it can be."""
    folder = kernels_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder}: {error.strerror}: set NUMBA_CACHE_DIR to a folder that can be written"


@cache
def digest_of_sources(package: str) -> str:
    """Return a digest of all files of a package below `solvers`."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in sorted((_SOLVERS / package).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Locator(UserProvidedCacheLocator):
    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)  # type: ignore[no-untyped-call]
        source = Path(py_file).relative_to(_SOLVERS)
        self._cache_path = str(
            kernels_folder() / digest_of_sources(source.parts[0]) / "-".join(source.parent.parts)
        )

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_Locator | None":
        locator = cls(py_func, py_file)
        try:
            locator.ensure_cache_path()  # type: ignore[no-untyped-call]
        except OSError:
            return None
        return locator


class _CacheFiles(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012, as numba has it


class KernelCache(FunctionCache):
    """Machine code on disk. A full disk or damaged file costs time only."""

    _impl_class = _CacheFiles

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception as error:
            _log.warning("machine code in %s cannot be read: %s", self.cache_path, error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError as error:
            _log.warning("machine code is not kept in %s: %s", self.cache_path, error.strerror)
