"""Opening of tasks during the training of the tasks before them (pipeline switch, Ymir, section 6.2)."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T", covariant=True)


class BackgroundOpening(Generic[T]):
    """A task that a thread of its own opens."""

    def __init__(self, load: Callable[[], T], is_halted: Callable[[], bool]) -> None:
        """Start; `is_halted` returns whether the task is to end."""
        self._load = load
        self._is_halted = is_halted
        self._opened: T | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="opening", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether the task can begin."""
        return self._opened is not None

    @property
    def is_in_vain(self) -> bool:
        """Whether the task will not begin: its opening failed, or it is to end."""
        return self._error is not None or self._is_halted()

    def result(self) -> T:
        """Wait for the opened task and return it; raises the error of the opening."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._opened is not None, "it was opened or has failed"
        return self._opened

    def _run(self) -> None:
        try:
            # Otherwise the thread has torch's default number of threads, and takes cores from the training.
            torch.set_num_threads(1)
            self._opened = self._load()
        except Exception as error:
            self._error = error
