"""Deployments for tests: topics, cells, workers as processes, producers and readers; or `millrace up`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from infra.topics import ensure_topics
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.codec import Envelope
from schemas.kafka_connection import KafkaConnection
from schemas.registry import TOPIC_BY_EVENT
from schemas.topics import DECISIONS, LEDGER, RULES_STATES, topic_name, topics
from streams.cell.rules import RULES, RuleBook
from streams.kafka.reader import KafkaReader, ReadError
from streams.kafka.records import ReadRecord
from streams.replay.replay import Verdict
from streams.replay.sources import ReplayError, verify_kafka
from tests.streams import events as small

ROOT = Path(__file__).parents[2]
DEMO_CELLS = ROOT / "infra" / "cells" / "demo.yaml"
TIMEOUT_S = 60.0
UP_TIMEOUT_S = 120.0
"""For all parts of a deployment to come up, or to stop."""
GROUP = "cells"
REPLAYED = (LEDGER, DECISIONS, RULES_STATES)


def demo_bid(job_id: str, units: float | str, **workload: Any) -> dict[str, Any]:
    """A bid for the zone of the demo's cell, as a file of bids has it."""
    return {
        "cell": "demo",
        "user": "ann",
        "job_id": job_id,
        "zone": "tiny",
        "workload": {
            "kind": "lora",
            "work_samples": 96,
            "dataset": {"path": "d.jsonl", "samples": 100},
            "hyperparameters": {"rank": 8, "batch_size": 8, "sequence_length": 32},
            **workload,
        },
        "terms": {"kind": "bid", "bid": units, "deadline_in_s": 40},
    }


def bids_file(path: Path, *bids: dict[str, Any]) -> str:
    """Write a file of bids and return its name."""
    # JSON is YAML, and has no aliases.
    path.write_text(json.dumps(bids))
    return str(path)


_Answer = TypeVar("_Answer")


def until(question: Callable[[], _Answer], what: str, timeout_s: float = TIMEOUT_S) -> _Answer:
    """Ask until the answer is true.

    Raises:
        AssertionError: if it never is.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


class Worker:
    """A worker process, or that of another service."""

    def __init__(self, environment: dict[str, str], log: Path, module: str = "streams.worker") -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel would."""
        self._process.kill()
        self._process.wait()


class Up:
    """`millrace up` as a process."""

    def __init__(self, log: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "infra.cli", "up", *arguments],
                cwd=ROOT,
                env=environment,
                stdout=file,
                stderr=file,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def await_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.output
            return "Ctrl-C stops" in self.output

        until(ready, "the deployment is up", UP_TIMEOUT_S)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(UP_TIMEOUT_S)


