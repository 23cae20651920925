"""Micro-ops: the parts in which collectives are issued."""

import threading
from collections.abc import Callable
from enum import StrEnum

import torch

_MOST_SMALL_PARTS = 64
_SMALL_BYTES = 2**20


def part_bytes(size_bytes: int, wanted_bytes: int) -> int:
    """Return the most bytes of a part: as requested, except for parts so small that the agreement on each
    takes longer than the part. There are at most about 64 parts of less than 1 MiB.
    """
    return max(wanted_bytes, min(-(-size_bytes // _MOST_SMALL_PARTS), _SMALL_BYTES))


class CollectiveKind(StrEnum):
    """Kind of a micro-op. Tokens use all-to-all, gradients allreduce."""

    ALL_TO_ALL = "all-to-all"
    ALLREDUCE = "allreduce"


class Pending:
    """A submitted micro-op. Several threads may wait for it."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: Exception | None = None
        self._stream_event: torch.cuda.Event | None = None
        self.duration_s = 0.0
        """Time from its issue to its end, once it has ended; on a CUDA device, to its submission to the
        device (s)."""
        self._callbacks: list[Callable[[Exception | None], None]] = []
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait until it has ended; on a CUDA device the current stream waits instead, once it was issued.

        Raises:
            CollectiveLostError, DisagreementError: it cannot end.
        """
        self._done.wait()
        if self._error is not None:
            raise type(self._error)(str(self._error))
        if self._stream_event is not None:
            torch.cuda.current_stream().wait_event(self._stream_event)

    def when_done(self, callback: Callable[[Exception | None], None]) -> None:
        """Call back with the error, if any: in the thread that issues, or at once if it has ended."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self._error)

    def settle(self, error: Exception | None, stream_event: "torch.cuda.Event | None" = None) -> None:
        """Set its end, in the thread that issues."""
        with self._lock:
            self._error, self._stream_event = error, stream_event
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)
