"""Locks between processes."""

from pathlib import Path

import pytest

from infra.kafka.files import FileLock, LockedError


@pytest.mark.parametrize(("text", "holder"), [("4711", 4711), ("", None), ("not a process", None)])
def test_held_lock_names_a_holder_if_written(tmp_path: Path, text: str, holder: int | None) -> None:
    path = tmp_path / "lock"
    with FileLock(path).held():
        path.write_text(text)
        with pytest.raises(LockedError) as refused:
            FileLock(path).acquire()
    assert refused.value.holder == holder
