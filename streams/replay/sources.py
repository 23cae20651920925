"""Sources of a ledger and its decisions: Kafka, up to the present end."""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from schemas.codec import InvalidRecordError
from schemas.errors import ReadableError
from schemas.kafka_connection import KafkaConnection
from schemas.topics import DECISIONS, LEDGER, RULES_STATES, STATE_DIGEST_HEADER, topic_name
from streams.cell.ledger import ledger_event_of
from streams.cell.ledger_event import LedgerEvent
from streams.cell.rules import RULES, RuleBook
from streams.kafka.reader import KafkaReader, TopicSlice
from streams.kafka.records import ReadRecord
from streams.replay.heads import KeptHead
from streams.replay.replay import LIVE, DecisionRecord, Kind, Verdict, verify
from streams.replay.stretches import unpacked_state

Result = TypeVar("Result")


class ReplayError(ReadableError):
    """A ledger or its decisions cannot be read. The message is one line."""


def verify_kafka(
    kafka: KafkaConnection,
    topic_prefix: str,
    cell: str | None = None,
    tolerated: Collection[Kind] = LIVE,
    kept: Iterable[KeptHead] = (),
    book: RuleBook = RULES,
) -> Verdict:
    """Verify one cell, or all, with the present records on Kafka; workers may continue meanwhile.

    Args:
        tolerated, kept, book: see `streams.replay.replay.verify`.

    Raises:
        ReadError: Kafka does not answer, or not to this client.
        ReplayError: records of the ledger's beginning are gone.
    """
    with KafkaReader(kafka) as reader, KafkaReader(kafka) as reader_of_states:

        def find_state(name: str, digest: str) -> bytes | None:
            for record in kept_states(reader_of_states, topic_prefix, {digest}):
                if record.key == name.encode():
                    return unpacked_state(record.value or b"", digest)
            return None

        decisions = reader.slice(topic_name(topic_prefix, DECISIONS))
        # The ledger is read after the end of the decisions is known, so it holds the cause of each of them.
        ledger = reader.slice(topic_name(topic_prefix, LEDGER))
        events = ledger_events(reader, ledger, cell)
        records = decision_records(reader, decisions, cell)
        return on_disk(lambda: verify(events, records, tolerated, kept, book, find_state))


def on_disk(work: Callable[[], Result]) -> Result:
    """Run work that needs room for a temporary database.

    Raises:
        ReplayError: there is not enough room.
    """
    try:
        return work()
    except sqlite3.Error as error:
        raise ReplayError(f"replay needs room on disk, in TMPDIR or /var/tmp: {error}") from None


def ledger_events(reader: KafkaReader, ledger: TopicSlice, cell: str | None) -> Iterator[LedgerEvent]:
    """Yield the events of one cell, or of all, partition by partition.

    Raises:
        ReadError: Kafka does not answer, or not to this client.
        ReplayError: records of the ledger's beginning are gone.
    """
    for partition, low in ledger.low.items():
        if low > 0:
            raise ReplayError(f"{ledger.topic}[{partition}]: the records before offset {low} are gone")
    yield from decoded_events(reader, ledger, cell)


def decoded_events(reader: KafkaReader, ledger: TopicSlice, cell: str | None) -> Iterator[LedgerEvent]:
    """The events of one cell, or of all, in a part of the ledger, partition by partition.

    Raises:
        ReadError: if Kafka does not answer, or not to this client.
    """
    for record in reader.read(ledger):
        try:
            event = ledger_event_of(record)
        except InvalidRecordError:
            # The worker skipped it too, and kept it in the dead letters.
            continue
        if cell in (None, event.envelope.event.cell):
            yield event


def kept_states(reader: KafkaReader, topic_prefix: str, digests: Collection[str]) -> Iterator[ReadRecord]:
    """Yield the records of states kept under these digests.

    Raises:
        ReadError: Kafka does not answer, or not to this client.
    """
    expected = {(STATE_DIGEST_HEADER, digest.encode()) for digest in digests}
    for record in reader.read(reader.slice(topic_name(topic_prefix, RULES_STATES))):
        if not expected.isdisjoint(record.headers):
            yield record


def decision_records(
    reader: KafkaReader, decisions: TopicSlice, cell: str | None
) -> Iterator[DecisionRecord]:
    """Yield the decisions of one cell, or of all, in the order of their topic.

    Raises:
        ReplayError: Kafka does not answer.
    """
    key = None if cell is None else cell.encode()
    for record in reader.read(decisions):
        if key in (None, record.key):
            place = f"{record.topic}[{record.partition}]@{record.offset}"
            yield DecisionRecord(record.value or b"", place)
