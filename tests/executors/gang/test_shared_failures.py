"""The failures of ranks, which the others of their generation read."""

from pathlib import Path

import pytest

from executors.gang.faults import share_failure
from executors.gang.folder import JobFolder
from executors.gang.meeting import PeerFailedError, PeerLostError


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path / "job")


@pytest.mark.parametrize("permanent", [False, True])
def test_own_failure_is_written_for_others(folder: JobFolder, permanent: bool) -> None:
    own = ValueError("bad data")
    assert share_failure(own, folder, 2, permanent=permanent) == (own, permanent)
    assert folder.read_failure(2) == ("bad data", permanent)
    error, is_permanent = share_failure(PeerLostError("silent"), folder, 2, permanent=False)
    assert isinstance(error, PeerFailedError)
    assert (str(error), is_permanent) == ("bad data", permanent)


def test_single_rank_writes_no_failure(folder: JobFolder) -> None:
    share_failure(ValueError("bad data"), folder, 2, permanent=True, has_peers=False)
    assert folder.read_failure(2) is None


def test_lost_rank_without_failure(folder: JobFolder) -> None:
    folder.write_failure(1, "of the generation before", permanent=True)
    lost = PeerLostError("silent")
    assert share_failure(lost, folder, 2, permanent=True) == (lost, False)
    assert folder.read_failure(2) is None


def test_failure_of_other_rank_is_kept(folder: JobFolder) -> None:
    failed = PeerFailedError("bad data", is_permanent=True)
    assert share_failure(failed, folder, 2, permanent=False) == (failed, True)


def test_unwritable_disk_hides_no_failure(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file")
    own = ValueError("bad data")
    assert share_failure(own, JobFolder(tmp_path / "job"), 2, permanent=True) == (own, True)
