"""A task that was switched for others, however often, comes to the same bits as one that was not."""

from pathlib import Path

import pytest

from schemas.fleet import RunFinished
from schemas.merging.commands import JobOrder, TaskAssigned
from tests.support.examples import long
from tests.support.tuner_nodes import Fleet, assigned, order, released, workload
from tests.support.tuner_tasks import LoneWorker, reports_of

_DROPOUT = {"hyperparameters": {"dropout": 0.2}}


def job(job_id: str, generation: int = 1, done: int = 0) -> JobOrder:
    return order(job_id, workload(20, **_DROPOUT), generation, resume_iterations=done)


def other(job_id: str, generation: int = 1, done: int = 0) -> JobOrder:
    return order(job_id, workload(15, dataset="other.jsonl"), generation, resume_iterations=done)


def digest(reports: list, job_id: str) -> str:
    (finished,) = reports_of(reports, RunFinished, job_id)
    return str(finished.adapter_digest)


def test_weights_are_the_same_to_the_bit(worker: LoneWorker) -> None:
    undisturbed = digest(worker.run(assigned("n1", job("a"))), "a")
    beside = digest(worker.run(assigned("n1", other("b"))), "b")
    # Each next task is opened, and trains, while the one before is still being written.
    done = [0, 0]
    for generation, steps in ((1, (7, 4)), (2, (1, 6)), (3, (5, 2))):
        worker.run(
            assigned("n1", job("c", generation, done[0]), generation=generation), steps[0], settle=False
        )
        worker.run(assigned("n1", other("d", generation, done[1]), generation=generation), steps[1])
        done = [done[0] + steps[0], done[1] + steps[1]]
    assert digest(worker.run(assigned("n1", job("c", 4, 13), generation=4)), "c") == undisturbed
    assert digest(worker.run(assigned("n1", other("d", 4, 12), generation=4)), "d") == beside


@pytest.mark.parametrize("steps", [3, *long(11)])
def test_a_shared_run_goes_on_as_one(worker: LoneWorker, steps: int) -> None:
    def task(jobs: tuple[str, str], generation: int, done: int) -> TaskAssigned:
        orders = job(jobs[0], generation, done), other(jobs[1], generation, min(done, 15))
        return assigned("n1", *orders, mode="spatial", generation=generation)

    whole = worker.run(task(("a", "b"), 1, 0))
    worker.run(task(("c", "d"), 1, 0), steps)
    parts = worker.run(task(("c", "d"), 2, steps))
    assert digest(parts, "c") == digest(whole, "a")
    assert digest(parts, "d") == digest(whole, "b")


@pytest.mark.parametrize("steps", [5, *long(20, 26)])
def test_chain_resumes_from_donor_or_receiver(worker: LoneWorker, steps: int) -> None:
    def task(jobs: tuple[str, str], generation: int, done: int) -> TaskAssigned:
        orders = job(jobs[0], generation, min(done, 20)), other(jobs[1], generation, max(done - 20, 0))
        return assigned("n1", *orders, mode="temporal", generation=generation)

    whole = worker.run(task(("a", "b"), 1, 0))
    before = worker.run(task(("c", "d"), 1, 0), steps)
    after = worker.run(task(("c", "d"), 2, steps))
    assert digest(after, "d") == digest(whole, "b")
    # A donor that is over is reported again.
    assert {digest(each, "c") for each in (before, after) if reports_of(each, RunFinished, "c")} == {
        digest(whole, "a")
    }


def test_workers_keep_base_model_between_tasks(fleet: Fleet) -> None:
    pids = fleet.nodes["n1"].runner.pids
    work = workload(400)
    fleet.assign(order("a", work))
    fleet.until(lambda: "n1 a/1 run.started 0" in fleet.short_reports())
    fleet.send(released("n1", "a"))
    fleet.assign(order("b", workload(6)), members=(("n1", 2),))
    fleet.until_over("a/1", "b/1")
    assert fleet.nodes["n1"].runner.pids == pids
    (newest,) = fleet.checkpoints("a")
    done = int(newest.partition("-")[2]) // 6
    assert f"n1 a/1 run.progressed {6 * done} complete" in fleet.short_reports("a")
    assert 0 < done < 400


def test_task_on_other_gpus_resumes_last_step(fleet: Fleet, tmp_path: Path) -> None:
    fleet.assign(order("a", workload(150)))
    fleet.until(lambda: len(fleet.short_reports("a")) > 3)
    fleet.assign(order("a", workload(150), 2, 1), generation=2, members=(("n1", 2),))
    fleet.until_over("a/2")
    (ended,) = fleet.ends("a/1")
    assert ended.samples_done > 0
    assert f"n1 a/2 run.started {ended.samples_done}" in fleet.short_reports("a")
    (finished,) = fleet.reports(RunFinished)
    assert (finished.run_id, finished.samples_done) == ("a/2", 900)


def test_checkpoint_describes_its_job(worker: LoneWorker) -> None:
    worker.run(assigned("n1", job("a"), other("b"), mode="spatial"), 4)
    progress = [worker.files.about(worker.files.newest(job_id)) for job_id in ("a", "b")]
    assert [each.position.iterations for each in progress] == [4, 4]
    assert sum(each.position.drawn for each in progress) == 48
    assert progress[0].beside == progress[1].position
    assert [each.partner for each in progress] == ["b", "a"]
