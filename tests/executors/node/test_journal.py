"""The journal keeps all that a node has applied after the node's end, and belongs to one process at a
time."""

import os
from pathlib import Path

import pytest

from executors.node.journal import APPLIED_IDS_KEPT, Journal, JournalError, JournalFile

FULL = Journal(
    boot=5,
    cluster_id="k",
    topic="t",
    partition=2,
    next_offset=9,
    applied=("c-1-0",),
    runners={"lora": {"over": ["j"]}, "counting": None},
)


@pytest.fixture
def file(tmp_path: Path) -> JournalFile:
    return JournalFile(tmp_path / "nodes" / "n1")


def test_it_comes_back_as_it_was(file: JournalFile) -> None:
    with file.locked():
        assert file.load() == Journal()
        file.save(FULL)
        assert file.load() == FULL


def test_crash_while_writing_keeps_former_journal(file: JournalFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(descriptor: int) -> None:
        raise OSError("disk gone")

    with file.locked():
        file.save(FULL)
        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="disk gone"):
            file.save(Journal())
        assert file.load() == FULL


def test_a_second_process_is_kept_away(file: JournalFile) -> None:
    with file.locked(), pytest.raises(JournalError, match="another process"), file.locked():
        pass
    with file.locked():
        pass


def test_a_damaged_one_is_refused(file: JournalFile, tmp_path: Path) -> None:
    with file.locked():
        (tmp_path / "nodes" / "n1" / "journal.json").write_text('{"boot": "x"}')
        with pytest.raises(JournalError, match=r"journal\.json: boot"):
            file.load()


def test_other_partition_is_read_without_applying_twice() -> None:
    moved = FULL.reading("k", "t", 3)
    assert (moved.next_offset, moved.applied, moved.runners) == (0, FULL.applied, FULL.runners)
    assert FULL.reading("k", "t", 2) == FULL


def test_other_cluster_resets_all_but_boots() -> None:
    assert FULL.reading("other", "t", 2) == Journal(boot=5, cluster_id="other", topic="t", partition=2)


def test_only_the_last_ids_are_kept() -> None:
    journal = Journal(applied=tuple(str(i) for i in range(APPLIED_IDS_KEPT)))
    assert journal.with_applied("new").applied == (*journal.applied[1:], "new")
