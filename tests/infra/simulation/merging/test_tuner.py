"""The simulated runner: commands in, reports out."""

from typing import Any

from infra.simulation.event_queue import EventQueue, EventRank
from infra.simulation.merging.truth import Truth
from infra.simulation.merging.tuner import VirtualTuner
from schemas.base import Event
from schemas.fleet import RunFinished, RunProgressed, RunReport, RunStarted
from schemas.merging.commands import (
    JobOrder,
    ProfileOrdered,
    TaskAssigned,
    TaskMember,
    TaskReleased,
    TransferMode,
)
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from tests.support.merging import CELL, workload

ZONE = "z"


class Nodes:
    """Nodes' reports to the commands that they get."""

    def __init__(self, release_s: float = 0.0) -> None:
        self.tuner = VirtualTuner(CELL, 1.0, release_s=release_s)
        self.queue = EventQueue()
        self.time_s = 0.0

    def send(self, *commands: TaskAssigned | TaskReleased) -> None:
        for command in commands:
            self.queue.add_all(EventRank.REPORT, self.tuner.carry_out(command, self.time_s))

    def run(self, until_s: float) -> list[RunReport]:
        reports: list[Event] = []
        while (due := self.queue.pop(until_s)) is not None:
            reports.append(due[1])
        self.time_s = until_s
        return [report for report in reports if isinstance(report, RunReport)]


def assigned(
    *job_ids: str,
    task: str = "t1",
    generation: int = 1,
    node: str = "n0",
    mode: TransferMode = "normal",
    resume: int = 0,
) -> TaskAssigned:
    orders = tuple(
        JobOrder(
            run_id=f"{task}.{generation}/{job_id}",
            job_id=job_id,
            user="ann",
            workload=workload(job_id, epochs=3, accuracy=None),
            resume_iterations=resume,
        )
        for job_id in job_ids
    )
    return TaskAssigned(
        zone=ZONE,
        node=node,
        task_id=task,
        generation=generation,
        mode=mode,
        orders=orders,
        members=(TaskMember(node=node, gpus=1),),
    )


def released(command: TaskAssigned, *about: str, reason: str = "reallocated") -> TaskReleased:
    return TaskReleased(
        zone=ZONE,
        node=command.node,
        task_id=command.task_id,
        generation=command.generation,
        job_ids=about or tuple(order.job_id for order in command.orders),
        reason=reason,
    )


def evaluated(reports: list[RunReport]) -> list[tuple[str, int]]:
    return [(each.run_id, each.iterations) for each in reports if isinstance(each, TaskEvaluated)]


def test_job_is_evaluated_per_epoch_until_done():
    nodes = Nodes()
    nodes.send(assigned("a"))
    reports = nodes.run(1_000.0)
    assert evaluated(reports) == [("t1.1/a", 100), ("t1.1/a", 200), ("t1.1/a", 300)]
    assert isinstance(reports[0], RunStarted)
    assert isinstance(reports[-1], RunFinished)


def test_job_ends_at_last_iteration_within_epoch():
    nodes, command = Nodes(), assigned("a")
    (order,) = command.orders
    target = order.workload.target.model_copy(update={"most_iterations": 150})
    shorter = order.model_copy(update={"workload": order.workload.model_copy(update={"target": target})})
    nodes.send(assigned("b", task="t2", node="n1"), command.model_copy(update={"orders": (shorter,)}))
    nodes.run(35.0)
    reports = nodes.run(1_000.0)
    assert evaluated(reports)[-3:] != [], "the other job goes on"
    ends = {each.job_id: each.samples_done for each in reports if isinstance(each, RunFinished)}
    assert ends == {"a": 150 * 8, "b": 300 * 8}


def test_released_task_reports_its_end_later():
    nodes, command = Nodes(release_s=4.0), assigned("a")
    nodes.send(command)
    nodes.run(52.0)
    nodes.send(released(command))
    assert nodes.run(55.9) == []
    (end,) = nodes.run(1_000.0)
    assert isinstance(end, RunProgressed)
    assert end.complete
    assert 0 < end.samples_done < 52 / 0.2 * 8, "of the time before the command"


def profiled(
    iterations: int, limit_s: float = 60.0, truth: Truth | None = None, **fields: Any
) -> TaskProfiled:
    """Return the profile of a job with a hundred steps in an epoch."""
    order = JobOrder(run_id="p1", job_id="a", user="ann", workload=workload(**fields), resume_iterations=0)
    command = ProfileOrdered(
        zone=ZONE, node="n0", order=order, gpus=1, iterations=iterations, limit_s=limit_s, fisher_samples=8
    )
    ((_, report),) = VirtualTuner(CELL, 1.0, truth).carry_out(command, 0.0)
    assert isinstance(report, TaskProfiled)
    return report


def test_profile_run_of_epoch_reports_its_accuracy():
    nodes = Nodes()
    nodes.send(assigned("a"))
    first = next(each for each in nodes.run(1_000.0) if isinstance(each, TaskEvaluated))
    assert profiled(100, epochs=3, accuracy=None).accuracy_after_epoch == first.accuracy
    assert profiled(150, epochs=3, accuracy=None).accuracy_after_epoch == first.accuracy


def test_a_shorter_profile_run_does_not():
    assert profiled(99).accuracy_after_epoch is None
    assert profiled(100, limit_s=15.0).accuracy_after_epoch is None, "a step takes 0.2 s"
    assert profiled(100, validation_path=None, accuracy=None, sharing=False).accuracy_after_epoch is None


def test_task_stops_when_another_has_its_job():
    nodes = Nodes()
    nodes.send(assigned("a"))
    nodes.run(60.0)
    # The cell has lost n0, and has not received its first epoch.
    nodes.send(assigned("a", task="t2", generation=2, node="n1", resume=50))
    reports = nodes.run(1_000.0)
    assert {report.run_id for report in reports} == {"t2.2/a"}
    assert evaluated(reports) == [("t2.2/a", 200), ("t2.2/a", 300)], "n0 has written a checkpoint"


def test_ended_job_is_reported_again():
    nodes = Nodes()
    nodes.send(assigned("a"))
    nodes.run(1_000.0)
    nodes.send(assigned("a", task="t2", generation=2, resume=200))
    (started, finished) = nodes.run(2_000.0)
    assert isinstance(started, RunStarted)
    assert isinstance(finished, RunFinished)
    assert finished.samples_done == 8 * 300


def test_unknown_job_starts_without_progress():
    nodes = Nodes()
    nodes.send(assigned("a", "b", mode="spatial"))
    nodes.run(200.0)
    nodes.send(assigned("a", task="t2", generation=2, node="n1"))
    assert evaluated(nodes.run(200.0 + 60.0)) == [("t2.2/a", 100)]


def test_undone_merge_resets_receiver_and_keeps_donor():
    nodes = Nodes()
    merged = assigned("a", "b", mode="spatial")
    nodes.send(merged)
    nodes.run(100.0)
    nodes.send(released(merged, "b", reason="undone"))
    ends = [report for report in nodes.run(100.0) if isinstance(report, RunProgressed)]
    assert {end.job_id: end.samples_done > 0 for end in ends} == {"a": True, "b": False}
    assert all(end.complete for end in ends)
