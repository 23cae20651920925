"""Readings of the records of micro-ops."""

from collections.abc import Iterable

from executors.moe.parallel.micro_ops import CollectiveKind, MicroOpRecord


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
