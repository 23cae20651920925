"""The simulated runner: commands in, reports out."""

from infra.simulation.event_queue import EventQueue, Rank
from infra.simulation.merging.tuner import VirtualTuner
from schemas.base import Event
from schemas.fleet import RunFinished, RunProgressed, RunReport, RunStarted
from schemas.merging.commands import JobOrder, TaskAssigned, TaskMember, TaskReleased, TransferMode
from schemas.merging.reports import TaskEvaluated
from tests.support.merging import CELL, workload

ZONE = "z"


class Nodes:
    """What nodes say of the commands that they get."""

    def __init__(self) -> None:
        self.tuner = VirtualTuner(CELL, 1.0)
        self.queue = EventQueue()
        self.time_s = 0.0

    def tell(self, *commands: TaskAssigned | TaskReleased) -> None:
        for command in commands:
            self.queue.add_all(Rank.REPORT, self.tuner.carry_out(command, self.time_s))

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


def test_a_job_is_evaluated_after_each_epoch_and_done_after_the_last():
    nodes = Nodes()
    nodes.tell(assigned("a"))
    reports = nodes.run(1_000.0)
    assert evaluated(reports) == [("t1.1/a", 100), ("t1.1/a", 200), ("t1.1/a", 300)]
    assert isinstance(reports[0], RunStarted)
    assert isinstance(reports[-1], RunFinished)


def test_a_task_trains_no_more_where_another_has_one_of_its_jobs():
    nodes = Nodes()
    nodes.tell(assigned("a"))
    nodes.run(60.0)
    # The cell has lost n0, and has not heard of its first epoch.
    nodes.tell(assigned("a", task="t2", generation=2, node="n1", resume=50))
    reports = nodes.run(1_000.0)
    assert {report.run_id for report in reports} == {"t2.2/a"}
    assert evaluated(reports) == [("t2.2/a", 200), ("t2.2/a", 300)], "n0 has written a checkpoint"


def test_a_job_that_is_over_says_so_again():
    nodes = Nodes()
    nodes.tell(assigned("a"))
    nodes.run(1_000.0)
    nodes.tell(assigned("a", task="t2", generation=2, resume=200))
    (started, finished) = nodes.run(2_000.0)
    assert isinstance(started, RunStarted)
    assert isinstance(finished, RunFinished)
    assert finished.samples_done == 8 * 300


def test_a_job_of_which_the_cell_knows_nothing_begins_anew():
    nodes = Nodes()
    nodes.tell(assigned("a", "b", mode="spatial"))
    nodes.run(200.0)
    nodes.tell(assigned("a", task="t2", generation=2, node="n1"))
    assert evaluated(nodes.run(200.0 + 60.0)) == [("t2.2/a", 100)]


def test_of_a_merge_that_is_undone_the_receiver_has_nothing_and_the_donor_all():
    nodes = Nodes()
    merged = assigned("a", "b", mode="spatial")
    nodes.tell(merged)
    nodes.run(100.0)
    nodes.tell(released(merged, "b", reason="undone"))
    ends = [report for report in nodes.run(100.0) if isinstance(report, RunProgressed)]
    assert {end.job_id: end.samples_done > 0 for end in ends} == {"a": True, "b": False}
    assert all(end.complete for end in ends)
