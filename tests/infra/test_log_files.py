"""The log that `simulate --out` leaves: whole, or as it was."""

import pytest

from infra.commands.log_files import LogFiles
from streams.replay.files import DECISIONS_FILE, LEDGER_FILE


def test_unfinished_log_leaves_previous_one(tmp_path):
    folder = tmp_path / "new"
    with LogFiles(folder) as files:
        files.write([], [])
    (folder / LEDGER_FILE).write_text("before")
    with pytest.raises(RuntimeError, match="killed"), LogFiles(folder):
        raise RuntimeError("killed")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        LEDGER_FILE: "before",
        DECISIONS_FILE: "",
    }
