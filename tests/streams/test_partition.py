"""A restored ledger partition decides the same as before, and skips no event."""

import json
from dataclasses import replace

import pytest

from schemas.codec import InvalidRecordError
from streams.cell.rules import MissingRulesError
from streams.kafka.records import ReadRecord
from streams.worker.cells import BrokenInvariantError, Coverage, LedgerGapError, LedgerPartition
from tests.streams import events
from tests.support.rules import SECOND, adoption


def records(*cells: str, count: int = 30) -> list[ReadRecord]:
    """The events of the cells, interleaved, at the offsets 0, 1, 2, …"""
    interleaved = [
        event for row in zip(*(events.stream(count, cell) for cell in cells), strict=True) for event in row
    ]
    return [
        ReadRecord(
            "t.ledger", 0, offset, None, event.cell.encode(), envelope.value, tuple(envelope.headers())
        )
        for offset, event in enumerate(interleaved)
        for envelope in [events.envelope(event, f"e{offset}")]
    ]


def fold(partition: LedgerPartition, part: list[ReadRecord]) -> list[bytes]:
    return [decision.canonical for record in part for decision in partition.fold(record)]


def cause(decision: bytes) -> bytes:
    return str(json.loads(decision)["cause"]).encode()


@pytest.mark.parametrize("cut", [1, 2, 17, 31, 59])
def test_restored_partition_decides_the_same_bytes(cut: int) -> None:
    ledger = records("alpha", "beta")
    undisturbed = fold(LedgerPartition(0, 0, {}), ledger)
    first = LedgerPartition(0, 0, {})

    before = fold(first, ledger[:cut])
    snapshots = dict(first.capture().records())
    after = fold(LedgerPartition(0, cut, snapshots), ledger[cut:])

    assert before + after == undisturbed


def test_events_up_to_the_snapshot_are_passed_over() -> None:
    ledger = records("alpha", "beta")
    first = LedgerPartition(0, 0, {})
    fold(first, ledger[:40])
    snapshots = dict(first.capture().records())

    again = LedgerPartition(0, 25, snapshots)

    assert fold(again, ledger[25:40]) == []
    assert fold(again, ledger[40:]) == fold(first, ledger[40:])


def test_snapshots_without_coverage_are_restored() -> None:
    """The worker ended after it wrote snapshots and before their coverage: nothing was acknowledged."""
    ledger = records("alpha", "beta")
    first = LedgerPartition(0, 0, {})
    before = fold(first, ledger[:20])
    snapshots = dict(first.capture().records())
    fold(first, ledger[20:30])
    snapshots[b"alpha"] = dict(first.capture().records())[b"alpha"]

    again = fold(LedgerPartition(0, 20, snapshots), ledger[20:])

    alpha_once_more = [record for record in ledger[20:30] if record.key == b"alpha"]
    undisturbed = fold(LedgerPartition(0, 0, {}), ledger)[len(before) :]
    skipped = {f"e{record.offset}".encode() for record in alpha_once_more}
    assert again == [value for value in undisturbed if cause(value) not in skipped]
    assert len(again) < len(undisturbed)


def test_quiet_cell_keeps_its_old_snapshot() -> None:
    ledger = records("alpha", "beta")
    quiet = [record for record in ledger if record.key == b"alpha" or record.offset < 10]
    renumbered = [replace(record, offset=offset) for offset, record in enumerate(quiet)]
    first = LedgerPartition(0, 0, {})
    fold(first, renumbered[:10])
    snapshots = dict(first.capture().records())
    fold(first, renumbered[10:])
    captured = first.capture().records()
    snapshots |= dict(captured)

    assert [key for key, _ in captured] == [b"alpha", b"/0"]
    next_bid = replace(ledger[-1], offset=len(renumbered))
    assert fold(LedgerPartition(0, len(renumbered), snapshots), [next_bid]) == fold(first, [next_bid])


@pytest.mark.parametrize("first_offset", [1, 41])
def test_gap_before_the_first_event_is_fatal(first_offset: int) -> None:
    ledger = records("alpha")
    snapshots: dict[bytes, bytes] = {}
    if first_offset > 1:
        first = LedgerPartition(0, 0, {})
        fold(first, ledger[:20])
        snapshots = dict(first.capture().records())

    with pytest.raises(LedgerGapError, match=f"events are delivered from {first_offset} on"):
        LedgerPartition(0, first_offset, snapshots)


