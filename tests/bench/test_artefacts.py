"""Files that a benchmark leaves, and the places where it may."""

import os

import pytest

from bench.figures import Table
from bench.output import locked_folder, write_artefacts
from infra.errors import CommandError


def test_folder_in_use_is_refused(tmp_path):
    folder = tmp_path / "new"
    with (
        locked_folder(folder),
        pytest.raises(CommandError, match=f"new: process {os.getpid()} runs a benchmark there"),
        locked_folder(folder),
    ):
        pass
    with locked_folder(folder):
        pass


def test_artefacts_that_cannot_be_written_are_one_line(tmp_path):
    (tmp_path / "auction.json").mkdir()
    with pytest.raises(CommandError, match=r": Is a directory"):
        write_artefacts(tmp_path, {"bench": "auction"}, [])


def test_rows_of_a_table_may_lack_columns(tmp_path):
    table = Table("mixed", [{"name": "a", "jobs": 3}, {"name": "b", "pairs": 4}])
    write_artefacts(tmp_path, {"bench": "merging"}, [table])
    assert (tmp_path / "mixed.csv").read_text().split() == ["name,jobs,pairs", "a,3,", "b,,4"]
