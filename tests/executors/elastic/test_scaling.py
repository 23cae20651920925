"""Workers that join and leave: the same samples, the same losses, the same parameters as on one worker."""

import os
import signal
import time

import pytest

from executors.gang.folder import JobFolder
from executors.node.places import job_folder
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from tests.support.elastic_nodes import Fleet, released, workload
from tests.support.listening import places
from tests.support.nodes import CELL
from tests.support.trained import Trained


@pytest.mark.long
def test_losses_are_reported_of_each_step(alone: Trained) -> None:
    assert len(alone.losses) > 70
    assert set(alone.losses) <= {*range(8, 604, 8), 604}


@pytest.mark.long
def test_two_workers_train_what_one_would(fleet: Fleet, alone: Trained) -> None:
    fleet.assign("j", 1, [("n1", 1), ("n2", 1)], workload(keeps=False))
    fleet.until(fleet.is_over("j", "n1", "n2"))
    Trained.of(fleet, "j").assert_like(alone)
    (finished,) = fleet.reports(RunFinished)
    assert (finished.node, finished.samples_done, finished.run_id) == ("n1", 604, "j/1")
    # The other member has ended, too, and no second report of the job follows.
    assert fleet.short_reports("j")[-1] == "n2 j/1 run.progressed 604 complete"


@pytest.mark.long
def test_more_processes_than_samples_of_the_last_batch(fleet: Fleet, alone: Trained) -> None:
    # Six processes share eight samples unequally, and the last batch has four: two have none.
    fleet.nodes.clear()
    fleet.add("n1", gpus=6)
    fleet.assign("j", 1, [("n1", 3)], workload(20, keeps=False, gpus_per_worker=2))
    fleet.until(fleet.is_over("j", "n1"))
    losses = fleet.losses("j")
    assert {samples: losses[samples] for samples in (8, 16)} == pytest.approx(
        {samples: alone.losses[samples] for samples in (8, 16)}, rel=1e-5
    )
    assert [report.samples_done for report in fleet.reports(RunFinished)] == [20]


def test_a_worker_joins_and_leaves_in_the_middle(fleet: Fleet, alone: Trained) -> None:
    work = workload(keeps=False)
    fleet.assign("j", 1, [("n1", 1)], work)
    fleet.until(fleet.has_started("j", 1, "n1"))
    with fleet.slowed("n1"):
        fleet.assign("j", 2, [("n1", 1), ("n2", 1)], work)
        fleet.until(fleet.has_started("j", 2, "n1", "n2"))
        fleet.until(fleet.has_trained("j", generation=2))
        fleet.assign("j", 3, [("n1", 1)], work)
        fleet.release("j", 2, ["n2"])
        fleet.until(fleet.has_started("j", 3, "n1"))
    fleet.until(fleet.is_over("j", "n1", "n2"))
    Trained.of(fleet, "j").assert_like(alone)
    started = [report.samples_done for report in fleet.reports(RunStarted, node="n1")]
    # A busy node reports a start after the first steps.
    assert 0 <= started[0] < started[1] < started[2] < 604
    # The node that was left reports that once, with the state that the others resume from.
    (left,) = fleet.reports(RunProgressed, node="n2")
    assert (left.run_id, left.complete) == ("j/2", True)
    assert started[1] <= left.samples_done <= started[2]


@pytest.mark.long
def test_the_leader_leaves_and_another_goes_on(fleet: Fleet, alone: Trained) -> None:
    work = workload(keeps=False)
    fleet.assign("j", 1, [("n1", 2), ("n2", 1)], work)
    fleet.until(fleet.has_started("j", 1, "n1", "n2"))
    with fleet.slowed("n1"):
        fleet.assign("j", 2, [("n2", 2)], work)
        fleet.release("j", 1, ["n1"])
        fleet.until(fleet.has_started("j", 2, "n2"))
    fleet.until(fleet.is_over("j", "n2", generation=2))
    fleet.until(fleet.is_over("j", "n1"))
    Trained.of(fleet, "j").assert_like(alone)
    (finished,) = fleet.reports(RunFinished)
    assert (finished.node, finished.run_id) == ("n2", "j/2")


@pytest.mark.long
def test_a_generation_is_superseded_before_it_comes_together(fleet: Fleet, alone: Trained) -> None:
    fleet.add("n3")
    work = workload(keeps=False)
    fleet.assign("j", 1, [("n1", 1)], work)
    fleet.until(fleet.has_started("j", 1, "n1"))
    with fleet.slowed("n1"):
        fleet.assign("j", 2, [("n1", 1), ("n2", 2)], work)
        for _ in range(3):
            fleet.turn()
        fleet.assign("j", 3, [("n1", 1), ("n3", 1)], work)
        fleet.release("j", 2, ["n2"])
        fleet.until(fleet.has_started("j", 3, "n1", "n3"))
    fleet.until(fleet.is_over("j", "n1", "n2", "n3"))
    Trained.of(fleet, "j").assert_like(alone)
    assert fleet.short_reports("j").count("n2 j/2 run.progressed 0 complete") == 1


