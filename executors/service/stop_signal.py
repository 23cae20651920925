"""SIGTERM and SIGINT: an orderly stop between two steps, or at once where nothing is under way."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequestedError(BaseException):
    """The process is asked to stop; no `except Exception` may swallow that."""


class StopSignal:
    """Whether the process was asked to stop."""

    def __init__(self) -> None:
        self.requested = False
        self._at_once = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take the signals for the length of the block."""
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Break the block off when a signal comes, or has come.

        Raises:
            StopRequestedError: one did.
        """
        self._at_once = True
        try:
            if self.requested:
                raise StopRequestedError
            yield
        finally:
            self._at_once = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 -- signal's signature
        self.requested = True
        if self._at_once:
            self._at_once = False
            raise StopRequestedError


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
