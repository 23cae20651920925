"""From Faust's messages to plain records."""

from collections.abc import Mapping

from faust.types.tuples import Message

from streams.records import ReadRecord


def read_record(message: Message) -> ReadRecord:
    """The record behind a Faust message, untouched."""
    headers = message.headers or ()
    if isinstance(headers, Mapping):
        headers = list(headers.items())
    return ReadRecord(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        timestamp_ms=None if message.timestamp is None else round(message.timestamp * 1_000),
        key=message.key,
        value=message.value,
        headers=tuple(headers),
    )
