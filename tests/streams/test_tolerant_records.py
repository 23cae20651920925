"""Fetched records are read whatever their headers hold, and in bounded work."""

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from streams.worker.faust import corrections
from streams.worker.faust.corrections import memory_records
from streams.worker.intake import MAX_KEPT_HEADERS

Headers = list[tuple[str, bytes]]


def batch(*records: tuple[bytes, Headers]) -> bytes:
    """Records as the broker sends them, by value and headers."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for offset, (value, headers) in enumerate(records):
        builder.append(offset, timestamp=1_000 + offset, key=b"k", value=value, headers=headers)
    return bytes(builder.build())


def read(data: bytes) -> list[Any]:
    records, found = memory_records(data), []
    while records.has_next():
        found += list(records.next_batch())
    return found


ORDINARY = (b"{}", [("ce_id", b"1"), ("é", b"\xff")])


def test_ordinary_records_are_read_by_the_compiled_reader() -> None:
    data = batch(*[ORDINARY] * 100, (b"x" * 400_000, [("h", b"1")] * 200))

    assert type(memory_records(data)) is type(MemoryRecords(data))
    assert [len(record.headers) for record in read(data)] == [2] * 100 + [200]


@pytest.mark.parametrize("length", [4, 1_000_000])
def test_name_without_utf_8_is_escaped(length: int) -> None:
    data = batch(ORDINARY, (b"v", [("qqqq" * (length // 4), b"1")])).replace(b"q", b"\xff")

    first, second = read(data)

    assert [(name, bytes(value)) for name, value in first.headers] == ORDINARY[1]
    [(name, value)] = second.headers
    assert (second.offset, second.timestamp, second.key, second.value) == (1, 1_001, b"k", b"v")
    assert name == "\\xff" * min(length, 2_048)
    assert value == b"1"


@pytest.mark.parametrize("name", [b"q", b"\xff"], ids=["UTF-8", "not UTF-8"])
def test_excess_headers_are_counted_unread(name: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    crowded = (b"v", [("q", b"1")] * 500_000)
    data = batch(ORDINARY, crowded, ORDINARY).replace(b"\x02q\x021", b"\x02" + name + b"\x021")
    numbers, decode_varint = [0], corrections.decode_varint

    def counted(*arguments: Any) -> Any:
        numbers[0] += 1
        return decode_varint(*arguments)

    monkeypatch.setattr(corrections, "decode_varint", counted)

    before, record, after = read(data)

    assert numbers[0] < 10 * MAX_KEPT_HEADERS
    assert (before.offset, record.offset, after.offset) == (0, 1, 2)
    assert (record.timestamp, record.key, record.value) == (1_001, b"k", b"v")
    assert len(record.headers) == 500_000
    shown = name.decode(errors="backslashreplace")
    assert set(record.headers[:MAX_KEPT_HEADERS]) == {(shown, b"1")}
    assert set(record.headers[MAX_KEPT_HEADERS:]) == {("", None)}
    assert after.value == ORDINARY[0]


def test_impossible_header_count_is_left_to_fetcher() -> None:
    crowded = batch((b"x" * 300_000, [("q", b"1")] * 3_000))
    # Of 3,000, as Kafka writes it, to 2,000,000,000.
    count = b"\xf0\x2e\x02q\x02"
    assert crowded.count(count) == 1
    forged = crowded.replace(count, b"\x80\xd0\xac\xf3\x0e\x02q\x02")

    assert type(memory_records(forged)) is type(MemoryRecords(forged))
