"""Micro-ops: the parts in which collectives are issued, and the records of them."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch

_MOST_SMALL_PARTS = 64
_SMALL_BYTES = 2**20


def part_bytes(size_bytes: int, requested_bytes: int) -> int:
    """Return the most bytes of a part: as requested, except for parts so small that the agreement on each
    takes longer than the part. There are at most about 64 parts of less than 1 MiB.
    """
    return max(requested_bytes, min(-(-size_bytes // _MOST_SMALL_PARTS), _SMALL_BYTES))


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


@dataclass(frozen=True)
class MicroOpRecord:
    """A micro-op on one rank. Times are on the machine's monotonic clock, so that ranks of one machine
    compare; on CUDA devices, `completed_s` is the time of its submission to the device, unless it is from a
    `MicroOpRecording`.
    """

    rank: int
    kind: CollectiveKind
    label: str
    size_bytes: int
    submitted_s: float
    issued_s: float
    completed_s: float


@dataclass(frozen=True)
class DeviceTimes:
    """Times at which a CUDA device reaches the parts of a micro-op, as events.

    Attributes:
        ready: end of the computation of its input.
        started: end of the micro-op before.
        ended: its end.
    """

    ready: torch.cuda.Event
    started: torch.cuda.Event
    ended: torch.cuda.Event


class MicroOpRecording:
    """Micro-ops of a step, by the clock of the device that runs them.

    Attributes:
        began_s: time of its start, on the machine's monotonic clock.
    """

    def __init__(self, device: torch.device) -> None:
        """Start the recording.

        Args:
            device: device of the tensors of all micro-ops.
        """
        self._origin: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._origin = torch.cuda.Event(enable_timing=True)
            self._origin.record()
        self._added: list[tuple[MicroOpRecord, DeviceTimes | None]] = []
        self.began_s = time.monotonic()

    def add(self, record: MicroOpRecord, times: DeviceTimes | None) -> None:
        """Add a micro-op that has ended, or was submitted to a CUDA device; for the thread that issues."""
        self._added.append((record, times))

    def records(self) -> list[MicroOpRecord]:
        """Return all micro-ops, once none is pending. This waits for those of a CUDA device; their times
        count from the start on the device, which is set to `began_s`."""
        return [record if times is None else self._timed(record, times) for record, times in self._added]

    def _timed(self, record: MicroOpRecord, times: DeviceTimes) -> MicroOpRecord:
        origin = self._origin
        assert origin is not None, "the recording was begun for a CUDA device"
        times.ended.synchronize()
        submitted_s, issued_s, completed_s = (
            self.began_s + origin.elapsed_time(event) / 1e3
            for event in (times.ready, times.started, times.ended)
        )
        return replace(record, submitted_s=submitted_s, issued_s=issued_s, completed_s=completed_s)
