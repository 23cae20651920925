"""Intake: a raw record of an input topic becomes a ledger record or a dead letter. Pure, and total."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.clock import ClockTicked
from schemas.codec import MAX_HEADER_BYTES, Envelope, InvalidRecordError, decode_event
from schemas.registry import Event
from streams.dead_letters import dead_letter
from streams.records import ReadRecord, SentRecord
from streams.times import rfc3339

TRACE_HEADERS = ("traceparent", "tracestate")


@dataclass(frozen=True)
class InputTopic:
    """What an input topic may carry, and where its refused records go."""

    events: tuple[type[Event], ...]
    dead_letters: str


@dataclass(frozen=True)
class Intake:
    """Decides what enters the ledger."""

    inputs: Mapping[str, InputTopic]
    """By full topic name."""
    ledger: str
    cells: frozenset[str]
    """The cells that this deployment serves."""
    max_tick_ahead_s: float
    """How far a tick may be ahead of its record's timestamp; infinite where clocks may run as they like."""

    def admit(self, record: ReadRecord) -> SentRecord:
        """The ledger record for `record`, or a dead letter with the reason. Never raises for any content.

        Raises:
            KeyError: if the record is of a topic that is no input: a fault of the caller.
        """
        topic = self.inputs[record.topic]
        try:
            envelope = self._judge(record, topic)
        except InvalidRecordError as refusal:
            return dead_letter(record, topic.dead_letters, str(refusal))
        except Exception as error:  # one hostile record must not stop the others
            return dead_letter(record, topic.dead_letters, f"unexpected {type(error).__name__}: {error}")
        headers = envelope.headers() + [
            (name, value)
            for name, value in record.headers
            if name in TRACE_HEADERS and value is not None and len(value) <= MAX_HEADER_BYTES
        ]
        return SentRecord(self.ledger, envelope.event.cell.encode(), envelope.value, headers)

    def _judge(self, record: ReadRecord, topic: InputTopic) -> Envelope:
        envelope = decode_event(record.value, record.headers)
        event = envelope.event
        if not isinstance(event, topic.events):
            raise InvalidRecordError(f"{event.TYPE} does not belong on {record.topic}")
        if event.cell not in self.cells:
            raise InvalidRecordError(f"cell {event.cell} is not served here")
        if isinstance(event, ClockTicked):
            self._refuse_future(event.time_s, record.timestamp_ms)
        if not envelope.time and record.timestamp_ms is not None:
            envelope = replace(envelope, time=rfc3339(record.timestamp_ms), stored=envelope.value)
        return envelope

    def _refuse_future(self, time_s: float, timestamp_ms: int | None) -> None:
        """A cell's clock never goes back: one tick from a far future would pass every deadline for good.

        The timestamp is the producer's, so a simulated clock may run ahead of the wall's as long as it stamps
        its records accordingly. No timestamp counts as none at all, which nothing may be ahead of.
        """
        ahead_s = time_s - (timestamp_ms or 0) / 1_000
        if ahead_s > self.max_tick_ahead_s:
            raise InvalidRecordError(
                f"the tick is {ahead_s:.0f} s ahead of its record's timestamp, at most "
                f"{self.max_tick_ahead_s:g} s are allowed"
            )
