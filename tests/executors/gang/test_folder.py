"""Where the processes of a job meet, generation after generation."""

from pathlib import Path

from executors.gang.folder import JobFolder, MeetingAddress


def address(port: int) -> MeetingAddress:
    return MeetingAddress(host="127.0.0.1", port=port, secret="s")


def test_ended_generation_leaves_newer_folder(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "j")
    for generation in (1, 2, 3):
        folder.write_address(generation, address(1_000 + generation))
    folder.write_failure(2, "killed", permanent=False)
    folder.remove_generation(2)
    assert [folder.read_address(generation) for generation in (1, 2, 3)] == [None, None, address(1_003)]
    assert folder.read_failure(2) is None


def test_last_generation_removes_folder_for_later_ones(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "j")
    folder.write_address(1, address(1_001))
    folder.remove_generation(1)
    assert not folder.path.exists()
    folder.write_failure(2, "killed", permanent=True)
    assert folder.read_failure(2) == ("killed", True)