class Deployment:
    """Topics under one prefix, the cells that they serve, and the workers started on them."""

    def __init__(
        self,
        bootstrap_servers: str,
        prefix: str,
        directory: Path,
        cells: Iterable[str],
        partitions: int = 2,
        configuration: Callable[[str], CellConfigured] = small.configuration,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.kafka = KafkaConnection(bootstrap_servers=bootstrap_servers)
        self.prefix = prefix
        self._directory = directory
        self._configuration = configuration
        self._sent: list[str] = []
        self._workers: list[Worker] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "log_level": 0,
            }
        )
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        configurations = [configuration(cell).model_dump(mode="json") for cell in cells]
        (directory / "cells.yaml").write_text(yaml.safe_dump({"cells": configurations}))
        ensure_topics(self.kafka, topics(prefix, partitions, command_partitions=partitions))

    def topic(self, name: str) -> str:
        return topic_name(self.prefix, name)

    def start_worker(self, module: str = "streams.worker", **settings: object) -> Worker:
        environment = {
            "bootstrap_servers": self.bootstrap_servers,
            "topic_prefix": self.prefix,
            "cells_file": self._directory / "cells.yaml",
            "data_dir": self._directory / "data",
            "worker_group": GROUP,
            "snapshot_every_events": 50,
            "snapshot_every_s": 1,
            "session_timeout_s": 6,
            **settings,
        }
        worker = Worker(
            {f"MILLRACE_{name.upper()}": str(value) for name, value in environment.items()},
            self._directory / f"worker-{len(self._workers)}.log",
            module,
        )
        self._workers.append(worker)
        return worker

    def start_solver(self, **settings: object) -> Worker:
        """Start a solver; `stop_workers` kills it as well."""
        environment = {
            "bootstrap_servers": self.bootstrap_servers,
            "topic_prefix": self.prefix,
            **settings,
        }
        solver = Worker(
            {f"MILLRACE_{name.upper()}": str(value) for name, value in environment.items()},
            self._directory / f"solver-{len(self._workers)}.log",
            "streams.solver",
        )
        self._workers.append(solver)
        return solver

    def rewind(self, group: str, topic: str) -> None:
        """Set a group, which has no members now, back to the beginning of a topic."""
        with KafkaReader(self.kafka) as reader:
            partitions = reader.slice(self.topic(topic)).low
        places = [TopicPartition(self.topic(topic), partition, low) for partition, low in partitions.items()]
        name = f"{self.prefix}.{group}"

        def deserted() -> bool:
            found = self._admin.describe_consumer_groups([name])[name].result(TIMEOUT_S)
            return found.state in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)

        until(deserted, f"group {name} without members")
        request = ConsumerGroupTopicPartitions(name, places)
        next(iter(self._admin.alter_consumer_group_offsets([request]).values())).result(TIMEOUT_S)

    def stop_workers(self) -> None:
        for worker in self._workers:
            if worker.running:
                worker.kill()

    def send(self, events: Iterable[Event], name: str = "e", partition: int = -1) -> list[str]:
        """Send each event to the topic it belongs on, by default to its cell's partition; return the ids, in
        order."""
        ids = []
        for event in events:
            id = f"{name}{len(self._sent)}"
            envelope = Envelope(id, "tests", "", event)
            self._sent.append(id)
            ids.append(id)
            self.send_raw(
                TOPIC_BY_EVENT[type(event)],
                envelope.value,
                envelope.headers(),
                event.cell.encode(),
                partition,
            )
        self._producer.flush()
        return ids

    def send_raw(
        self,
        topic: str,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        key: bytes | None = None,
        partition: int = -1,
    ) -> None:
        self._producer.produce(self.topic(topic), value, key=key, headers=list(headers), partition=partition)

    def configure(self, *cells: str) -> None:
        """Send the cells' configurations and wait until they are in the ledger, ahead of all else."""
        wanted = set(self.send([self._configuration(cell) for cell in cells]))
        until(lambda: wanted <= self.entered_ms().keys(), "the configurations in the ledger")

    def records(self, topic: str) -> list[ReadRecord]:
        with KafkaReader(self.kafka) as reader:
            return list(reader.read(reader.slice(self.topic(topic))))

    def count(self, topic: str) -> int:
        """Return the number of records of a topic."""
        return len(self.records(topic))

    def entered_ms(self) -> dict[str, int]:
        """When each event came into the ledger, by id; of one that is repeated, the last time."""
        ids = ((dict(record.headers).get("ce_id"), record.timestamp_ms) for record in self.records(LEDGER))
        return {id.decode(): at_ms for id, at_ms in ids if id is not None and at_ms is not None}

    def proven(self, timeout_s: float = TIMEOUT_S, book: RuleBook = RULES) -> Verdict:
        """Wait until everything sent is in the ledger and decided, byte by byte as an undisturbed fold would.

        Raises:
            AssertionError: if an event is lost, or a decision missing or another.
        """
        verdict: list[Verdict] = []
        lengths: list[int] = []
        replayed: list[int] = []

        def complete() -> bool:
            try:
                # A replay takes time from the worker: the log is replayed when it has come to rest, and once.
                before, lengths[:] = lengths[:], [self.count(topic) for topic in REPLAYED]
                if lengths != before or lengths == replayed:
                    return False
                # In this order: what is replayed must hold all that was found in the ledger.
                all_arrived = set(self._sent) <= self.entered_ms().keys()
                verdict[:] = [verify_kafka(self.kafka, self.prefix, book=book)]
                replayed[:] = lengths
            except (ReadError, ReplayError):
                return False  # the broker is being restarted
            return all_arrived and verdict[0].ok and verdict[0].awaited == 0

        try:
            until(complete, "every event in the ledger, and decided as the rules demand", timeout_s)
        except AssertionError:
            missing = sorted(set(self._sent) - self.entered_ms().keys())
            outputs = [worker.output[-2_000:] for worker in self._workers]
            raise AssertionError(
                f"not in the ledger: {missing[:5]} ({len(missing)}); "
                f"first difference: {verdict and verdict[0].first}; workers: {outputs}"
            ) from None
        return verdict[0]

    def await_members(self, count: int, group_name: str = GROUP) -> None:
        """Wait until the group has `count` members and all partitions are assigned."""
        group = f"{self.prefix}.{group_name}"

        def settled() -> bool:
            answer = self._admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
            assigned = all(member.assignment.topic_partitions for member in answer.members)
            return answer.state == ConsumerGroupState.STABLE and len(answer.members) == count and assigned

        until(settled, f"{count} members of {group} with partitions")

    def committed_lag(self) -> int:
        """Ledger events that are not acknowledged."""
        records = self.records(LEDGER)
        partitions = sorted({record.partition for record in records})
        places = [TopicPartition(self.topic(LEDGER), partition) for partition in partitions]
        if not places:
            return 0
        request = ConsumerGroupTopicPartitions(f"{self.prefix}.{GROUP}", places)
        answer = next(iter(self._admin.list_consumer_group_offsets([request]).values())).result(TIMEOUT_S)
        committed = {place.partition: place.offset for place in answer.topic_partitions}
        return sum(record.offset >= committed[record.partition] for record in records)

    def delete_snapshots(self) -> None:
        for deleted in self._admin.delete_topics([self.topic("snapshots")]).values():
            deleted.result(TIMEOUT_S)
        until(
            lambda: self.topic("snapshots") not in self._admin.list_topics(timeout=TIMEOUT_S).topics,
            "the snapshots topic deleted",
        )
