"""A deployment that trains data-parallel jobs on servers that a real lender lends, and what its log says."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from executors.lora.default_base import default_base_directory
from infra.broker import LocalKafka
from infra.demo.demo import write_datasets
from infra.demo.loans import HASTE
from infra.deployment.deployment import Deployment, Layout
from infra.deployment.folders import Folders
from infra.log.publisher import EventPublisher
from infra.log.target import Target
from schemas.base import Event, Outcome
from schemas.codec import decode_decision, decode_event
from schemas.decisions import JobCompleted
from schemas.elastic.outcomes import JobResized
from schemas.elastic.workload import ElasticTerms, ElasticWorkload
from schemas.fleet import NodeOnline, RunProgressed, RunStarted
from schemas.inference import InferenceLoadReported
from schemas.jobs import JobSubmitted
from schemas.kafka_connection import KafkaConnection
from schemas.loans import LoanChanged
from schemas.topics import DECISIONS, LEDGER
from streams.kafka.reader import KafkaReader
from streams.replay.sources import verify_kafka
from tests.integration.deployment import ROOT, until

CELL, TRAINING, SERVING = "loans", "training", "serving"
OWN = "train-0"
CELLS = ROOT / "infra" / "cells" / "loans.yaml"
QUIET, BUSY = 0.0, 0.9
"""Loads at which one of two servers is lent, and none: one is headroom."""
READY_S = 120.0

_Outcome = TypeVar("_Outcome", bound=Outcome)
_Event = TypeVar("_Event", bound=Event)


@dataclass
class Fleet:
    """A deployment whose inference load a thread reports, and what its log says."""

    deployment: Deployment
    load: float = BUSY
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def target(self) -> Target:
        return self.deployment.layout.target

    @property
    def folders(self) -> Folders:
        return self.deployment.layout.folders

    def until(self, question: Callable[[], object], what: str, patience_s: float = READY_S) -> None:
        """Wait until something is so, and start again what has died meanwhile."""

        def answer() -> object:
            self.deployment.keep_running()
            return question()

        until(answer, what, patience_s)

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._report)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _report(self) -> None:
        with EventPublisher(self.target, "tests") as publisher:
            while not self._stop.wait(0.25):
                publisher.publish(
                    InferenceLoadReported(cell=CELL, zone=SERVING, time_s=time.time(), load=self.load)
                )

    def send(self, *events: Event) -> None:
        with EventPublisher(self.target, "tests") as publisher:
            for event in events:
                publisher.publish(event)

    def submit(self, job_id: str, work_samples: int, **workload: Any) -> None:
        """A job of the tiny default model."""
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
            **workload,
        }
        event = JobSubmitted(
            cell=CELL,
            zone=TRAINING,
            user="ann",
            job_id=job_id,
            workload=ElasticWorkload.model_validate(work),
            terms=ElasticTerms(),
        )
        self.send(event)

    def decided(self, kind: type[_Outcome]) -> list[_Outcome]:
        with KafkaReader(self.target.kafka) as reader:
            records = list(reader.read(reader.slice(self.target.topic(DECISIONS))))
        outcomes = (decode_decision(record.value or b"").outcome for record in records)
        return [outcome for outcome in outcomes if isinstance(outcome, kind)]

    def events(self, kind: type[_Event]) -> list[_Event]:
        """Of the ledger."""
        with KafkaReader(self.target.kafka) as reader:
            records = list(reader.read(reader.slice(self.target.topic(LEDGER))))
        events = (decode_event(record.value, record.headers).event for record in records)
        return [event for event in events if isinstance(event, kind)]

    def on_loan(self) -> set[str]:
        latest = {change.server: change.status for change in self.decided(LoanChanged)}
        return {server for server, status in latest.items() if status != "returned"}

    def resizes(self, job_id: str) -> list[JobResized]:
        return [resized for resized in self.decided(JobResized) if resized.job_id == job_id]

    def reasons(self, job_id: str) -> list[str]:
        return [resized.reason for resized in self.resizes(job_id)]

    def starts(self, job_id: str, node: str) -> list[RunStarted]:
        return [run for run in self.events(RunStarted) if (run.job_id, run.node) == (job_id, node)]

    def completed(self, job_id: str) -> list[JobCompleted]:
        return [job for job in self.decided(JobCompleted) if job.job_id == job_id]

    def online(self) -> set[str]:
        return {event.node for event in self.events(NodeOnline)}

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

    def assert_proven(self) -> None:
        def verified() -> bool:
            verdict = verify_kafka(self.target.kafka, self.target.prefix)
            return verdict.ok and verdict.awaited == 0

        until(verified, "the log is what the rules demand")


@contextmanager
def running_fleet(root: Path) -> Iterator[Fleet]:
    """The deployment, all of whose executors are online."""
    folders = Folders(root)
    folders.create()
    write_datasets(folders.datasets, seed=1)
    shutil.copytree(default_base_directory(), folders.models / "tiny-llama")
    with LocalKafka(root / "broker") as broker:
        target = Target(KafkaConnection(bootstrap_servers=broker.bootstrap_servers), "millrace")
        deployment = Deployment(Layout(CELLS, folders, target, settings=HASTE), print)
        with deployment.running():
            fleet = Fleet(deployment)
            fleet.begin()
            try:
                fleet.until(lambda: len(fleet.online()) == 3, "the executors of all servers")
                yield fleet
            finally:
                fleet.end()
