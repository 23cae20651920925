"""A deployment that trains data-parallel jobs on servers that a real lender lends, and what its log says."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from streams.kafka.records import ReadRecord
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


_until = until  # the class below has a method of the same name


class Records:
    """The records of a topic, each read once, so that asking often takes little from training."""

    def __init__(self, target: Target, topic: str) -> None:
        self._reader = KafkaReader(target.kafka)
        self._topic = target.topic(topic)
        self._next: dict[int, int] = {}

    def new(self) -> list[ReadRecord]:
        """Those that have come since the last call."""
        part = self._reader.slice(self._topic)
        records = list(self._reader.read(replace(part, low={**part.low, **self._next})))
        self._next = dict(part.high)
        return records

    def close(self) -> None:
        self._reader.__exit__(None, None, None)


@dataclass
class Fleet:
    """A deployment whose inference load a thread reports, and what its log says."""

    deployment: Deployment
    load: float = BUSY
    _stop: threading.Event = field(default_factory=threading.Event)
    _outcomes: list[Outcome] = field(default_factory=list)
    _ledger: list[Event] = field(default_factory=list)

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

    def await_completed(self, job_id: str, wait: Callable[..., object] = _until) -> None:
        """Wait as long as a job gets on, however slow the machine is."""
        while not self.completed(job_id):
            done = max((run.samples_done for run in self.trained(job_id)), default=0)

            def gets_on(done: int = done) -> bool:
                beyond = any(run.samples_done > done for run in self.trained(job_id))
                return beyond or bool(self.completed(job_id))

            wait(gets_on, f"{job_id} is done, or beyond {done} samples", READY_S)

    def begin(self) -> None:
        self._decision_records = Records(self.target, DECISIONS)
        self._ledger_records = Records(self.target, LEDGER)
        self._thread = threading.Thread(target=self._report)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._decision_records.close()
        self._ledger_records.close()

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
        new = self._decision_records.new()
        self._outcomes += [decode_decision(record.value or b"").outcome for record in new]
        return [outcome for outcome in self._outcomes if isinstance(outcome, kind)]

    def events(self, kind: type[_Event]) -> list[_Event]:
        """Of the ledger."""
        new = self._ledger_records.new()
        self._ledger += [decode_event(record.value, record.headers).event for record in new]
        return [event for event in self._ledger if isinstance(event, kind)]

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
