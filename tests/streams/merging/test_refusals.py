"""A node refuses a command: the runs that were to begin have failed there, and hold nothing."""

import pytest

from schemas.base import Outcome
from schemas.decisions import EventIgnored, JobRefunded
from schemas.fleet import CommandRefused, RefusedRun
from schemas.merging.commands import LoaderPrewarmed, ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.outcomes import JobForetold, TaskChanged
from tests.support.merging import CELL, submit
from tests.support.merging_script import Script, ending_runs, of, share


def refused(command: TaskAssigned | ProfileOrdered | LoaderPrewarmed) -> CommandRefused:
    orders = command.orders if isinstance(command, TaskAssigned) else (command.order,)
    return CommandRefused(
        cell=CELL,
        node=command.node,
        command_id="c-7-0",
        runner="tuner",
        reason="impossible",
        detail="the task needs 4 GPUs here, the node has 1",
        runs=tuple(RefusedRun(run_id=order.run_id, job_id=order.job_id) for order in orders),
    )


def changes(outcomes: list[Outcome]) -> list[tuple[str, tuple[str, ...], int]]:
    return [(each.reason, each.job_ids, each.gpus) for each in of(TaskChanged, outcomes)]


def used(script: Script) -> int:
    return sum(sum(node["held"].values()) for node in script.bench.described["nodes"].values())


def test_refused_task_fails_and_job_awaits_plan() -> None:
    script = Script()
    script.ready("a")
    (command,) = of(TaskAssigned, script.plan(share("a", gpus=4)))
    ignored, *outcomes = script.send(refused(command))
    assert isinstance(ignored, EventIgnored)
    assert ignored.reason == "command_refused"
    assert changes(outcomes) == [("run_failed", ("a",), 0)]
    assert of(TaskChanged, outcomes)[0].facts["refusal"] == "impossible"
    assert (used(script), ending_runs(script.job("a")), script.job("a")["failures"]) == (0, {}, 1)
    assert of(TaskAssigned, script.plan(share("a", gpus=1)))


def test_a_job_that_is_refused_three_times_ends() -> None:
    script = Script()
    script.ready("a")
    for _ in range(2):
        (command,) = of(TaskAssigned, script.plan(share("a", gpus=4)))
        script.send(refused(command))
    (command,) = of(TaskAssigned, script.plan(share("a", gpus=4)))
    (refunded,) = of(JobRefunded, script.send(refused(command)))
    assert (refunded.reason, refunded.facts["refusal"]) == ("run_failed", "impossible")
    assert used(script) == 0


@pytest.mark.parametrize("refusing", [0, 1])
def test_task_ends_where_one_node_refuses(refusing: int) -> None:
    script = Script(2, 2)
    script.ready("a")
    commands = of(TaskAssigned, script.plan(share("a", gpus=4)))
    leader = commands[0].node
    outcomes = script.send(refused(commands[refusing]))
    assert [each.node for each in of(TaskReleased, outcomes)] == [each.node for each in commands]
    waits = [] if refusing == 0 else [leader]
    assert list(ending_runs(script.job("a")).values()) == waits, "its leader reports the end"
    script.send(refused(commands[1 - refusing]))
    assert (ending_runs(script.job("a")), script.job("a")["failures"]) == ({}, 1)


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_refused_merge_leaves_nothing(mode) -> None:
    script = Script()
    script.ready("a", "b")
    (command,) = of(TaskAssigned, script.plan(share("a", "b", mode=mode)))
    assert changes(script.send(refused(command))) == [("run_failed", ("a", "b"), 0)]
    for job_id in ("a", "b"):
        job = script.job(job_id)
        assert (job["task"], job["members"], ending_runs(job), job["merge"]) == (None, {}, {}, None)
        assert (job["failures"], job["never_merges"]) == (0, False), "it may be for the merge"
    a, b = (unit.kind for unit in script.ask().problem.units)
    assert script.asked is not None
    assert (mode, a, b) not in {(one.mode, one.donor, one.receiver) for one in script.asked.problem.transfers}


def test_thrice_refused_profile_runs_unmerged() -> None:
    script = Script()
    (command,) = of(ProfileOrdered, script.send(submit("a", accuracy=None)))
    for delay_s in (5.0, 10.0):
        assert not of(ProfileOrdered, script.send(refused(command)))
        assert not of(ProfileOrdered, script.tick(script.time_s + delay_s - 0.1))
        (command,) = of(ProfileOrdered, script.tick(script.time_s + 0.1))
    (told,) = of(JobForetold, script.send(refused(command)))
    assert (told.reason, told.facts["refusal"]) == ("profile_failed", "impossible")
    assert used(script) == 0


def test_a_refusal_of_what_is_over_changes_nothing() -> None:
    script = Script()
    script.ready("a")
    (command,) = of(TaskAssigned, script.plan(share("a")))
    script.send(script.failed("a"))
    assert [type(each) for each in script.send(refused(command))] == [EventIgnored, EventIgnored]
    prewarmed = LoaderPrewarmed(
        zone=command.zone,
        node="n0",
        order=command.orders[0].model_copy(update={"run_id": "prewarm/a"}),
        starts_s=script.time_s,
    )
    script.send(refused(prewarmed))
    assert script.job("a")["failures"] == 1
