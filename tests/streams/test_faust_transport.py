"""Commits of the exact consumer, without a broker."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from faust.types import TP

from streams.worker.faust_app import _faust_app
from streams.worker.settings import WorkerSettings

PLACE = TP("t.ledger", 0)


class Group:
    """Answers commits as told, and notes what was asked."""

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
        """What the consumer's thread does for partitions that nothing is committed of."""


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


def test_a_refused_commit_is_tried_again_without_another_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(False, False, True)
    commits(group, tmp_path, monkeypatch, turns=5)
    assert group.asked == [{PLACE: 42}] * 3


def test_a_commit_that_partitions_moved_under_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(True, True, seeks_meanwhile=1)
    commits(group, tmp_path, monkeypatch, turns=4)
    assert group.asked == [{PLACE: 42}] * 2