def test_absent_member_stops_no_other(fleet: Fleet) -> None:
    # n2 is down and receives nothing of generation 2; the cell sends another one when it has noticed.
    work = workload(10**6, keeps=False)
    fleet.assign("j", 1, [("n1", 1)], work)
    fleet.until(fleet.has_started("j", 1, "n1"))
    fleet.assign("j", 2, [("n1", 2), ("n2", 1)], work, only=["n1"])
    before = fleet.progress("j")
    fleet.until(lambda: fleet.progress("j") > before + 80)
    fleet.assign("j", 3, [("n1", 2)], work)
    fleet.until(fleet.has_started("j", 3, "n1"))
    assert not fleet.has_started("j", 2, "n1")()
    assert len(fleet.pids("n1")) == 2
    fleet.release("j", 3, ["n1"], "withdrawn")
    fleet.until(fleet.is_over("j", "n1"))


def test_late_leaver_is_killed_and_others_continue(fleet: Fleet) -> None:
    work = workload(10**6, keeps=False)
    fleet.assign("j", 1, [("n1", 1), ("n2", 1)], work)
    fleet.until(fleet.has_started("j", 1, "n1", "n2"))
    fleet.until(fleet.has_trained("j"))
    (stuck,) = fleet.pids("n2")
    os.kill(stuck, signal.SIGSTOP)
    fleet.assign("j", 2, [("n1", 1)], work)
    fleet.release("j", 1, ["n2"], by_s=time.time() + 2.0)
    fleet.until(fleet.is_over("j", "n2"))
    fleet.until(fleet.has_started("j", 2, "n1"))
    assert fleet.reports(RunStarted, node="n1")[-1].samples_done > 0
    fleet.release("j", 2, ["n1"], "withdrawn")
    fleet.until(fleet.is_over("j", "n1"))
    with pytest.raises(ProcessLookupError):
        os.kill(stuck, 0)


def test_release_before_assignment_changes_nothing(fleet: Fleet) -> None:
    # A node obeys what takes work back before the commands that it read with it.
    fleet.assign("j", 1, [("n1", 1)], workload(16))
    fleet.nodes["n1"].runner.apply(released("n1", "j", 2))
    fleet.until(fleet.is_over("j", "n1"))
    assert [report.run_id for report in fleet.reports(RunFinished)] == ["j/1"]


def test_meeting_and_gloo_use_only_configured_address(fleet: Fleet) -> None:
    fleet.assign("j", 1, [("n1", 1), ("n2", 1)], workload(10**6))
    fleet.until(fleet.has_started("j", 1, "n1", "n2"))
    leader, other = places(fleet.pids("n1")), places(fleet.pids("n2"))
    meeting = JobFolder(job_folder(fleet.root / "state", CELL, "j")).read_address(1)

    assert meeting is not None
    assert ("127.0.0.1", meeting.port) in leader
    assert {address for address, _ in leader | other} == {"127.0.0.1"}
    assert (len(leader), len(other)) == (2, 1), "Gloo in both"


def test_each_checkpoint_reports_measured_steps(fleet: Fleet) -> None:
    # Each step is reported to the node, and every few of them to the cell, with a checkpoint.
    fleet.add("n1", checkpoint_s=0.05, least_sequence_s=0.002)
    fleet.assign("j", 1, [("n1", 1)], workload(160))
    fleet.until(fleet.is_over("j", "n1"))
    reports = [each for each in fleet.reports(RunProgressed, "j") if not each.complete]
    # The first step does not count, and the first measurement is reported before the checkpoint with it.
    assert len(reports) > 4
    steps = [each.measured.steps for each in reports if each.measured is not None]
    assert len(steps) >= len(reports) - 2
    assert sum(steps) == (reports[-1].samples_done // 8) - 1, "all but the first"


@pytest.mark.long
def test_slow_worker_gets_less_of_each_batch(fleet: Fleet, alone: Trained) -> None:
    fleet.add("n1", least_sequence_s=0.02)
    fleet.add("n2", least_sequence_s=0.2)
    work = workload(keeps=False)
    fleet.assign("j", 1, [("n1", 1), ("n2", 1)], work)
    fleet.until(fleet.is_over("j", "n1", "n2"))
    Trained.of(fleet, "j").assert_like(alone)
    reports = [report.measured for report in fleet.reports(RunProgressed, "j") if not report.complete]
    assert reports[0] is None, "the first step does not count"
    measured = [each for each in reports if each is not None]
    even_samples_per_s = 8 / (4 * 0.2)
    assert max(each.samples_per_s for each in measured) > 2 * even_samples_per_s
    assert {(each.gpus, each.samples_per_step) for each in measured} == {(2, 8)}
