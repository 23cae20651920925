"""Every service and every process of theirs is killed at random during each kind of run: every job ends.

`make kills` does so for an hour; the short form is a drill.
"""

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil
import pytest

from executors.lora.default_base import default_base_directory
from infra.demo.data import write_datasets
from infra.demo.demo_cell import CELL_FILE
from infra.demo.demo_environment import MODEL
from infra.demo.experts import serving_workload, training_workload, write_texts
from infra.demo.loans import FAST_LENDER
from infra.demo.merging import tuning_workload, write_tasks
from infra.deployment.deployment_folders import Folders
from infra.log.publisher import PublishError
from schemas.auction.bids import BidTerms
from schemas.decisions import JobCompleted, JobRefunded, JobRejected
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.experts.workload import ExpertsTerms
from schemas.inference import InferenceLoadReported
from schemas.jobs import JobSubmitted
from schemas.kind import Terms, Workload
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload
from schemas.merging.workload import MergingTerms
from schemas.service_base import EXIT_UNFIT
from streams.kafka.reader import ReadError
from tests.integration.deployment import ROOT
from tests.integration.watched_deployment import WatchedDeployment, watched

CELL = "demo"
KILLS_S = float(os.environ.get("MILLRACE_KILLS_S", "40"))
PAUSE_S = (2.0, 8.0)
"""Between two kills, so that runs get somewhere."""
ENDS_S = 420.0
"""From the last kill on, for all jobs to be over on a busy machine."""
LOAD_S = 20.0
"""For so long the inference load is high, and then low, so that a server is lent and taken back."""
SEED = 11
EXECUTORS = 7
MOST_OPEN = {"auction": 2, "elastic": 1, "merging": 2, "training": 1, "serving": 1}

pytestmark = [pytest.mark.drill, pytest.mark.timeout(KILLS_S + ENDS_S + 600.0)]


@dataclass
class Fleet(WatchedDeployment):
    """A zone of each policy, and an inference zone that lends; what dies is started again without a limit."""

    datasets: list[Dataset] = field(default_factory=list)
    unfit: set[str] = field(default_factory=set)
    """Services that ended with the status that asks not to start them again."""
    jobs: dict[str, str] = field(default_factory=dict)
    """The kind of each job that was submitted."""

    def revive(self) -> None:
        for service in self.deployment.services:
            if service.exit_status == EXIT_UNFIT:
                self.unfit.add(service.name)
            service.allow_restart()
        self.deployment.keep_running()

    def over(self) -> set[str]:
        return {outcome.job_id for outcome in self.decided(JobCompleted | JobRefunded | JobRejected)}

    def completed_kinds(self) -> set[str]:
        return {self.jobs[outcome.job_id] for outcome in self.decided(JobCompleted)}

    def submit_missing(self) -> None:
        """Keep jobs of every kind on their way."""
        over = self.over()
        for kind, most in MOST_OPEN.items():
            waiting = [job_id for job_id, of in self.jobs.items() if of == kind and job_id not in over]
            if len(waiting) < most and (kind != "serving" or (self.folders.models / "trained").is_dir()):
                zone, workload, terms = KINDS[kind](self)
                job_id = f"{kind}-{len(self.jobs)}"
                self.jobs[job_id] = kind
                self.send(
                    JobSubmitted(
                        cell=CELL, zone=zone, user="ann", job_id=job_id, workload=workload, terms=terms
                    )
                )
        for done in self.decided(JobCompleted):
            if self.jobs[done.job_id] == "training" and not (self.folders.models / "trained").exists():
                shutil.copytree(
                    self.folders.adapters / CELL / "ann" / done.job_id, self.folders.models / "trained"
                )

    def report_load(self) -> None:
        load = 0.9 if int(time.monotonic() / LOAD_S) % 2 else 0.0
        self.send(InferenceLoadReported(cell=CELL, zone="serving", time_s=time.time(), load=load))


Draw = Callable[[Fleet], tuple[str, Workload, Terms]]


