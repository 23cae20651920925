"""Tasks that are opened beside the training of those before them (pipeline switch, Ymir, section 6.2)."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T", covariant=True)


class Opening(Generic[T]):
    """A task that is being opened, by a thread of its own."""

    def __init__(self, load: Callable[[], T], is_halted: Callable[[], bool]) -> None:
        """Begin; `is_halted` says whether it was told to end."""
        self._load = load
        self._is_halted = is_halted
        self._opened: T | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="opening", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether it can begin."""
        return self._opened is not None

    @property
    def is_in_vain(self) -> bool:
        """Whether it will not begin: it cannot be opened, or is to end."""
        return self._error is not None or self._is_halted()

    def result(self) -> T:
        """What was opened, waited for; raises what opening it has raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._opened is not None, "it was opened or has failed"
        return self._opened

    def _run(self) -> None:
        try:
            # The thread has torch's default otherwise, and takes cores from the training.
            torch.set_num_threads(1)
            self._opened = self._load()
        except Exception as error:
            self._error = error
