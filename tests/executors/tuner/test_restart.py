"""Nodes and workers that are killed, and what goes on from their checkpoints."""

import os
import signal

import pytest

from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunStarted
from schemas.merging.reports import TaskEvaluated
from tests.support.nodes import Node
from tests.support.tuner_nodes import Fleet, assigned, order, released, workload

_LONG = 100_000


def kill(node: Node) -> object:
    """Have a node end without a word, and return what its journal has."""
    state = node.runner.state()
    for pid in node.runner.pids:
        os.kill(pid, signal.SIGKILL)
    return state


def test_an_unfinished_task_goes_on_from_its_checkpoint(fleet: Fleet) -> None:
    fleet.add("n2", checkpoint_s=0.05)
    fleet.assign(order("a", workload(_LONG)), members=(("n2", 1),))
    fleet.until(lambda: len(fleet.reports(RunProgressed)) >= 2)
    state = kill(fleet.nodes["n2"])
    kept = fleet.reports(RunProgressed)[-1].samples_done
    node = fleet.add("n2", state=state)
    fleet.until(lambda: fleet.reports(RunStarted))
    assert fleet.reports(RunStarted)[0].samples_done >= kept > 0
    assert node.runner.validate(assigned("n2", order("a"), members=(("n2", 1),))).kind == "out_of_date"
    fleet.send(released("n2", "a"))
    fleet.until_over("a/1")


@pytest.mark.long
def test_a_merged_task_goes_on_as_it_was(fleet: Fleet) -> None:
    fleet.add("n2", checkpoint_s=0.05)
    orders = order("a", workload(_LONG)), order("b", workload(_LONG, dataset="other.jsonl"))
    fleet.assign(*orders, mode="spatial", members=(("n2", 1),))
    fleet.until(lambda: len(fleet.reports(RunProgressed, "b")) >= 2)
    state = kill(fleet.nodes["n2"])
    fleet.add("n2", state=state)
    fleet.until(lambda: len(fleet.reports(RunStarted)) == 2)
    started = {each.job_id: each.samples_done for each in fleet.reports(RunStarted)}
    assert started["a"] == started["b"] > 0


@pytest.mark.long
def test_unreported_result_is_reported_after_restart(fleet: Fleet) -> None:
    fleet.add("n2")
    fleet.assign(order("a", workload(5)), members=(("n2", 1),))
    node = fleet.nodes["n2"]
    node.runner.advance()
    state = node.runner.state()
    fleet.until_over("a/1")
    first = fleet.reports(RunFinished)[0]
    kill(node)
    # The journal is of before the reports.
    fleet.add("n2", state=state)
    fleet.until_over("a/1")
    assert fleet.reports(RunFinished) == [first]


@pytest.mark.long
def test_unreported_end_is_reported_after_restart(fleet: Fleet) -> None:
    fleet.add("n2")
    fleet.assign(order("a", workload(_LONG)), members=(("n2", 1),))
    fleet.until(lambda: fleet.reports(TaskEvaluated))
    fleet.send(released("n2", "a", reason="withdrawn"))
    state = kill(fleet.nodes["n2"])
    fleet.add("n2", state=state)
    fleet.until_over("a/1")
    assert fleet.short_reports("a") == ["n2 a/1 run.progressed 0 complete"]
    assert fleet.checkpoints("a") == []


def test_killed_worker_fails_task_and_restarts(fleet: Fleet) -> None:
    fleet.assign(order("a", workload(_LONG)), members=(("n1", 2),))
    fleet.until(lambda: fleet.reports(TaskEvaluated))
    os.kill(fleet.nodes["n1"].runner.pids[1], signal.SIGKILL)
    fleet.until_over("a/1")
    (failed,) = fleet.reports(RunFailed)
    assert not failed.permanent
    assert failed.error == "a rank process has ended with signal 9 and no final message"
    fleet.assign(order("b", workload(4)), members=(("n1", 2),))
    fleet.until_over("b/1")
    assert len(fleet.reports(RunFinished, "b")) == 1


def test_workers_rejoin_after_node_restart(fleet: Fleet) -> None:
    fleet.add("n2")
    fleet.assign(order("a", workload(_LONG)), members=(("n1", 1), ("n2", 1)))
    fleet.until(lambda: fleet.reports(TaskEvaluated))
    seen = len(fleet.reports(TaskEvaluated))
    fleet.add("n2", state=kill(fleet.nodes["n2"]))
    fleet.until(lambda: len(fleet.reports(TaskEvaluated)) > seen + 3)
    assert not fleet.reports(RunFailed)
    iterations = [each.iterations for each in fleet.reports(TaskEvaluated)]
    assert iterations == sorted(iterations)


@pytest.mark.long
def test_task_ends_on_all_nodes_together(fleet: Fleet) -> None:
    fleet.add("n2")
    fleet.assign(order("a", workload(_LONG)), members=(("n1", 1), ("n2", 1)))
    fleet.until(lambda: fleet.reports(TaskEvaluated))
    fleet.send(released("n2", "a"))
    fleet.until(lambda: "complete" in " ".join(fleet.short_reports("a")))
    assert [each.node for each in fleet.ends("a/1")] == ["n2"]
    # This node's workers have stopped, too; it reports that when it is released.
    for _ in range(20):
        fleet.turn()
    fleet.send(released("n1", "a"))
    fleet.until_over("a/1")
    ends = list(fleet.ends("a/1"))
    assert {each.node for each in ends} == {"n1", "n2"}
    assert ends[0].samples_done == ends[1].samples_done > 0


def test_a_node_that_stops_checkpoints_its_tasks(fleet: Fleet) -> None:
    fleet.assign(order("a", workload(_LONG)))
    fleet.until(lambda: fleet.reports(TaskEvaluated))
    node = fleet.nodes["n1"]
    node.runner.close("node_stops")
    (end,) = fleet.ends("a/1")
    assert fleet.checkpoints("a") == [f"1-{end.samples_done}"]
    assert node.runner.state() is None
