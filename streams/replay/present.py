"""The present state of a cell: its latest snapshot with the events since folded in, or a whole ledger."""

from collections.abc import Callable, Iterable
from pathlib import Path

from schemas.kafka_connection import KafkaConnection
from schemas.topics import LEDGER, SNAPSHOTS, topic_name
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from streams.kafka.reader import KafkaReader, ReadError, TopicSlice
from streams.kafka.records import key_partition
from streams.replay.files import read_ledger_file
from streams.replay.sources import ReplayError, decoded_events, ledger_events


def cell_on_kafka(kafka: KafkaConnection, topic_prefix: str, name: str) -> Cell:
    """Restore a cell from its latest snapshot, and fold the events since. Where there is no snapshot that
    this program and this client can read, the whole ledger is folded.

    Raises:
        ReadError: if Kafka does not answer, or not to this client.
        ReplayError: if the ledger has no event of the cell; or needed records of it are gone.
        RulesError: if the rules that decide it are not at hand.
    """
    with KafkaReader(kafka) as reader:
        snapshot = latest_snapshot(reader, topic_name(topic_prefix, SNAPSHOTS), name)
        # Its end is read after the snapshots, so that it has all that they cover.
        ledger = reader.slice(topic_name(topic_prefix, LEDGER))
        cell = None if snapshot is None else _restored(snapshot)
        if cell is None:
            return _folded(ledger_events(reader, ledger, None), name)
        partition = key_partition(name, len(ledger.high))
        next_offset = cell.offset + 1
        if ledger.low[partition] > next_offset:
            raise ReplayError(
                f"{ledger.topic}[{partition}]: records between offsets {next_offset} and "
                f"{ledger.low[partition]} are gone, and the snapshot of cell {name} lacks them"
            )
        rest = TopicSlice(ledger.topic, {partition: next_offset}, {partition: ledger.high[partition]})
        for event in decoded_events(reader, rest, name):
            cell.handle(event)
        return cell


def cell_of_file(ledger: Path, name: str, until: Callable[[Cell], bool] = lambda _cell: False) -> Cell:
    """Fold the events of a cell in a ledger file, to the end or until the cell is in some state.

    Raises:
        ReplayError: if the file is not one that `read_ledger_file` reads, or has no event of the cell.
        RulesError: if the rules that decide it are not at hand.
    """
    return _folded(read_ledger_file(ledger), name, until)


def latest_snapshot(reader: KafkaReader, topic: str, name: str) -> bytes | None:
    """Return the latest snapshot of a cell; None if this client can read none."""
    try:
        snapshots = reader.slice(topic)
    except ReadError:
        return None
    partition = key_partition(name, len(snapshots.high))
    own = TopicSlice(topic, {partition: snapshots.low[partition]}, {partition: snapshots.high[partition]})
    latest = None
    for record in reader.read(own):
        if record.key == name.encode():
            latest = record.value
    return latest


def _restored(snapshot: bytes) -> Cell | None:
    """Return the cell of a snapshot; None where another version of Millrace has written it in its layout."""
    try:
        return Cell.restore(snapshot)
    except ValueError:
        return None


def _folded(
    events: Iterable[LedgerEvent], name: str, until: Callable[[Cell], bool] = lambda _cell: False
) -> Cell:
    cell, others = Cell(name), set[str]()
    for event in events:
        if event.envelope.event.cell == name:
            cell.handle(event)
            if until(cell):
                break
        else:
            others.add(event.envelope.event.cell)
    if cell.offset < 0:
        has = f"it has {', '.join(sorted(others))}" if others else "it has no event at all"
        raise ReplayError(f"the ledger has no event of cell {name}: {has}")
    return cell
