"""Published files and folders are whole."""

import os
from pathlib import Path

import pytest

from executors.node.files import write_folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_folder_replaces_former_one_as_whole(tmp_path: Path) -> None:
    write_folder(tmp_path / "out" / "job", {"a": b"1", "b": b"2"})
    write_folder(tmp_path / "out" / "job", {"a": b"3"})
    assert content(tmp_path / "out" / "job") == {"a": b"3"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["job"]


def test_failure_keeps_former_folder_without_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "job", {"a": b"1"})
    (tmp_path / ".unfinished-job+killed").mkdir()
    (tmp_path / ".unfinished-job-2+another").mkdir()

    def failing(descriptor: int) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="disk gone"):
        write_folder(tmp_path / "job", {"a": b"2"})
    assert content(tmp_path / "job") == {"a": b"1"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".unfinished-job-2+another", "job"]
