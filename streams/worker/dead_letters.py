"""Dead letters: refused records, kept with the reason."""

from schemas.text import plain
from schemas.topics import (
    ESCAPED_HEADER_COUNT_HEADER,
    HEADER_COUNT_HEADER,
    HEADER_PREFIX,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    TOPIC_HEADER,
    VALUE_BYTES_HEADER,
)
from streams.kafka.records import ReadRecord, SentHeaders, SentRecord

MAX_KEPT_VALUE_BYTES = 256 * 1024
MAX_KEPT_HEADERS = 64
MAX_KEPT_HEADER_BYTES = 1_024
"""Most bytes of a kept header, name and value together."""
MAX_KEPT_HEADERS_BYTES = 8 * 1_024
"""Most bytes of all kept headers together, before escaping."""
MAX_REASON_LENGTH = 2_000


def dead_letter(record: ReadRecord, topic: str, reason: str) -> SentRecord:
    """Return the dead letter of a refused record: its bounded bytes, its place, and the reason.

    The length of the value and the number of headers are those of the original, so a cut can be detected. All
    headers are printable: unprintable characters of the record's own headers are escaped, and such headers
    are counted. Key and value are unchanged.
    """
    kept, escaped = _kept(record)
    about: SentHeaders = [
        (TOPIC_HEADER, record.topic.encode()),
        (PARTITION_HEADER, str(record.partition).encode()),
        (OFFSET_HEADER, str(record.offset).encode()),
        (REASON_HEADER, plain(reason[:MAX_REASON_LENGTH])[:MAX_REASON_LENGTH].encode()),
        (VALUE_BYTES_HEADER, str(len(record.value or b"")).encode()),
        (HEADER_COUNT_HEADER, str(len(record.headers)).encode()),
        (ESCAPED_HEADER_COUNT_HEADER, str(escaped).encode()),
    ]
    value = None if record.value is None else record.value[:MAX_KEPT_VALUE_BYTES]
    key = record.key if record.key is None or len(record.key) <= MAX_KEPT_HEADER_BYTES else None
    return SentRecord(topic, key, value, about + kept)


def _kept(record: ReadRecord) -> tuple[SentHeaders, int]:
    """Return the kept headers of a record, and the number of escaped ones among them."""
    kept: SentHeaders = []
    escaped = 0
    left_bytes = MAX_KEPT_HEADERS_BYTES
    for name, value in record.headers[:MAX_KEPT_HEADERS]:
        if value is None or name.startswith(HEADER_PREFIX):
            continue
        # Escaping never shortens a header and is slow, so a header that is too long is skipped before it.
        came_bytes = len(name) + len(value)
        if came_bytes > min(MAX_KEPT_HEADER_BYTES, left_bytes):
            continue
        left_bytes -= came_bytes
        shown = plain(name), plain(value.decode(errors="backslashreplace")).encode()
        if len(shown[0].encode()) + len(shown[1]) <= MAX_KEPT_HEADER_BYTES:
            kept.append(shown)
            escaped += shown != (name, value)
    return kept, escaped
