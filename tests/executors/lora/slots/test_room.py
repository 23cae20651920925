"""A node whose disk is full reports that, in place of failing run after run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.lora.slots.runs import task_of
from executors.lora.slots.slot_runs import SlotRuns
from executors.node.room import DiskSpace, NoRoomError
from schemas.fleet import RunFailed, RunProgressed, RunStarted
from tests.support.executors import assignment, order
from tests.support.small_disk import SmallDisk, small_disk

MIB = 1024 * 1024


@pytest.fixture
def disk(bench) -> Iterator[SmallDisk]:
    """The store of the bench."""
    with small_disk(bench.root / "checkpoints", mib=4) as disk:
        yield disk


def workshop(bench, least_free_bytes: int = 0):
    return bench.workshop(room=DiskSpace({"state root": bench.root / "checkpoints"}, least_free_bytes))


def train(runner: SlotRuns) -> None:
    while runner.advance() == "working":
        pass


def test_no_run_begins_that_could_not_be_checkpointed(bench, disk: SmallDisk) -> None:
    disk.fill(leave_bytes=20_000)
    runner = bench.runner(assignment(order("a", 8), order("b", 8, seed=1)), workshop(bench))

    with pytest.raises(
        NoRoomError, match=r"the state root .* has 0\.0 MiB free and needs 0\.\d MiB for 2 runs"
    ):
        runner.advance()
    runner.give_up()

    assert bench.reports == []
    assert runner.over == {"a", "b"}


def test_run_with_refused_checkpoint_keeps_its_place(bench, disk: SmallDisk) -> None:
    shop = workshop(bench)
    runner = bench.runner(assignment(order("j", 100), order("other", 100, seed=1)), shop)
    while not bench.kept("j"):
        runner.advance()
    disk.fill(leave_bytes=0)

    with pytest.raises(NoRoomError, match=r"the state root .* takes no file of .*: No space left on device"):
        train(runner)
    runner.give_up()

    assert runner.over == {"j", "other"}
    assert [type(event) for event in bench.reports] == [RunStarted, RunStarted]
    disk.clear()
    bench.carry_out(assignment(order("j", 20, resume=12), slot=1), workshop(bench))
    assert bench.reports_on("j")[-2].samples_done == 12
    assert bench.reports_on("j")[-1] == RunProgressed(
        cell="c",
        node="n1",
        run_id="1/j",
        job_id="j",
        samples_done=32,
        loss=bench.reports_on("j")[-1].loss,
        node_s=0.0,
        memory_gib=bench.reports_on("j")[-1].memory_gib,
        complete=True,
    )


def test_possible_checkpoints_precede_offline(bench, disk: SmallDisk) -> None:
    runner = bench.runner(assignment(order("j", 100)), workshop(bench))
    for _ in range(2):
        runner.advance()

    runner.give_up()

    (complete,) = bench.reports_on("j")[1:]
    assert (complete.samples_done, complete.complete) == (8, True)
    assert bench.saved("j").samples_done == 8


def test_run_fails_alone_if_only_its_files_fail(bench, disk: SmallDisk) -> None:
    (disk.folder / "j").write_text("in the way")

    bench.carry_out(assignment(order("j", 100), order("good", 24, seed=1)), workshop(bench))

    assert isinstance(bench.reports_on("j")[-1], RunFailed)
    assert bench.reports_on("good")[-1].samples_done == 24


def test_checkpoint_takes_about_its_forecast_size(bench, disk: SmallDisk) -> None:
    shop = workshop(bench)
    job = order("j", 8, rank=32)
    bench.carry_out(assignment(job), shop)
    (folder,) = (disk.folder / "j").iterdir()
    taken = sum(path.stat().st_blocks * 512 for path in folder.iterdir())

    assert 0.8 * taken < shop.checkpoints.bytes_of(task_of(job)) < 1.2 * taken


def test_room_is_stated_by_folder_and_size(disk: SmallDisk, tmp_path: Path) -> None:
    room = DiskSpace({"output root": tmp_path, "state root": disk.folder}, least_free_bytes=2 * MIB)
    assert room.lacking(MIB) is None
    assert room.lacking(MIB, reserve=2) == f"the state root {disk.folder} has 4.0 MiB free and needs 5.0 MiB"
    assert room.refused(MIB) is None
    assert room.refused(5 * MIB) == (
        f"the state root {disk.folder} takes no file of 5.0 MiB: No space left on device"
    )
    gone = DiskSpace({"state root": tmp_path / "none"}, least_free_bytes=0)
    assert gone.lacking(0) == f"the state root {tmp_path / 'none'}: No such file or directory"
    assert sorted(disk.folder.iterdir()) == []
