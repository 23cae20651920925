"""What the ranks have communicated, and when; for measurements and tests."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from executors.moe.parallel.micro_ops import Kind


@dataclass(frozen=True)
class MicroOpRecord:
    """A micro-op as one rank saw it. Times are those of the machine's monotonic clock, so that ranks of one
    machine compare; on CUDA devices, `completed_s` is when the micro-op was handed to the device, unless it
    comes from a `Recording`.
    """

    rank: int
    kind: Kind
    label: str
    size_bytes: int
    submitted_s: float
    issued_s: float
    completed_s: float


@dataclass(frozen=True)
class DeviceTimes:
    """When a CUDA device comes to the parts of a micro-op; events that can be timed.

    Attributes:
        ready: what it needs has been computed.
        started: nothing before it runs any more.
        ended: it has ended.
    """

    ready: torch.cuda.Event
    started: torch.cuda.Event
    ended: torch.cuda.Event


class Recording:
    """The micro-ops of a step, by the clock of the device that carries them out.

    Attributes:
        began_s: when it has begun, as the machine's monotonic clock has it.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin.

        Args:
            device: where the tensors of all micro-ops are.
        """
        self._origin: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._origin = torch.cuda.Event(enable_timing=True)
            self._origin.record()
        self._added: list[tuple[MicroOpRecord, DeviceTimes | None]] = []
        self.began_s = time.monotonic()

    def add(self, record: MicroOpRecord, times: DeviceTimes | None) -> None:
        """A micro-op has ended, or was handed to a CUDA device; for the thread that issues."""
        self._added.append((record, times))

    def records(self) -> list[MicroOpRecord]:
        """All micro-ops, once none is under way. Those of a CUDA device are waited for; their times are from
        when the device came to the beginning, which counts as `began_s`."""
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
    """Pairs of an all-to-all and an allreduce, of one rank or of two, that ran at the same time."""
    found = []
    running: list[MicroOpRecord] = []
    for record in sorted(records, key=lambda record: record.issued_s):
        running = [each for each in running if each.completed_s > record.issued_s]
        found += [
            (record, each) if record.kind is Kind.ALL_TO_ALL else (each, record)
            for each in running
            if each.kind is not record.kind
        ]
        running.append(record)
    return found


def waited_behind(records: Iterable[MicroOpRecord]) -> dict[MicroOpRecord, int]:
    """For each all-to-all of one rank, how many allreduce micro-ops ran while it waited to be issued."""
    records = list(records)
    allreduces = [record for record in records if record.kind is Kind.ALLREDUCE]
    return {
        record: sum(
            each.completed_s > record.submitted_s and each.issued_s < record.issued_s for each in allreduces
        )
        for record in records
        if record.kind is Kind.ALL_TO_ALL
    }
