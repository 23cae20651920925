"""A whole deployment with real executors, to be disturbed, and checks of its log."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import yaml

from infra.demo.data import write_datasets
from infra.deployment.deployment import Deployment, DeploymentSpec
from infra.deployment.deployment_folders import Folders
from infra.kafka.local import LocalKafka
from infra.log.publisher import EventPublisher
from infra.log.target import Target
from schemas.auction.bids import BidTerms
from schemas.base import Event, Outcome
from schemas.codec import Decision, decode_decision
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected, NodeStatusChanged
from schemas.jobs import JobSubmitted
from schemas.kafka_connection import KafkaConnection
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload
from schemas.lora_commands import SlotAssigned
from schemas.topics import DECISIONS, topic_name
from streams.kafka.reader import KafkaReader, ReadError
from streams.replay.sources import verify_kafka
from tests.integration.deployment import DEMO_CELLS, until

CELL = "demo"
ZONE = "tiny"
NODES = ("node-a100", "node-a40")
SPEEDS = {"A100": 24.0, "A40": 12.0}
"""Speeds of such tasks, as the cell's file has them."""
HORIZON_SLOTS = 150
READY_S = 120.0
"""Torch and the base model take that long on a busy machine."""

_Outcome = TypeVar("_Outcome", bound=Outcome)


class House:
    """The demo's cell with a long horizon: worker, clock and two executors, on a broker of its own."""

    def __init__(
        self, root: Path, broker: LocalKafka, deployment: Deployment, datasets: list[Dataset]
    ) -> None:
        self.broker = broker
        self.deployment = deployment
        self.target = deployment.spec.target
        self.folders = Folders(root)
        self._datasets = datasets
        self._jobs = 0
        self._decisions: dict[bytes, Decision] = {}
        """Decisions by their bytes, since a worker that was killed leaves repetitions."""
        self._read_until: dict[int, int] = {}
        """By partition, the offset up to which decisions have been read."""
        self._publisher = EventPublisher(self.target, "tests")

    # Doing

    def publish(self, event: Event) -> None:
        """Send an event by a connection that may write its topic."""
        self._publisher.publish(event)

    def workload(self, work_samples: int, gpu_type: str | None = None) -> LoraWorkload:
        """A workload for one type of GPU or for any."""
        return LoraWorkload(
            work_samples=work_samples,
            dataset=self._datasets[self._jobs % len(self._datasets)],
            hyperparameters=LoraHyperparameters(rank=8, batch_size=8, sequence_length=32),
            speed_samples_per_s=None if gpu_type is None else {gpu_type: SPEEDS[gpu_type]},
        )

    def submit(
        self,
        user: str,
        work_samples: int,
        deadline_in_s: float,
        bid_micros: int = 10**12,
        gpu_type: str | None = None,
    ) -> str:
        """Send a bid, for one type of GPU or for any, and return its job's id."""
        self._jobs += 1
        job_id = f"{user}-{self._jobs}"
        self.publish(
            JobSubmitted(
                cell=CELL,
                job_id=job_id,
                user=user,
                zone=ZONE,
                workload=self.workload(work_samples, gpu_type),
                terms=BidTerms(bid_micros=bid_micros, deadline_s=time.time() + deadline_in_s),
            )
        )
        return job_id

    def flush(self) -> None:
        self._publisher.flush()

    def keep_busy(self, jobs: int, work_samples: int, deadline_in_s: float) -> list[str]:
        """Give both nodes work for some slots, and wait until they train."""
        types = itertools.cycle(SPEEDS)
        ids = [
            self.submit("ada", work_samples, deadline_in_s, gpu_type=gpu_type)
            for gpu_type in itertools.islice(types, jobs)
        ]
        self.flush()
        since = time.time()
        until(lambda: self.training_since(since) == set(NODES), "both nodes train")
        return ids

    def await_over(self, jobs: list[str], timeout_s: float) -> None:
        """Wait until jobs are completed or otherwise over."""
        ended = JobCompleted | JobRefunded | JobRejected
        until(lambda: set(jobs) <= {o.job_id for o in self.outcomes(ended)}, "the jobs' ends", timeout_s)

    # Seeing

    def decisions(self) -> list[Decision]:
        """Every decision so far, each once."""

        def read() -> bool:
            try:
                with KafkaReader(self.target.kafka) as reader:
                    whole = reader.slice(topic_name(self.target.prefix, DECISIONS))
                    unread = replace(whole, low={**whole.low, **self._read_until})
                    for record in reader.read(unread):
                        value = record.value or b""
                        if value not in self._decisions:
                            self._decisions[value] = decode_decision(value)
                        self._read_until[record.partition] = record.offset + 1
            except ReadError:
                return False  # the broker is about to be back
            return True

        until(read, "the broker's answer")
        return list(self._decisions.values())

    def outcomes(self, kind: type[_Outcome]) -> list[_Outcome]:
        return [d.outcome for d in self.decisions() if isinstance(d.outcome, kind)]

    def training_since(self, time_s: float) -> set[str]:
        """Return the nodes that have work in a slot that began since then."""
        return {o.node for o in self.outcomes(SlotAssigned) if o.slot_start_s >= time_s}

    def unjust(self, since: int) -> list[Outcome]:
        """Return the decisions from this one on that have no cause: a running node counts as lost, or a job
        is refunded before its deadline."""
        found: list[Outcome] = []
        for decision in self.decisions()[since:]:
            outcome = decision.outcome
            lost = isinstance(outcome, NodeStatusChanged) and outcome.status == "down"
            refunded = isinstance(outcome, JobRefunded) and outcome.reason != "deadline_passed"
            if lost or refunded:
                found.append(outcome)
        return found

    def proven(self) -> bool:
        """Whether the whole log verifies."""
        return verify_kafka(self.target.kafka, self.target.prefix).ok


