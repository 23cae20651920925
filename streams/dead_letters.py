"""A record that was refused, kept with the reason where an operator finds it."""

from streams.records import ReadRecord, SentHeaders, SentRecord

MAX_KEPT_VALUE_BYTES = 256 * 1024
MAX_KEPT_HEADERS = 64
MAX_KEPT_HEADER_BYTES = 1_024
MAX_REASON_LENGTH = 2_000


def dead_letter(record: ReadRecord, topic: str, reason: str) -> SentRecord:
    """The letter to `topic` for a refused record: its bytes, bounded, and where and why it was refused.

    `dlt_value_bytes` and `dlt_header_count` are those of the original, so that a cut is seen.
    """
    about: SentHeaders = [
        ("dlt_topic", record.topic.encode()),
        ("dlt_partition", str(record.partition).encode()),
        ("dlt_offset", str(record.offset).encode()),
        ("dlt_reason", reason[:MAX_REASON_LENGTH].encode(errors="backslashreplace")),
        ("dlt_value_bytes", str(len(record.value or b"")).encode()),
        ("dlt_header_count", str(len(record.headers)).encode()),
    ]
    kept: SentHeaders = [
        (name, value)
        for name, value in record.headers[:MAX_KEPT_HEADERS]
        if value is not None
        and len(name) + len(value) <= MAX_KEPT_HEADER_BYTES
        and not name.startswith("dlt_")
    ]
    value = None if record.value is None else record.value[:MAX_KEPT_VALUE_BYTES]
    key = record.key if record.key is None or len(record.key) <= MAX_KEPT_HEADER_BYTES else None
    return SentRecord(topic, key, value, about + kept)
