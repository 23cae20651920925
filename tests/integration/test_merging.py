"""Real fine-tuning through Kafka: jobs that are profiled, merged, and parted where that does not help."""

import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM

from executors.lora.default_base import default_base_directory
from infra.demo.data import pieces, write_task
from infra.demo.merging import tuning_workload, write_tasks
from infra.deployment.deployment_folders import Folders
from schemas.fleet import RunStarted
from schemas.jobs import JobSubmitted
from schemas.merging.commands import TaskAssigned
from schemas.merging.outcomes import MergeEvaluated, TaskChanged
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from schemas.merging.workload import MergingTerms, TuningWorkload
from tests.integration.deployment import ROOT
from tests.integration.watched_deployment import READY_S, WatchedDeployment, watched

pytestmark = pytest.mark.timeout(600)

CELL, ZONE = "tuning", "finetune"
CELLS = ROOT / "infra" / "cells" / "tuning.yaml"


@pytest.fixture(scope="module")
def fleet(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedDeployment]:
    folders = Folders(tmp_path_factory.mktemp("merging"))
    folders.create()
    write_tasks(folders.datasets)
    programs = pieces(("asyncio/*.py", "unittest/*.py"), seed=2)
    write_task(folders.datasets, "programs", programs[:300], held_back=60)
    with watched(
        WatchedDeployment, kafka, CELLS, folders, {"MILLRACE_CHECKPOINT_S": "2"}, executors=1
    ) as fleet:
        yield fleet


def submitted(job_id: str, workload: TuningWorkload, user: str = "ann") -> JobSubmitted:
    return JobSubmitted(
        cell=CELL, zone=ZONE, user=user, job_id=job_id, workload=workload, terms=MergingTerms()
    )


def test_merged_jobs_are_both_completed(fleet: WatchedDeployment) -> None:
    jobs = {
        "teacher": tuning_workload("code-pages", 120),
        "learner": tuning_workload("more-code-pages", 240, accuracy=0.2),
    }
    fleet.send(*(submitted(job_id, workload) for job_id, workload in jobs.items()))
    for job_id in jobs:
        fleet.until(lambda job_id=job_id: fleet.completed(job_id), f"{job_id} is done", READY_S)
    (evaluated,) = fleet.decided(MergeEvaluated)
    assert (evaluated.job_id, evaluated.partner, evaluated.reason) == ("learner", "teacher", "finished")
    assert evaluated.iterations < evaluated.iterations_alone
    accuracy = {each.job_id: each.accuracy for each in fleet.events(TaskEvaluated) if each.phase == "own"}
    assert accuracy["learner"] >= 0.2
    fleet.assert_proven()


def sources(fleet: WatchedDeployment, job_id: str) -> list[str]:
    """Return the finished jobs whose adapters a job was ordered to start from."""
    orders = (order for task in fleet.decided(TaskAssigned) for order in task.orders)
    return [
        order.starts_from.job_id
        for order in orders
        if order.job_id == job_id and order.starts_from is not None
    ]


