"""Real fine-tuning through Kafka on a server of four GPUs: two jobs in one run, and a job as a pipeline."""

from collections.abc import Iterator, Mapping

import pytest

from infra.demo.merging import tuning_workload, write_tasks
from infra.deployment.deployment_folders import Folders
from schemas.decisions import JobCompleted
from schemas.jobs import JobSubmitted, JobWithdrawalRequested
from schemas.merging.commands import TaskAssigned
from schemas.merging.outcomes import MergeEvaluated
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from schemas.merging.settings import STAGES_PER_PIPELINE
from schemas.merging.workload import MergingTerms, TuningWorkload
from tests.integration.deployment import ROOT
from tests.integration.watched_deployment import READY_S, WatchedDeployment, watched

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

CELL, ZONE, USER = "tuning", "finetune", "ann"
CELLS = ROOT / "infra" / "cells" / "tuning-modes.yaml"


@pytest.fixture(scope="module")
def fleet(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedDeployment]:
    folders = Folders(tmp_path_factory.mktemp("modes"))
    folders.create()
    write_tasks(folders.datasets)
    with watched(
        WatchedDeployment, kafka, CELLS, folders, {"MILLRACE_CHECKPOINT_S": "2"}, executors=1
    ) as fleet:
        yield fleet


def submit(fleet: WatchedDeployment, jobs: Mapping[str, TuningWorkload]) -> None:
    terms = MergingTerms()
    fleet.send(
        *(
            JobSubmitted(cell=CELL, zone=ZONE, user=USER, job_id=job_id, workload=job, terms=terms)
            for job_id, job in jobs.items()
        )
    )


def complete(fleet: WatchedDeployment, job_id: str) -> JobCompleted:
    fleet.until(lambda: fleet.completed(job_id), f"{job_id} is done", READY_S)
    (done,) = fleet.completed(job_id)
    return done


def modes(fleet: WatchedDeployment, job_id: str) -> list[tuple[str, int]]:
    """Return the mode and the GPUs of each task of a job."""
    return [
        (task.mode, sum(member.gpus for member in task.members))
        for task in fleet.decided(TaskAssigned)
        if job_id in {order.job_id for order in task.orders}
    ]


def test_two_jobs_share_a_run(fleet: WatchedDeployment) -> None:
    jobs = {
        "tables": tuning_workload("code-pages", 150, accuracy=0.1),
        "more-tables": tuning_workload("more-code-pages", 150, accuracy=0.1),
    }
    # Two jobs share a run only if neither has begun, so both kinds are profiled before.
    submit(fleet, {f"first-{job_id}": job for job_id, job in jobs.items()})
    fleet.until(lambda: len(fleet.events(TaskProfiled)) == len(jobs), "both kinds are profiled", READY_S)
    fleet.send(*(JobWithdrawalRequested(cell=CELL, user=USER, job_id=f"first-{job_id}") for job_id in jobs))
    submit(fleet, jobs)
    samples = {complete(fleet, job_id).samples_done for job_id in jobs}
    assert {mode for job_id in jobs for mode, _ in modes(fleet, job_id)} == {"spatial"}
    evaluated = {each.job_id: each for each in fleet.decided(MergeEvaluated)}
    assert {job_id: each.reason for job_id, each in evaluated.items()} == dict.fromkeys(jobs, "finished")
    # A step is an iteration of both, and both are measured together.
    for job_id in jobs:
        evaluations = [each for each in fleet.events(TaskEvaluated) if each.job_id == job_id]
        assert evaluations[-1].accuracy >= 0.1
        assert evaluated[job_id].iterations < evaluated[job_id].iterations_alone
    assert max(samples) < jobs["tables"].total_samples
    fleet.assert_proven()


def test_pipeline_is_profiled_and_trained_on_four(fleet: WatchedDeployment) -> None:
    job = tuning_workload("code-pages", 24).model_copy(update={"pipeline": True})
    submit(fleet, {"deep": job})
    assert complete(fleet, "deep").samples_done == job.total_samples
    assert set(modes(fleet, "deep")) == {("normal", STAGES_PER_PIPELINE)}
    (profiled,) = (each for each in fleet.events(TaskProfiled) if each.job_id == "deep")
    assert {step.gpus for step in profiled.steps} == {STAGES_PER_PIPELINE}
    assert profiled.embedding
    fleet.assert_proven()
