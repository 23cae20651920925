"""Commits of the exact consumer, without a broker."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from streams.faust_app import _faust_app
from streams.settings import WorkerSettings

PLACE = TP("t.ledger", 0)


class Group:
    """Answers commits as told, and notes what was asked."""

    def __init__(self, *answers: bool) -> None:
        self._answers = list(answers)
        self.asked: list[dict[TP, int]] = []

    async def commit(self, offsets: dict[TP, int]) -> bool:
        self.asked.append(dict(offsets))
        return self._answers.pop(0)


def commits(group: Group, data_dir: Path, monkeypatch: pytest.MonkeyPatch, turns: int) -> None:
    """Acknowledge one message and let the committing have its turns."""

    async def nothing() -> None: ...

    async def run() -> None:
        app: Any = _faust_app(WorkerSettings(data_dir=data_dir))
        consumer: Any = app.consumer
        monkeypatch.setattr(consumer, "_commit", group.commit)
        monkeypatch.setattr(consumer, "assignment", lambda: {PLACE})
        monkeypatch.setattr(app.producer, "flush", nothing)
        consumer.acknowledge(SimpleNamespace(tp=PLACE, offset=41))
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
