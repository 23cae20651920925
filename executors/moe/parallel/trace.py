"""Records of the ranks' communication and its times; for measurements and tests."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from executors.moe.parallel.micro_ops import CollectiveKind


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


def overlaps(records: Iterable[MicroOpRecord]) -> list[tuple[MicroOpRecord, MicroOpRecord]]:
    """Return the pairs of an all-to-all and an allreduce, on one rank or on two, that ran at the same
    time."""
    found = []
    running: list[MicroOpRecord] = []
    for record in sorted(records, key=lambda record: record.issued_s):
        running = [each for each in running if each.completed_s > record.issued_s]
        found += [
            (record, each) if record.kind is CollectiveKind.ALL_TO_ALL else (each, record)
            for each in running
            if each.kind is not record.kind
        ]
        running.append(record)
    return found


def waited_behind(records: Iterable[MicroOpRecord]) -> dict[MicroOpRecord, int]:
    """Return, for each all-to-all of one rank, the number of allreduce micro-ops that ran during its wait."""
    records = list(records)
    allreduces = [record for record in records if record.kind is CollectiveKind.ALLREDUCE]
    return {
        record: sum(
            each.completed_s > record.submitted_s and each.issued_s < record.issued_s for each in allreduces
        )
        for record in records
        if record.kind is CollectiveKind.ALL_TO_ALL
    }
