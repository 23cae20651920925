"""Reads one ledger record. The worker and replay share it, so that both fold exactly the same events."""

from schemas.base import Event
from schemas.codec import InvalidRecordError, decode_stored_event
from schemas.registry import LEDGER_TYPES
from streams.cell.ledger_event import LedgerEvent
from streams.kafka.records import ReadRecord


def ledger_event_of(record: ReadRecord, written: Event | None = None) -> LedgerEvent:
    """Return the event of a ledger record.

    Records from intake are valid; others may be invalid. The result depends on the record
    alone, never on the settings of a deployment, so that every replay omits the same records.

    Args:
        written: the event of these bytes, if this process has parsed them before.

    Raises:
        InvalidRecordError: the record is invalid; the message states why.
    """
    envelope = decode_stored_event(record.value, record.headers, written)
    if envelope.event.TYPE not in LEDGER_TYPES:
        raise InvalidRecordError(f"{envelope.event.TYPE} does not belong in the ledger")
    if record.key != envelope.event.cell.encode():
        raise InvalidRecordError(f"event of cell {envelope.event.cell} has another key")
    return LedgerEvent(record.offset, envelope)