@contextmanager
def house(root: Path) -> Iterator[House]:
    """Run a house for the length of the block; what dies is started again, as `millrace up` does."""
    folders = Folders(root)
    folders.create()
    document = yaml.safe_load(DEMO_CELLS.read_text())
    document["cells"][0]["zones"][0]["horizon_slots"] = HORIZON_SLOTS
    cells_file = root / "cells.yaml"
    cells_file.write_text(yaml.safe_dump(document))
    datasets = list(write_datasets(folders.datasets, seed=1))
    over = threading.Event()
    with LocalKafka(root / "broker") as broker:
        target = Target(KafkaConnection(bootstrap_servers=broker.bootstrap_servers), "millrace")
        deployment = Deployment(DeploymentSpec(cells_file, folders, target), lambda _line: None)

        def supervise() -> None:
            while not over.wait(0.5):
                for service in deployment.services:
                    service.allow_restart()  # here they die on purpose
                deployment.keep_running()

        with deployment.running():
            supervisor = threading.Thread(target=supervise, daemon=True)
            supervisor.start()
            try:
                living = House(root, broker, deployment, datasets)
                until(lambda: _online(living) == set(NODES), "both executors", READY_S)
                yield living
            finally:
                over.set()
                supervisor.join()


def _online(living: House) -> set[str]:
    """Return the nodes that have reported being online for training."""
    with KafkaReader(living.target.kafka) as reader:
        records = reader.read(reader.slice(living.target.topic("fleet")))
        online = [r for r in records if dict(r.headers).get("ce_type") == b"millrace.node.online.v1"]
    return {node for node in NODES if any(node.encode() in (r.value or b"") for r in online)}


@contextmanager
def stopped(pid: int | None) -> Iterator[None]:
    """Stop a process for the length of the block, as a machine that is suspended does."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def admitted(living: House, jobs: list[str]) -> list[JobAdmitted]:
    """The awards of these jobs."""
    return [o for o in living.outcomes(JobAdmitted) if o.job_id in jobs]
