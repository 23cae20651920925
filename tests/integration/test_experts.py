"""Mixture-of-experts models through Kafka: trained on two nodes, served, placed where the tokens go."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from executors.lora.default_base import default_base_directory
from infra.demo.demo_environment import MODEL
from infra.demo.experts import serving_workload, training_workload, write_texts
from infra.deployment.deployment_folders import Folders
from schemas.decisions import JobRefunded
from schemas.experts.commands import ExpertsPlaced, RanksAssigned
from schemas.experts.outcomes import PlacementDecided, RanksChanged
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.experts.workload import ExpertsTerms
from schemas.fleet import RunFailed, RunProgressed, RunStarted
from schemas.jobs import JobSubmitted
from schemas.kind import Workload
from tests.integration.deployment import ROOT
from tests.integration.watched_deployment import READY_S, WatchedDeployment, watched

pytestmark = pytest.mark.timeout(600)

CELL, ZONE = "experts", "moe"
CELLS = ROOT / "infra" / "cells" / "moe.yaml"
NODES = {"moe-0", "moe-1"}


@dataclass
class Fleet(WatchedDeployment):
    """Two nodes with a dense model, and texts of two kinds."""

    def submit(self, job_id: str, workload: Workload) -> None:
        self.send(
            JobSubmitted(
                cell=CELL, zone=ZONE, user="ann", job_id=job_id, workload=workload, terms=ExpertsTerms()
            )
        )

    def await_completed(self, job_id: str) -> None:
        self.until(lambda: self.completed(job_id), f"{job_id} is done", READY_S)

    def publish_trained(self, job_id: str) -> None:
        """Put what a job has trained among the models."""
        shutil.copytree(self.folders.adapters / CELL / "ann" / job_id, self.folders.models / job_id)

    def started(self, job_id: str) -> list[RunStarted]:
        return [report for report in self.events(RunStarted) if report.job_id == job_id]

    def routed(self, job_id: str) -> list[ExpertsRouted]:
        return [report for report in self.events(ExpertsRouted) if report.job_id == job_id]


@pytest.fixture(scope="module")
def fleet(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folders = Folders(tmp_path_factory.mktemp("experts"))
    folders.create()
    write_texts(folders.datasets)
    shutil.copytree(default_base_directory(), folders.models / MODEL)
    with watched(Fleet, kafka, CELLS, folders, {"MILLRACE_CHECKPOINT_S": "1"}, executors=2) as fleet:
        yield fleet


def test_model_trained_on_two_nodes_is_served(fleet: Fleet) -> None:
    fleet.submit("short", training_workload(64))
    fleet.await_completed("short")
    assert {each.node for each in fleet.decided(RanksAssigned) if each.job_id == "short"} == NODES
    fleet.publish_trained("short")
    fleet.submit("short-served", serving_workload("short"))
    fleet.await_completed("short-served")
    (done,) = fleet.completed("short-served")
    assert done.samples_done == serving_workload("short").total_samples
    first = next(each for each in fleet.decided(PlacementDecided) if each.job_id == "short-served")
    assert first.reason == "initial"
    assert {each.node for each in fleet.decided(ExpertsPlaced) if each.job_id == "short-served"} == NODES
    fleet.assert_proven()


@pytest.mark.drill
def test_placement_of_trained_model_follows_requests(
    fleet: Fleet,
) -> None:
    fleet.submit("trained", training_workload())
    fleet.await_completed("trained")
    assigned = [each for each in fleet.decided(RanksAssigned) if each.job_id == "trained"]
    assert {each.node for each in assigned} == NODES
    assert all([member.ranks for member in each.members] == [1, 1] for each in assigned)
    losses = [
        report.loss
        for report in fleet.events(RunProgressed)
        if report.job_id == "trained" and report.loss is not None
    ]
    assert losses[-1] < losses[0]
    layers = [layer for report in fleet.routed("trained") for layer in report.layers]
    doubles, pairs = sum(layer.doubles for layer in layers), sum(sum(layer.tokens) for layer in layers)
    assert 0.1 < doubles / (pairs - doubles) < 0.9, "some tokens have one expert, and some two"
    fleet.publish_trained("trained")

    fleet.submit("served", serving_workload("trained"))
    fleet.await_completed("served")
    (done,) = fleet.completed("served")
    assert done.samples_done == serving_workload("trained").total_samples
    assert any(report.job_id == "served" for report in fleet.events(ExpertsProfiled))
    first, *later = (each for each in fleet.decided(PlacementDecided) if each.job_id == "served")
    assert first.reason == "initial"
    assert {each.reason for each in later} == {"popularity_shifted"}
    assert all(
        layer.gain >= 0.05 and layer.load < layer.load_before for each in later for layer in each.layers
    )
    # Every member receives each of them, and the leader serves by them from then on.
    told = [each for each in fleet.decided(ExpertsPlaced) if each.job_id == "served"]
    for decided in (first, *later):
        assert {each.node for each in told if each.revision == decided.revision} == NODES
    reports = fleet.routed("served")
    # Chance may have moved some before, but the requests of the other kind had them follow.
    of_one_kind = [each.revision for each in reports if each.samples_done <= done.samples_done / 2]
    assert max(of_one_kind) < reports[-1].revision <= later[-1].revision
    fleet.assert_proven()


@pytest.mark.drill
def test_impossible_job_is_refunded_and_next_runs(fleet: Fleet) -> None:
    fleet.submit("unknown-model", serving_workload("no-such-model"))
    fleet.submit("dense-model", serving_workload(MODEL))
    fleet.submit("after-them", training_workload(64))
    fleet.await_completed("after-them")
    for job_id in ("unknown-model", "dense-model"):
        fleet.until(
            lambda job_id=job_id: [each for each in fleet.decided(JobRefunded) if each.job_id == job_id],
            f"{job_id} is refunded",
        )
        failed = [report for report in fleet.events(RunFailed) if report.job_id == job_id]
        assert failed
        assert all(report.permanent for report in failed)
    fleet.assert_proven()


@pytest.mark.drill
@pytest.mark.parametrize("victim", ["a rank", "an executor"])
def test_job_resumes_from_checkpoint_after_kills(fleet: Fleet, victim: str) -> None:
    job_id = victim.replace(" ", "-")
    fleet.submit(job_id, training_workload(1_600))
    fleet.until(
        lambda: any(
            report.job_id == job_id and report.samples_done >= 64 for report in fleet.events(RunProgressed)
        ),
        "a checkpoint is reported",
    )
    executor = fleet.deployment.executors[CELL, "moe-1"]
    assert executor.pid is not None
    killed = psutil.Process(executor.pid)
    if victim == "a rank":
        (killed,) = ranks_of(killed)
    killed.kill()
    fleet.await_completed(job_id)
    (done,) = fleet.completed(job_id)
    assert done.samples_done == 1_600
    generations = [each for each in fleet.decided(RanksChanged) if each.job_id == job_id]
    assert max(each.generation for each in generations) >= 2
    resumed = [each for each in fleet.decided(RanksAssigned) if each.job_id == job_id and each.generation > 1]
    assert any(each.resume_samples > 0 for each in resumed)
    fleet.assert_proven()


def ranks_of(executor: psutil.Process) -> list[psutil.Process]:
    """Return the processes that were forked besides an executor, and print to its log."""

    def log(process: psutil.Process) -> Path:
        return Path(f"/proc/{process.pid}/fd/2").readlink()

    return [each for each in executor.parent().children() if each != executor and log(each) == log(executor)]


@pytest.mark.drill
def test_jobs_complete_and_log_verifies_after_kills(fleet: Fleet) -> None:
    deployment = fleet.deployment
    first, second = deployment.executors.values()
    blows = {
        "the leader's executor is killed": (first, signal.SIGKILL, 0.0),
        "a member's executor is killed": (second, signal.SIGKILL, 0.0),
        "the leader's executor stands still": (first, signal.SIGSTOP, 15.0),
        "a member's executor stands still": (second, signal.SIGSTOP, 15.0),
        "the worker is killed": (deployment.worker, signal.SIGKILL, 0.0),
        "the worker stands still": (deployment.worker, signal.SIGSTOP, 30.0),
    }
    fleet.submit("drilled", training_workload(64))
    fleet.await_completed("drilled")
    fleet.publish_trained("drilled")
    for number, (what, (service, blow, still_s)) in enumerate(blows.items()):
        jobs = {
            f"trains-{number}": training_workload(800),
            f"serves-{number}": serving_workload("drilled"),
        }
        for job_id, workload in jobs.items():
            fleet.submit(job_id, workload)
            fleet.until(
                lambda job_id=job_id: fleet.started(job_id), f"{job_id} begins, before {what}", READY_S
            )
            time.sleep(2.0)
            pid = service.pid
            assert pid is not None
            os.kill(pid, blow)
            if still_s:
                time.sleep(still_s)
                os.kill(pid, signal.SIGCONT)
            fleet.await_completed(job_id)
            (done,) = fleet.completed(job_id)
            assert done.samples_done == workload.total_samples
    fleet.assert_proven()
