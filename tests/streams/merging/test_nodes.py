"""Nodes join, fall silent, are cordoned, and leave; the zone is reconfigured."""

import pytest

from schemas.base import Outcome
from schemas.changes import (
    NodeCordoned,
    NodeRegistered,
    NodeRetired,
    NodeUncordoned,
    ZoneConfigured,
)
from schemas.decisions import EventIgnored, NodeMoved
from schemas.merging.commands import ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.outcomes import TaskChanged
from tests.support.merging import CELL, submit, withdraw
from tests.support.merging_script import Script, ending_runs, of, online, share, silent
from tests.support.twins import ZONE


@pytest.fixture
def script() -> Script:
    """Two nodes of two GPUs."""
    script = Script(2, 2)
    script.ready("a", "b")
    return script


def changes(outcomes: list[Outcome]) -> list[tuple[str, tuple[str, ...], int]]:
    return [(each.reason, each.job_ids, each.gpus) for each in of(TaskChanged, outcomes)]


def released_nodes(outcomes: list[Outcome]) -> list[str]:
    return [each.node for each in of(TaskReleased, outcomes)]


def members(script: Script, job_id: str) -> list[str]:
    """Nodes of a job's task, the leader first."""
    return list(script.bench.described["tasks"][script.job(job_id)["task"]]["members"])


def leader(script: Script, job_id: str) -> str:
    return members(script, job_id)[0]


def test_jobs_of_lost_node_resume_from_checkpoint(script):
    script.plan(share("a", gpus=2), share("b", gpus=2))
    script.send(script.progressed("a", 100))
    lost = leader(script, "a")
    outcomes = script.send(silent(lost))
    assert changes(outcomes) == [("node_lost", ("a",), 0)]
    assert ending_runs(script.job("a")) == {}, "nobody is left to say that the run has ended"
    assert script.ask().problem.gpus == 2
    outcomes = script.answer(share("a"), share("b"), asked=script.asked)
    (assigned,) = [each for each in of(TaskAssigned, outcomes) if each.orders[0].job_id == "a"]
    assert (assigned.node, assigned.orders[0].resume_iterations) == (leader(script, "b"), 100)
    assert assigned.generation == 3


def test_other_node_of_task_gets_release(script):
    script.plan(share("a", gpus=4))
    first, second = members(script, "a")
    outcomes = script.send(silent(second))
    assert released_nodes(outcomes) == [first, second]
    assert list(ending_runs(script.job("a")).values()) == [first]


def test_restarted_node_has_lost_its_runs(script):
    script.plan(share("a", "b", gpus=2))
    script.send(script.progressed("a", 100))
    outcomes = script.send(online(leader(script, "a")))
    assert changes(outcomes) == [("node_lost", ("a", "b"), 0)]
    units = {unit.job_ids: (unit.part, unit.follower) for unit in script.ask().problem.units}
    assert units == {("a",): ("donor", "b"), ("b",): ("any", None)}, "the pair waits to be resumed"


def test_reports_of_lost_node_are_not_awaited(script):
    script.plan(share("a", gpus=2))
    node = leader(script, "a")
    script.plan(share("b", gpus=2))
    assert list(ending_runs(script.job("a")).values()) == [node]
    script.plan(share("a", gpus=1), share("b", gpus=2))
    (assigned,) = of(TaskAssigned, script.send(silent(node)))
    assert (assigned.orders[0].job_id, assigned.node == node) == ("a", False)


def test_withdrawn_job_ends_with_lost_node(script):
    script.plan(share("a"))
    node = leader(script, "a")
    assert [each.TYPE for each in script.send(withdraw("a"))][-1] != "millrace.job.withdrawn.v1"
    assert [each.TYPE for each in script.send(silent(node))].count("millrace.job.withdrawn.v1") == 1


def test_cordoned_node_continues_and_starts_nothing(script):
    script.plan(share("a"))
    node = leader(script, "a")
    assert changes(script.send(NodeCordoned(cell=CELL, node=node))) == []
    problem = script.ask().problem
    assert (problem.gpus, [unit.job_ids for unit in problem.units]) == (2, [("b",)])
    outcomes = script.answer(share("a", gpus=2), share("b", gpus=2), asked=script.asked)
    assert changes(outcomes) == [("started", ("b",), 2)]
    assert leader(script, "b") != node
    script.send(NodeUncordoned(cell=CELL, node=node))
    assert script.ask().problem.gpus == 4


def test_reclaimed_node_is_vacated_and_leaves(script):
    script.plan(share("a", "b"))
    node = leader(script, "a")
    outcomes = script.send(NodeRetired(cell=CELL, node=node))
    assert changes(outcomes) == [("preempted", ("a", "b"), 0)]
    assert released_nodes(outcomes) == [node]
    assert of(NodeMoved, outcomes) == []
    outcomes = script.end("a", iterations=50)
    outcomes += script.tick(script.time_s + 1.0)
    assert [each.node for each in of(NodeMoved, outcomes)] == [node]
    assert script.ask().problem.gpus == 2


def test_profile_run_on_leaving_node_completes():
    script = Script(2, 1)
    script.send(submit("a"))
    ((node, _),) = script.job("a")["members"].items()
    script.send(NodeRetired(cell=CELL, node=node))
    outcomes = script.send(script.profile("a")) + script.tick(1.0)
    assert [each.node for each in of(NodeMoved, outcomes)] == [node]


def test_joining_node_profiles_new_jobs_once_online():
    script = Script(1, 1)
    script.send(submit("a"), submit("b", data="b"))
    added = NodeRegistered(cell=CELL, zone=ZONE, node="x", gpu_type="V100", tariff="flat")
    assert of(ProfileOrdered, script.send(added)) == []
    assert [each.order.job_id for each in of(ProfileOrdered, script.send(online("x")))] == ["b"]


def test_a_zone_takes_new_settings_and_goes_on(script):
    script.plan(share("a", "b"))
    script.reconfigure(interval_s=60.0, modes=("temporal",), watched_epochs=5)
    outcomes = script.answer(share("a", "b", gpus=2), asked=script.ask())
    assert changes(outcomes) == [("reallocated", ("a", "b"), 2)]
    (assigned,) = of(TaskAssigned, script.end("a", iterations=5))
    assert assigned.watched_epochs == 5
    script.tick(script.time_s + 60.0)
    assert script.asked is not None


def test_changed_similarity_profiles_new_jobs_again(script):
    script.reconfigure(transferability="task2feat")
    outcomes = script.send(submit("c", data="a", accuracy=None))
    assert [each.order.job_id for each in of(ProfileOrdered, outcomes)] == ["c"]
    script.send(script.profile("c", features=(1.0, 2.0)))
    script.tick(script.time_s + 5.0)
    assert {unit.job_ids[0]: unit.part for unit in script.ask().problem.units} == {
        "a": "any",
        "b": "none",
        "c": "any",
    }


def test_nodes_keep_gpus_of_jobs_and_profiles():
    script = Script(1, 2)
    script.ready("a")
    script.plan(share("a"))
    script.send(submit("b", data="b"))
    zone = script.bench.cell.configuration.zones[0]
    smaller = tuple(gpu.model_copy(update={"gpus": 1}) for gpu in zone.gpu_types)
    (refused,) = script.send(ZoneConfigured(cell=CELL, zone=zone.model_copy(update={"gpu_types": smaller})))
    assert isinstance(refused, EventIgnored)
    assert refused.facts == {"zone": "z", "case": "gpus_in_use", "node": "n0", "gpus": 1, "held_gpus": 2}