def test_gap_underway_is_fatal() -> None:
    ledger = records("alpha")
    partition = LedgerPartition(0, 0, {})
    fold(partition, ledger[:5])

    with pytest.raises(LedgerGapError, match="offset 6 was delivered instead of 5"):
        partition.fold(ledger[6])


def test_offsets_that_hold_no_record_are_no_gap() -> None:
    """Markers of transactions use offsets: before the first event, between events and after a restart."""
    ledger = records("alpha")
    moved = [
        replace(record, offset=2 * record.offset + 1, from_offset=2 * record.offset) for record in ledger
    ]
    partition = LedgerPartition(0, 0, {})
    fold(partition, moved[:5])
    assert partition.last_offset == 9

    successor = LedgerPartition(0, 10, dict(partition.capture().records()))

    assert successor.fold(moved[5])
    assert successor.last_offset == 11


def test_record_out_of_sequence_is_gap() -> None:
    ledger = records("alpha")
    partition = LedgerPartition(0, 0, {})
    fold(partition, ledger[:5])

    with pytest.raises(LedgerGapError, match="offset 7 was delivered instead of 5"):
        partition.fold(replace(ledger[7], from_offset=6))


def test_snapshot_older_than_the_coverage_is_fatal() -> None:
    """A stale worker replaced the snapshot of its successor."""
    ledger = records("alpha", "beta")
    partition = LedgerPartition(0, 0, {})
    fold(partition, ledger[:10])
    stale = dict(partition.capture().records())[b"alpha"]
    fold(partition, ledger[10:20])
    snapshots = {**dict(partition.capture().records()), b"alpha": stale}

    successor = LedgerPartition(0, 20, snapshots)

    with pytest.raises(LedgerGapError, match="snapshot of cell alpha should be of offset 18 or later"):
        successor.fold(ledger[20])


def test_lost_snapshot_is_fatal() -> None:
    ledger = records("alpha")
    partition = LedgerPartition(0, 0, {})
    fold(partition, ledger[:10])
    snapshots = dict(partition.capture().records())
    del snapshots[b"alpha"]

    with pytest.raises(LedgerGapError, match="it is missing"):
        LedgerPartition(0, 10, snapshots).fold(ledger[10])


def test_bad_record_is_refused_and_leaves_no_gap() -> None:
    ledger = records("alpha")
    partition = LedgerPartition(0, 0, {})
    fold(partition, ledger[:5])

    with pytest.raises(InvalidRecordError, match="another key"):
        partition.fold(replace(ledger[5], key=b"beta"))

    assert Coverage.from_bytes(dict(partition.capture().records())[b"/0"]).offset == 5
    assert partition.fold(ledger[6])


def test_an_event_of_missing_rules_is_not_taken() -> None:
    ledger = records("alpha", "beta")
    partition = LedgerPartition(0, 0, {})
    fold(partition, ledger[:10])
    cell = partition.cells["beta"]
    newer = events.envelope(adoption(cell), "newer")
    record = replace(ledger[10], key=b"beta", value=newer.value, headers=tuple(newer.headers()))

    with pytest.raises(MissingRulesError):
        partition.fold(record)

    snapshots = dict(partition.capture().records())
    assert (partition.last_offset, Coverage.from_bytes(snapshots[b"/0"]).offset) == (9, 9)
    successor = LedgerPartition(0, 10, snapshots, SECOND)
    assert successor.fold(record) == []
    assert successor.cells["beta"].rules == 2
    with pytest.raises(MissingRulesError, match="offset 11 of cell alpha is to be decided by rules 1"):
        successor.fold(replace(ledger[10], offset=11))


def test_record_without_attributes_in_headers_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="CloudEvents"):
        LedgerPartition(0, 0, {}).fold(ReadRecord("t.ledger", 0, 0, None, b"alpha", b"{}", ()))


def test_validating_partition_stops_at_contradiction() -> None:
    ledger = records("alpha")
    partition = LedgerPartition(0, 0, {}, validates=True)
    fold(partition, ledger[:20])
    partition.cells["alpha"].zones["z1"].auctioneer.market.free_samples -= 1
    with pytest.raises(
        BrokenInvariantError, match=r"cell alpha is broken after ledger offset 20.*free and planned"
    ):
        partition.fold(ledger[20])
