"""What the ranks have communicated, and when; for measurements and tests."""

from collections.abc import Iterable
from dataclasses import dataclass

from executors.moe.parallel.micro_ops import Kind


@dataclass(frozen=True)
class MicroOpRecord:
    """A micro-op as one rank saw it. Times are those of the machine's monotonic clock, so that ranks of one
    machine compare; on CUDA devices, `completed_s` is when the micro-op was handed to the device.
    """

    rank: int
    kind: Kind
    label: str
    size_bytes: int
    submitted_s: float
    issued_s: float
    completed_s: float


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
