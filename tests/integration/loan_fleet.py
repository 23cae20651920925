"""A deployment that trains data-parallel jobs on servers that a real lender lends, and its log."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executors.lora.default_base import default_base_directory
from infra.demo.data import write_datasets
from infra.demo.loans import FAST_LENDER
from infra.deployment.deployment_folders import Folders
from infra.log.publisher import EventPublisher
from schemas.elastic.outcomes import JobResized
from schemas.elastic.workload import ElasticTerms, ElasticWorkload
from schemas.fleet import RunProgressed, RunStarted
from schemas.inference import InferenceLoadReported
from schemas.jobs import JobSubmitted
from schemas.loans import LoanChanged
from tests.integration.deployment import ROOT, until
from tests.integration.watched_deployment import READY_S, WatchedDeployment, watched

CELL, TRAINING, SERVING = "loans", "training", "serving"
OWN = "train-0"
CELLS = ROOT / "infra" / "cells" / "loans.yaml"
QUIET, BUSY = 0.0, 0.9
"""Loads at which one of two servers is lent, and none: one is headroom."""


@dataclass
class Fleet(WatchedDeployment):
    """A deployment whose inference load a thread reports, and its log."""

    load: float = BUSY
    _stop: threading.Event = field(default_factory=threading.Event, init=False)

    def await_completed(self, job_id: str, wait: Callable[..., object] = until) -> None:
        """Wait as long as a job gets on, however slow the machine is."""
        while not self.completed(job_id):
            done = max((run.samples_done for run in self.trained(job_id)), default=0)

            def gets_on(done: int = done) -> bool:
                beyond = any(run.samples_done > done for run in self.trained(job_id))
                return beyond or bool(self.completed(job_id))

            wait(gets_on, f"{job_id} is done, or beyond {done} samples", READY_S)

    def begin(self) -> None:
        super().begin()
        self._thread = threading.Thread(target=self._report)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        super().end()

    def _report(self) -> None:
        with EventPublisher(self.target, "tests") as publisher:
            while not self._stop.wait(0.25):
                publisher.publish(
                    InferenceLoadReported(cell=CELL, zone=SERVING, time_s=time.time(), load=self.load)
                )

    def workload(self, work_samples: int, **fields: Any) -> ElasticWorkload:
        """Training of the tiny default model."""
        work = {
            "work_samples": work_samples,
            "model": "tiny-llama",
            "dataset": {"path": "language.jsonl", "samples": 24},
            "hyperparameters": {
                "global_batch_size": 8,
                "micro_batch_size": 4,
                "sequence_length": 64,
                "learning_rate": 1e-3,
            },
            "samples_per_s": 100.0,
            **fields,
        }
        return ElasticWorkload.model_validate(work)

    def submit(self, job_id: str, work_samples: int, **fields: Any) -> None:
        """Submit a job of `workload`."""
        event = JobSubmitted(
            cell=CELL,
            zone=TRAINING,
            user="ann",
            job_id=job_id,
            workload=self.workload(work_samples, **fields),
            terms=ElasticTerms(),
        )
        self.send(event)

    def on_loan(self) -> set[str]:
        latest = {change.server: change.status for change in self.decided(LoanChanged)}
        return {server for server, status in latest.items() if status != "returned"}

    def resizes(self, job_id: str) -> list[JobResized]:
        return [resized for resized in self.decided(JobResized) if resized.job_id == job_id]

    def reasons(self, job_id: str) -> list[str]:
        return [resized.reason for resized in self.resizes(job_id)]

    def starts(self, job_id: str, node: str) -> list[RunStarted]:
        return [run for run in self.events(RunStarted) if (run.job_id, run.node) == (job_id, node)]

    def trained(self, job_id: str) -> list[RunProgressed]:
        return [run for run in self.events(RunProgressed) if run.job_id == job_id and run.samples_done]

    def losses(self, job_id: str) -> list[float]:
        return [run.loss for run in self.trained(job_id) if run.loss is not None]

    def assert_whole(self, job_id: str, work_samples: int) -> None:
        """A job has done all of its work, and its result is there and better than it was."""
        (job,) = self.completed(job_id)
        assert job.samples_done == work_samples
        result = self.folders.adapters / CELL / "ann" / job_id
        assert (result / "config.json").is_file()
        assert (result / "model.safetensors").stat().st_size > 0
        losses = self.losses(job_id)
        assert losses[-1] < losses[0]


# Two workers are twice as fast on a machine of any load: a sequence takes a tenth of this to compute.
PACED = {"MILLRACE_CHECKPOINT_S": "1", "MILLRACE_LEAST_SEQUENCE_S": "0.02"}


@contextmanager
def running_fleet(bootstrap_servers: str, root: Path) -> Iterator[Fleet]:
    """The deployment, all of whose executors are online."""
    folders = Folders(root)
    folders.create()
    write_datasets(folders.datasets, seed=1)
    shutil.copytree(default_base_directory(), folders.models / "tiny-llama")
    with watched(Fleet, bootstrap_servers, CELLS, folders, {**FAST_LENDER, **PACED}, executors=3) as fleet:
        yield fleet