def test_only_adapter_with_leave_is_donor(fleet: WatchedDeployment) -> None:
    donor = tuning_workload("code-pages", 120)
    reader = tuning_workload("more-code-pages", 240, accuracy=0.2)
    jobs = (
        submitted("private", donor, "ann"),
        submitted("reader-of-none", reader, "bob"),
        submitted("lent", donor.model_copy(update={"reusable": True}), "ann"),
        submitted("reader-of-lent", reader, "bob"),
    )
    # One after another, so that no two could be merged in a plan.
    for job in jobs:
        fleet.send(job)
        fleet.until(lambda job_id=job.job_id: fleet.completed(job_id), f"{job.job_id} is done", READY_S)
    assert {job.job_id: sources(fleet, job.job_id) for job in jobs} == {
        "private": [],
        "reader-of-none": [],
        "lent": [],
        "reader-of-lent": ["lent"],
    }
    (evaluated,) = (each for each in fleet.decided(MergeEvaluated) if each.job_id == "reader-of-lent")
    assert (evaluated.partner, evaluated.reason) == ("lent", "finished")
    assert evaluated.iterations < evaluated.iterations_alone
    fleet.assert_proven()


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_four_jobs_complete_despite_undone_merge(fleet: WatchedDeployment) -> None:
    jobs = {
        # They end after all their iterations, so that no donor can help them.
        "tables": tuning_workload("code-pages", 240),
        "same-tables": tuning_workload("code-pages", 242),
        "related": tuning_workload("more-code-pages", 300, accuracy=0.2),
        # On related data, but measured on programs, at which tables make it worse.
        "misled": tuning_workload("more-code-pages", 320, accuracy=0.9, validation="programs"),
    }
    # The one that is misled comes later, since it may itself be taken for a good teacher.
    for first, second in (("related", "tables"), ("misled", "same-tables")):
        fleet.send(submitted(first, jobs[first]), submitted(second, jobs[second]))
        for job_id in (first, second):
            fleet.until(lambda job_id=job_id: fleet.completed(job_id), f"{job_id} is done", 5 * READY_S)
    evaluated = {each.job_id: each for each in fleet.decided(MergeEvaluated)}
    assert {job_id: each.reason for job_id, each in evaluated.items()} == {
        "related": "finished",
        "misled": "undone",
    }
    # Equal data and hyperparameters are profiled once.
    assert len(fleet.events(TaskProfiled)) == 3
    finished = evaluated["related"]
    assert finished.iterations < finished.iterations_alone
    accuracy = {each.job_id: each.accuracy for each in fleet.events(TaskEvaluated) if each.phase == "own"}
    assert accuracy["related"] >= 0.2
    # The receiver whose merge harmed restarts alone, and no iteration of the merge counts.
    (alone,) = (
        order
        for task in fleet.decided(TaskAssigned)
        for order in task.orders
        if order.job_id == "misled" and task.mode == "normal" and order.resume_iterations == 0
    )
    assert any(each.run_id == alone.run_id for each in fleet.events(TaskEvaluated))
    for job_id, workload in jobs.items():
        (done,) = fleet.completed(job_id)
        if job_id != "related":
            assert done.samples_done == workload.total_samples
    # Generations of a job rise, whichever task it is in.
    for job_id in jobs:
        generations = [
            task.generation
            for task in fleet.decided(TaskAssigned)
            if job_id in {order.job_id for order in task.orders}
        ]
        assert all(earlier < later for earlier, later in pairwise(generations))
    assert any(change.reason == "undone" for change in fleet.decided(TaskChanged))
    fleet.assert_proven()
    base = AutoModelForCausalLM.from_pretrained(default_base_directory())
    for job_id in jobs:
        folder = fleet.folders.adapters / CELL / "ann" / job_id
        model = PeftModel.from_pretrained(base, str(folder))
        weights = [each for name, each in model.named_parameters() if "lora_B" in name]
        assert weights
        assert any(each.abs().max() > 0 for each in weights)
        base = model.unload()


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_jobs_complete_and_log_verifies_after_kills(
    fleet: WatchedDeployment,
) -> None:
    deployment = fleet.deployment
    (executor,), (solver,) = deployment.executors.values(), deployment.solvers
    blows = {
        "the executor is killed": (executor, signal.SIGKILL, 0.0),
        "the executor stands still for longer than its node's timeout": (executor, signal.SIGSTOP, 15.0),
        "the solver is killed": (solver, signal.SIGKILL, 0.0),
        "the solver stands still": (solver, signal.SIGSTOP, 10.0),
        "the worker is killed": (deployment.worker, signal.SIGKILL, 0.0),
        "the worker stands still": (deployment.worker, signal.SIGSTOP, 10.0),
    }
    for number, (what, (service, blow, still_s)) in enumerate(blows.items()):
        jobs = {
            f"tables-{number}": tuning_workload("code-pages", 120),
            f"related-{number}": tuning_workload("more-code-pages", 150, accuracy=0.9),
        }
        fleet.send(*(submitted(job_id, workload) for job_id, workload in jobs.items()))
        started = f"tables-{number}"
        fleet.until(
            lambda started=started: [each for each in fleet.events(TaskEvaluated) if each.job_id == started],
            f"{started} trains, before {what}",
            READY_S,
        )
        pid = service.pid
        assert pid is not None
        os.kill(pid, blow)
        if still_s:
            time.sleep(still_s)
            os.kill(pid, signal.SIGCONT)
        for job_id, workload in jobs.items():
            fleet.until(lambda job_id=job_id: fleet.completed(job_id), f"{job_id} is done: {what}", READY_S)
            (done,) = fleet.completed(job_id)
            assert done.samples_done == workload.total_samples
    fleet.assert_proven()


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_job_completes_after_node_loss_during_profile(
    fleet: WatchedDeployment,
) -> None:
    (executor,) = fleet.deployment.executors.values()
    fleet.send(submitted("profiled-twice", tuning_workload("code-pages", 41, rank=4)))
    run_id = "/profiled-twice"
    fleet.until(
        lambda: [each for each in fleet.events(RunStarted) if each.run_id.endswith(run_id)],
        "the profile run has begun",
        READY_S,
    )
    assert not [each for each in fleet.events(TaskProfiled) if each.job_id == "profiled-twice"]
    assert executor.pid is not None
    os.kill(executor.pid, signal.SIGKILL)
    # Nothing starts it again before the zone, whose only GPU it has, has ordered the next profile run there.
    fleet.send(submitted("ordered-before", tuning_workload("more-code-pages", 42, rank=4)))
    for job_id in ("profiled-twice", "ordered-before"):
        fleet.until(lambda job_id=job_id: fleet.completed(job_id), f"{job_id} is done", 2 * READY_S)
    fleet.assert_proven()
