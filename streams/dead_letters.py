"""A record that was refused, kept with the reason where an operator finds it."""

from schemas.dead_letters import (
    HEADER_COUNT_HEADER,
    HEADER_PREFIX,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TOPIC_HEADER,
    VALUE_BYTES_HEADER,
)
from streams.records import ReadRecord, SentHeaders, SentRecord

MAX_KEPT_VALUE_BYTES = 256 * 1024
MAX_KEPT_HEADERS = 64
MAX_KEPT_HEADER_BYTES = 1_024
MAX_REASON_LENGTH = 2_000


def dead_letter(record: ReadRecord, topic: str, reason: str) -> SentRecord:
    """The letter to `topic` for a refused record: its bytes, bounded, and where and why it was refused.

    The length of the value and the number of headers are those of the original, so that a cut is seen.
    """
    about: SentHeaders = [
        (TOPIC_HEADER, record.topic.encode()),
        (PARTITION_HEADER, str(record.partition).encode()),
        (OFFSET_HEADER, str(record.offset).encode()),
        (REASON_HEADER, reason[:MAX_REASON_LENGTH].encode(errors="backslashreplace")),
        (VALUE_BYTES_HEADER, str(len(record.value or b"")).encode()),
        (HEADER_COUNT_HEADER, str(len(record.headers)).encode()),
    ]
    kept: SentHeaders = [
        (name, value)
        for name, value in record.headers[:MAX_KEPT_HEADERS]
        if value is not None
        and len(name) + len(value) <= MAX_KEPT_HEADER_BYTES
        and not name.startswith(HEADER_PREFIX)
    ]
    value = None if record.value is None else record.value[:MAX_KEPT_VALUE_BYTES]
    key = record.key if record.key is None or len(record.key) <= MAX_KEPT_HEADER_BYTES else None
    return SentRecord(topic, key, value, about + kept)
