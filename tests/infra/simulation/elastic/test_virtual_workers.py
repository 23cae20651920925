"""Simulated workers of data-parallel jobs, by command: a sample per second and worker, and work of 100."""

import math
from collections.abc import Iterable
from typing import Any

from infra.simulation.elastic.virtual_workers import PREEMPTION_S, VirtualWorkers, WorkerPauses
from infra.simulation.event_queue import EventQueue, EventRank
from schemas.elastic.commands import Member, WorkersAssigned, WorkersReleased
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from tests.support.elastic import workload

WORK = 100
Report = tuple[float, str, str, int]


def assigned(
    *nodes: str, generation: int = 1, resume_samples: int = 0, resumes: bool = True
) -> list[WorkersAssigned]:
    """A worker on each of the nodes; a command to each."""
    fields: dict[str, Any] = {
        "zone": "z",
        "run_id": f"{generation}/j",
        "job_id": "j",
        "user": "ann",
        "generation": generation,
        "members": tuple(Member(node=node, workers=1) for node in nodes),
        "resumes": resumes,
        "resume_samples": resume_samples,
        "expected_samples_per_s": float(len(nodes)),
        "workload": workload(WORK, (1, 4)),
    }
    return [WorkersAssigned(node=node, **fields) for node in nodes]


def released(node: str, generation: int, reason: Any) -> list[WorkersReleased]:
    return [WorkersReleased(zone="z", node=node, job_id="j", generation=generation, reason=reason)]


def played(
    *commands: tuple[float, Iterable[WorkersAssigned | WorkersReleased]],
    pace: float = 1.0,
    lost_s: dict[str, float] | None = None,
    pauses: WorkerPauses | None = None,
) -> list[Report]:
    """Return the reports of nodes to commands at these times, with their times."""
    workers, queue, said = VirtualWorkers("c", pace, pauses or WorkerPauses()), EventQueue(), []

    def until(end_s: float) -> None:
        while (due := queue.pop(end_s)) is not None:
            time_s, report = due
            assert isinstance(report, RunStarted | RunProgressed | RunFinished)
            said.append((time_s, type(report).__name__, report.node, report.samples_done))

    for time_s, together in commands:
        until(time_s)
        for command in together:
            moments = workers.carry_out(command, time_s, (lost_s or {}).get(command.node, math.inf))
            queue.add_all(EventRank.REPORT, moments)
    until(math.inf)
    return said


def test_workers_train_as_fast_as_the_cell_expects():
    assert played((10.0, assigned("s0"))) == [
        (10.0, "RunStarted", "s0", 0),
        (110.0, "RunFinished", "s0", WORK),
    ]


def test_a_slower_pace_takes_longer():
    assert played((0.0, assigned("s0")), pace=0.5)[-1] == (200.0, "RunFinished", "s0", WORK)


def test_first_node_reports_start_and_end():
    assert played((0.0, assigned("s0", "s1"))) == [
        (0.0, "RunStarted", "s0", 0),
        (50.0, "RunFinished", "s0", WORK),
        (50.0, "RunProgressed", "s1", WORK),
    ]


def test_joining_workers_lose_no_progress():
    said = played((0.0, assigned("s0")), (40.0, assigned("s0", "s1", generation=2, resumes=False)))
    assert said[1:] == [
        (40.0, "RunStarted", "s0", 40),
        (70.0, "RunFinished", "s0", WORK),
        (70.0, "RunProgressed", "s1", WORK),
    ]


def test_starts_and_changes_cost_their_pauses():
    pauses = WorkerPauses(start_s=5.0, resize_s=7.0)
    said = played(
        (0.0, assigned("s0")), (45.0, assigned("s0", "s1", generation=2, resumes=False)), pauses=pauses
    )
    assert said[0] == (5.0, "RunStarted", "s0", 0)
    assert said[1:3] == [(52.0, "RunStarted", "s0", 40), (82.0, "RunFinished", "s0", WORK)]


def test_workers_that_leave_lose_nothing_either():
    said = played(
        (0.0, assigned("s0", "s1")),
        (30.0, [*assigned("s0", generation=2, resumes=False), *released("s1", 1, "scaled_in")]),
    )
    assert said[1:] == [
        (30.0, "RunStarted", "s0", 60),
        (30.0, "RunProgressed", "s1", 60),
        (70.0, "RunFinished", "s0", WORK),
    ]


def test_preempted_job_resumes_and_pays_63_seconds():
    said = played(
        (0.0, assigned("s0")),
        (40.0, released("s0", 1, "preempted")),
        (100.0, assigned("s1", generation=2, resume_samples=40)),
    )
    assert PREEMPTION_S == 63.0
    assert said[1:] == [
        (40.0, "RunProgressed", "s0", 40),
        (163.0, "RunStarted", "s1", 40),
        (223.0, "RunFinished", "s1", WORK),
    ]


def test_a_preempted_job_without_checkpoints_starts_over():
    said = played(
        (0.0, assigned("s0")), (40.0, released("s0", 1, "preempted")), (100.0, assigned("s0", generation=2))
    )
    assert said[2:] == [(163.0, "RunStarted", "s0", 0), (263.0, "RunFinished", "s0", WORK)]


def test_preemption_before_loading_keeps_progress():
    said = played(
        (0.0, assigned("s0")),
        (40.0, released("s0", 1, "preempted")),
        (100.0, assigned("s1", generation=2, resume_samples=40)),
        (120.0, released("s1", 2, "preempted")),
    )
    assert said[2:] == [(120.0, "RunProgressed", "s1", 40)]


def test_lost_node_reports_nothing_more():
    said = played((0.0, assigned("s0", "s1")), lost_s={"s0": 20.0})
    assert said == [
        (0.0, "RunStarted", "s0", 0),
        (50.0, "RunProgressed", "s1", WORK),
    ]


def test_lost_node_releases_others_and_job_restarts():
    said = played(
        (0.0, assigned("s0", "s1")),
        (30.0, released("s1", 1, "node_lost")),
        (60.0, assigned("s1", generation=2, resume_samples=20)),
        lost_s={"s0": 20.0},
    )
    assert said[1:] == [
        (30.0, "RunProgressed", "s1", 60),
        (123.0, "RunStarted", "s1", 20),
        (203.0, "RunFinished", "s1", WORK),
    ]
