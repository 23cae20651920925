"""Compilation of kernels, the change from the interpreter to machine code, and the types of arrays."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np
from numba.core.dispatcher import Dispatcher, OmittedArg
from numba.core.event import Event, Listener, install_listener
from numba.core.registry import CPUDispatcher
from numpy.typing import NDArray

from solvers.kernel_cache import KernelCache

F = TypeVar("F", bound=Callable[..., Any])


class _Thread(threading.local):
    compiles = False
    """State of a thread: whether it runs machine code while the process interprets."""


_thread = _Thread()
_held_back: list[Callable[[], None]] | None = None
"""Machine code that waits for `change_over`; None if the process does not interpret."""
_left = math.inf
"""Numbers that kernels may still receive before `interpreting` ends."""


class Kernel(CPUDispatcher):
    """A function that is compiled on its first call, or interpreted while the process interprets."""

    def enable_caching(self) -> None:
        """Keep the machine code on disk, where that can be written."""
        with suppress(RuntimeError):  # numba's, if it has found no folder
            self._cache = KernelCache(self.py_func)  # type: ignore[no-untyped-call]

    @cached_property
    def _interpreted(self) -> Callable[..., Any]:
        function = self.py_func
        named = _interpreted_globals(function.__module__, function.__globals__)
        return FunctionType(function.__code__, named, function.__name__, function.__defaults__)

    def _run_interpreted(self, *args: Any) -> Any:
        given = (arg.value if isinstance(arg, OmittedArg) else arg for arg in args)
        # Hashes of 64 bits overflow. Machine code does not warn either.
        with np.errstate(over="ignore"):
            return _as_returned(self._interpreted(*given))

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        """Return the function that numba calls if it has no machine code for the types of these arguments."""
        if _held_back is None or _thread.compiles or _is_spent(args):
            return super()._compile_for_args(*args, **kws)  # type: ignore[misc]
        return self._run_interpreted

    def _insert(self, *overload: Any) -> None:
        """Register machine code, which numba then calls for arguments of its types."""
        insert = partial(super()._insert, *overload)  # type: ignore[misc]
        if _held_back is None:
            insert()
        else:
            _held_back.append(insert)


def kernel(function: F) -> "Dispatcher[F]":
    """Decorate a function that is compiled on its first call, and then runs without holding the interpreter.

    The machine code is kept on disk, by a digest of all sources of the function's package. A kernel calls
    only functions of its package or of other projects.
    """
    dispatcher = Kernel(function, targetoptions={"nopython": True, "nogil": True})
    dispatcher.enable_caching()
    return cast("Dispatcher[F]", dispatcher)


def interpret() -> None:
    """Interpret all kernels that were not compiled before: the same results, without a compiler."""
    global _held_back
    _held_back = []


@contextmanager
def interpreting(most_elements: float = math.inf) -> Iterator[None]:
    """Interpret all kernels in the block that were not compiled before it.

    Once they have received more than `most_elements` numbers and elements of arrays, they are compiled.
    """
    global _held_back, _left
    interpret()
    _left = most_elements
    try:
        yield
    finally:
        _held_back, _left = None, math.inf


def _is_spent(args: tuple[Any, ...]) -> bool:
    """Count the numbers that a kernel receives, and end the interpretation if they are too many."""
    global _held_back, _left
    _left -= _elements(args)
    if _left >= 0:
        return False
    change_over()
    _held_back = None
    return True


def _elements(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    return sum(map(_elements, value)) if isinstance(value, tuple) else 1


def change_over() -> None:
    """Run kernels as machine code where it is present. The others are still interpreted."""
    while _held_back:
        _held_back.pop()()


@contextmanager
def compiling() -> Iterator[None]:
    """Compile kernels that this thread calls in the block, while other threads interpret them."""
    _thread.compiles = True
    try:
        yield
    finally:
        _thread.compiles = False


class NotKeptError(BaseException):
    """The machine code of a kernel is not on disk. No `Exception`, since a cell records those of events."""


class _CompilationRefusal(Listener):
    def on_start(self, event: Event) -> None:
        raise NotKeptError(f"{event.data['dispatcher'].__name__} is not compiled")

    def on_end(self, event: Event) -> None:
        """Nothing was compiled."""


@contextmanager
def loading() -> Iterator[None]:
    """Load kernels from disk that this thread calls in the block. Meanwhile no thread may compile.

    Raises:
        NotKeptError: the machine code of a kernel is missing.
    """
    with compiling(), install_listener("numba:compile", _CompilationRefusal()):
        yield


_globals: dict[str, dict[str, Any]] = {}


def _interpreted_globals(module: str, named: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of a module, with kernels replaced by their plain functions."""
    if module not in _globals:
        found = _globals[module] = dict(named)
        # Kernels may call each other in a circle: the dictionary is stored before it is complete.
        found.update((name, each._interpreted) for name, each in named.items() if isinstance(each, Kernel))
    return _globals[module]


def _as_returned(value: Any) -> Any:
    """Convert a result to the types that machine code returns: numbers of Python."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        members = map(_as_returned, value)
        return type(value)._make(members) if hasattr(value, "_make") else tuple(members)
    return value


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