def bid(fleet: Fleet) -> tuple[str, Workload, Terms]:
    workload = LoraWorkload(
        work_samples=48,
        dataset=fleet.datasets[len(fleet.jobs) % len(fleet.datasets)],
        hyperparameters=LoraHyperparameters(rank=8, batch_size=8, sequence_length=32),
    )
    return "tiny", workload, BidTerms(bid_micros=10**12, deadline_s=time.time() + 44.0)


def elastic(fleet: Fleet) -> tuple[str, Workload, Terms]:
    workload = ElasticWorkload(
        work_samples=400,
        model=MODEL,
        dataset=fleet.datasets[0],
        hyperparameters=TrainingHyperparameters(
            global_batch_size=8, micro_batch_size=4, sequence_length=64, learning_rate=1e-3
        ),
        max_workers=2,
        samples_per_s=80.0,
        heterogeneous=True,
    )
    return "training", workload, ElasticTerms()


def tuning(fleet: Fleet) -> tuple[str, Workload, Terms]:
    task = ("code-pages", "more-code-pages")[len(fleet.jobs) % 2]
    return "finetune", tuning_workload(task, most_iterations=40), MergingTerms()


def training(_fleet: Fleet) -> tuple[str, Workload, Terms]:
    return "moe", training_workload(96), ExpertsTerms()


def serving(_fleet: Fleet) -> tuple[str, Workload, Terms]:
    return "moe", serving_workload("trained"), ExpertsTerms()


KINDS: dict[str, Draw] = {
    "auction": bid,
    "elastic": elastic,
    "merging": tuning,
    "training": training,
    "serving": serving,
}


@pytest.fixture
def fleet(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folders = Folders(tmp_path_factory.mktemp("kills"))
    folders.create()
    datasets = list(write_datasets(folders.datasets, seed=1))
    write_tasks(folders.datasets)
    write_texts(folders.datasets)
    shutil.copytree(default_base_directory(), folders.models / MODEL)
    cells = ROOT / "infra" / "cells" / CELL_FILE
    settings = {**FAST_LENDER, "MILLRACE_CHECKPOINT_S": "1"}
    with watched(Fleet, kafka, cells, folders, settings, EXECUTORS) as fleet:
        fleet.datasets = datasets
        yield fleet


def kill_one(fleet: Fleet, chance: random.Random, killed: Sequence[str]) -> str | None:
    """Kill a service, or one of the processes that a service has started: of those that were killed least
    often so far. Return its name; None if no service runs."""
    running = [each for each in fleet.deployment.services if each.pid is not None]
    if not running:
        return None
    counts = Counter(killed)
    fewest = min(counts[each.name] for each in running)
    service = chance.choice([each for each in running if counts[each.name] == fewest])
    assert service.pid is not None
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(service.pid)
        victims = [process, *process.children(recursive=True)]
        # The service as often as all of its children together.
        victim = process if len(victims) == 1 or chance.random() < 0.5 else chance.choice(victims[1:])
        victim.kill()
    return service.name


def test_every_job_ends_however_often_processes_are_killed(fleet: Fleet) -> None:
    chance = random.Random(SEED)
    killed: list[str] = []
    until_s = time.monotonic() + KILLS_S
    next_kill_s = time.monotonic() + PAUSE_S[1]
    while time.monotonic() < until_s:
        fleet.revive()
        with suppress(ReadError, PublishError):
            fleet.submit_missing()
            fleet.report_load()
        if time.monotonic() >= next_kill_s:
            name = kill_one(fleet, chance, killed)
            killed += [name] if name is not None else []
            next_kill_s = time.monotonic() + chance.uniform(*PAUSE_S)
        time.sleep(0.5)

    ends_s = time.monotonic() + ENDS_S
    while (waiting := fleet.jobs.keys() - fleet.over()) and time.monotonic() < ends_s:
        fleet.revive()
        fleet.report_load()
        time.sleep(0.5)

    assert waiting == set(), f"{len(killed)} kills, {len(fleet.jobs)} jobs"
    assert fleet.unfit == set()
    # Two kills may be as far apart as the longest pause.
    enough = 2 * PAUSE_S[1] * len(fleet.deployment.services) <= KILLS_S
    assert not enough or set(killed) >= {service.name for service in fleet.deployment.services}
    assert fleet.completed_kinds() >= KINDS.keys() - {"serving"}
    fleet.assert_proven()
