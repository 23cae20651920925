"""Records that the exact consumer delivers and offsets that it commits, without a broker."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import ConsumerRecord
from faust.types import TP

from streams.worker.faust.app import _faust_app
from streams.worker.settings import WorkerSettings

PLACE = TP("t.ledger", 0)


class Group:
    """Answers commits as a test sets, and records the requests."""

    def __init__(self, *answers: bool, seeks_meanwhile: int = 0) -> None:
        self._answers = list(answers)
        self._seeks_meanwhile = seeks_meanwhile
        self.asked: list[dict[TP, int]] = []
        self.consumer: Any = None

    async def commit(self, offsets: dict[TP, int]) -> bool:
        self.asked.append(dict(offsets))
        if self._seeks_meanwhile:
            self._seeks_meanwhile -= 1
            await self.consumer.perform_seek()
        return self._answers.pop(0)

    async def nothing_committed(self) -> dict[TP, int | None]:
        """A group that is new."""
        return {PLACE: None}

    async def seek_to_beginning(self, *partitions: object) -> None:
        """Stand in for the seek of the consumer's thread; does nothing."""


def commits(group: Group, data_dir: Path, monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    """Acknowledge one message and let the committing have its turns."""

    async def nothing() -> None: ...

    async def run() -> None:
        app: Any = _faust_app(WorkerSettings(data_dir=data_dir))
        consumer: Any = app.consumer
        monkeypatch.setattr(consumer, "_commit", group.commit)
        monkeypatch.setattr(consumer, "assignment", lambda: {PLACE})
        monkeypatch.setattr(consumer, "seek_to_committed", group.nothing_committed)
        monkeypatch.setattr(consumer, "_thread", group)
        group.consumer = consumer
        monkeypatch.setattr(app.producer, "flush", nothing)
        consumer.acknowledge(PLACE, 41)
        for _ in range(turns):
            await consumer.commit()

    asyncio.run(run())


def test_what_is_acknowledged_is_committed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(True)
    commits(group, tmp_path, monkeypatch, turns=3)
    assert group.asked == [{PLACE: 42}]


def test_refused_commit_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(False, False, True)
    commits(group, tmp_path, monkeypatch, turns=5)
    assert group.asked == [{PLACE: 42}] * 3


def test_commit_during_rebalance_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(True, True, seeks_meanwhile=1)
    commits(group, tmp_path, monkeypatch, turns=4)
    assert group.asked == [{PLACE: 42}] * 2


def fetched(*offsets: int) -> list[ConsumerRecord[bytes, bytes]]:
    """Return the records that a fetch of a partition returns."""
    return [
        ConsumerRecord(PLACE.topic, PLACE.partition, offset, 1_000, 1, b"k", b"v", None, 1, 1, ())
        for offset in offsets
    ]


class Fetches:
    """A stream of messages, as Faust delivers them."""

    def __init__(self, *messages: Any) -> None:
        self._messages = messages

    def noack(self) -> "Fetches":
        return self

    async def events(self) -> AsyncIterator[Any]:
        for message in self._messages:
            yield SimpleNamespace(message=message)


def offsets_read(data_dir: Path, monkeypatch: pytest.MonkeyPatch, moves_after: int | None) -> list[int]:
    """Offsets that an agent takes of two fetches, where partitions move while it has one of them in hand."""

    async def run() -> list[int]:
        app: Any = _faust_app(WorkerSettings(data_dir=data_dir))
        consumer: Any = app.consumer
        group = Group()
        monkeypatch.setattr(consumer, "assignment", lambda: {PLACE})
        monkeypatch.setattr(consumer, "seek_to_committed", group.nothing_committed)
        monkeypatch.setattr(consumer, "_thread", group)
        app.flow_control.resume()
        await consumer.perform_seek()
        stream: Any = Fetches(*(consumer._to_message(PLACE, fetched(*part)) for part in ((0, 1, 2), (3, 4))))
        taken = []
        async for record in consumer.records(stream):
            taken.append(record.offset)
            if record.offset == moves_after:
                await consumer.perform_seek()
        return taken

    return asyncio.run(run())


def test_agent_takes_records_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offsets_read(tmp_path, monkeypatch, moves_after=None) == [0, 1, 2, 3, 4]


def test_what_was_fetched_before_partitions_moved_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offsets_read(tmp_path, monkeypatch, moves_after=1) == [0, 1]
