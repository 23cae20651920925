"""What a benchmark leaves behind, and where it may."""

import os

import pytest

from bench.report import kept_to_one_run, write_artefacts
from infra.errors import CommandError


def test_folder_in_use_is_refused(tmp_path):
    folder = tmp_path / "new"
    with (
        kept_to_one_run(folder),
        pytest.raises(CommandError, match=f"new: process {os.getpid()} runs a benchmark there"),
        kept_to_one_run(folder),
    ):
        pass
    with kept_to_one_run(folder):
        pass


def test_artefacts_that_cannot_be_written_are_one_line(tmp_path):
    (tmp_path / "auction.json").mkdir()
    with pytest.raises(CommandError, match=r": Is a directory"):
        write_artefacts(tmp_path, {"bench": "auction"}, [])
