"""The whole path through a real Kafka: from a produced bid to the consumed decision, with one worker."""

import atexit
import itertools
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from bench.figures import Measurement, Result, Table
from bench.spine.cells import FilledCell, bid, configuration, vendor_quotes
from bench.spine.faust_alone import faust_alone, paced_latencies_ms
from infra.broker import RunningBroker, watched_broker
from infra.deployment.deployment import principals
from infra.kafka.settings import broker_settings
from infra.topics import ensure_topics
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.codec import Envelope
from schemas.decisions import CellAccepted, JobAdmitted, JobRejected
from schemas.interpreters import python_command
from schemas.kafka_connection import KafkaConnection
from schemas.registry import TOPIC_BY_EVENT
from schemas.topics import DECISIONS, topic_name, topics
from streams.kafka.configuration import group_member, producer, reader

NODES = 100
DECIDED = (JobAdmitted.TYPE, JobRejected.TYPE)
_COMMITTED_POLL_S = 0.2
_DELIVERY_TIMEOUT_S = 300.0
_SIZED = 100
"""Number of bids whose decisions determine the size of the reference's answers."""


@dataclass
class BrokerPipeline:
    """A broker with topics, and methods to produce events and read decisions."""

    others: KafkaConnection
    """Connection of clients that bid, quote, configure and read decisions."""
    worker_connection: KafkaConnection
    folder: Path
    prefix: str = "bench"
    """Prefix of its topics."""

    def __post_init__(self) -> None:
        self.producer = Producer(
            {
                **producer(self.others, "bench", delivery_timeout_s=_DELIVERY_TIMEOUT_S, linger_ms=0),
                # The producer outlives the broker by a moment, which needs no log message.
                "log_level": 2,
            }
        )
        self._ids = itertools.count()
        self._last: dict[tuple[str, int], int] = {}
        """Offset of the last record that the broker has confirmed, by topic and partition."""

    def produce(self, event: Event) -> str:
        """Send an event, and return its id."""
        envelope = Envelope(f"bench-{next(self._ids)}", "bench", "", event)
        while True:
            try:
                self.producer.produce(
                    topic_name(self.prefix, TOPIC_BY_EVENT[type(event)]),
                    key=event.cell.encode(),
                    value=envelope.value,
                    headers=[*envelope.headers()],
                    on_delivery=self._note_place,
                )
                break
            except BufferError:
                self.producer.poll(0.05)
        self.producer.poll(0)
        return envelope.id

    def open(self, timeout_s: float = 90, cells: int = 1) -> "Decisions":
        """Wait until some cells are configured, send quotes of vendors, and return the decisions from then
        on.

        Raises:
            TimeoutError: no worker answers.
        """
        decisions = Decisions(self.others, self.prefix)
        deadline = time.monotonic() + timeout_s
        while cells:
            cells -= decisions.configured(0.1)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no worker accepted the cell's configuration within {timeout_s} s")
        for quote in vendor_quotes(random.Random(0)):
            self.produce(quote)
        self.producer.flush(10)
        # Topics are read in parallel: a bid sent at once might overtake the quotes.
        time.sleep(1)
        return decisions

    def wait_until_in_ledger(self, timeout_s: float) -> None:
        """Wait until the worker has added all produced events to the ledger.

        The worker reads topics in parallel: an event produced later may be in the ledger before another
        topic's, and be decided while tens of thousands of those still wait.

        Raises:
            TimeoutError: that takes longer.
        """
        deadline = time.monotonic() + timeout_s
        if left := self.producer.flush(timeout_s):
            raise TimeoutError(f"the broker did not accept {left} events within {timeout_s} s")
        inputs = [TopicPartition(*place) for place in self._last]
        group = Consumer({**group_member(self.others, "bench", f"{self.prefix}.cells"), "log_level": 2})
        try:
            # By the offsets of the records: other entries of the log, such as markers of transactions, are
            # not waited for.
            while any(
                committed.offset <= self._last[committed.topic, committed.partition]
                for committed in group.committed(inputs, timeout=10)
            ):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"the worker did not add every event to the ledger within {timeout_s} s"
                    )
                time.sleep(_COMMITTED_POLL_S)
        finally:
            group.close()

    def _note_place(self, error: object, message: Any) -> None:
        if error is None:
            self._last[message.topic(), message.partition()] = message.offset()

    @contextmanager
    def worker(self) -> Iterator[psutil.Process]:
        """Run a worker process, which is killed at the end."""
        environment = {
            **os.environ,
            **self.worker_connection.environment(),
            "MILLRACE_TOPIC_PREFIX": self.prefix,
            "MILLRACE_DATA_DIR": str(self.folder),
            "MILLRACE_CELLS_FILE": str(self.folder / "cells.yaml"),
            "MILLRACE_AWAIT_KERNELS": "true",
        }
        process = subprocess.Popen(python_command("-m", "streams.worker"), env=environment)
        try:
            yield psutil.Process(process.pid)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


class Decisions:
    """Reads the decisions of all partitions as they arrive."""

    def __init__(self, connection: KafkaConnection, prefix: str) -> None:
        self._consumer = Consumer({**reader(connection, "bench-reader"), "fetch.wait.max.ms": 5})
        topic = topic_name(prefix, DECISIONS)
        partitions = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        self.seen = 0
        """Number of decisions on bids so far."""

    def poll(self, timeout_s: float) -> dict[str, tuple[str, float]]:
        """Return type and time of arrival, by cause, of the next decision on a bid, if one arrives in
        time."""
        message = self._consumer.poll(timeout_s)
        if message is None or message.error() is not None:
            return {}
        now = time.monotonic()
        document = json.loads(message.value() or b"")
        if document["type"] not in DECIDED:
            return {}
        self.seen += 1
        return {document["cause"]: (document["type"], now)}

    def configured(self, timeout_s: float) -> bool:
        """Return whether the next record, if one arrives in time, reports that a cell is configured."""
        message = self._consumer.poll(timeout_s)
        if message is None or message.error() is not None:
            return False
        return bool(json.loads(message.value() or b"")["type"] == CellAccepted.TYPE)

    def read(self, until: int, timeout_s: float) -> dict[str, tuple[str, float]]:
        """Read decisions as by `poll`, until there are `until`.

        Raises:
            TimeoutError: none arrived for `timeout_s`.
        """
        seen: dict[str, tuple[str, float]] = {}
        last = time.monotonic()
        while len(seen) < until:
            one = self.poll(0.05)
            seen.update(one)
            if one:
                last = time.monotonic()
            elif time.monotonic() - last > timeout_s:
                raise TimeoutError(f"{len(seen)} of {until} decisions arrived, then none for {timeout_s} s")
        return seen

    def close(self) -> None:
        """Disconnect from the broker."""
        self._consumer.close()


_until_exit = ExitStack()
_numbers = itertools.count()


@cache
def open_broker() -> RunningBroker:
    """Start one ephemeral broker for all parts of a run, because each start takes seconds. It stops with the
    process."""
    broker = _until_exit.enter_context(watched_broker(broker_settings(), ephemeral=True))
    atexit.register(_until_exit.close)
    return broker


@contextmanager
def pipeline(*cells: CellConfigured, partitions: int = 1) -> Iterator[BrokerPipeline]:
    """Create topics of some cells on an ephemeral broker, and produce their configurations."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
        folder, broker = Path(name), open_broker()
        prefix = f"bench{next(_numbers)}"
        document = {"cells": [cell.model_dump(mode="json") for cell in cells]}
        (folder / "cells.yaml").write_text(yaml.safe_dump(document))
        admin = broker.connection("admin")
        ensure_topics(admin, topics(prefix, partitions=partitions))
        line = BrokerPipeline(admin, principals(broker, prefix)["worker"], folder, prefix)
        for cell in cells:
            line.produce(cell)
        line.producer.flush(10)
        yield line


def measure_kafka(quick: bool, seed: int) -> Result:
    """Measure sustained bids per second and latency at 100 bids per second, and compare both with Faust
    alone."""
    return _measure_against_faust(LoadExtent(3, 600, 100) if quick else LoadExtent(5, 3_000, 1_200), seed)


@dataclass(frozen=True)
class LoadExtent:
    """Amount of measured work."""

    rounds: int
    burst: int
    """Events at once, in each round."""
    paced: int
    """Events at 100 per second, in each round."""

    @property
    def bursts(self) -> int:
        """Events at once, over all rounds."""
        return self.rounds * self.burst

    @property
    def paces(self) -> int:
        """Events at 100 per second, over all rounds."""
        return self.rounds * self.paced


def _measure_against_faust(extent: LoadExtent, seed: int) -> Result:
    """Measure the worker and the Faust reference alternately on one broker, under equal conditions of the
    machine."""
    rng = random.Random(seed)
    ours, theirs = _Measurements(), _Measurements()
    event, answer_bytes = _usual_sizes(seed)
    with (
        pipeline(configuration(NODES)) as line,
        line.worker(),
        faust_alone(line.others, line.folder, event, answer_bytes) as reference,
    ):
        decisions = line.open()
        for number in range(extent.rounds):
            ours.burst_s += _burst_s(line, decisions, rng, f"burst{number}-", extent.burst)
            theirs.burst_s += reference.burst_s(extent.burst)
            ours.latencies_ms += _latencies_ms(line, decisions, rng, f"paced{number}-", extent.paced)
            theirs.latencies_ms += reference.latencies_ms(extent.paced)
        decisions.close()
    setting = (
        f"{extent.rounds} rounds in turn with the Faust reference, one worker, {NODES} nodes x 144 slots, "
        "one broker on the same machine"
    )
    reference_setting = (
        f"a Faust application with a table write and a send for each of {extent.bursts} events of "
        f"{len(event)} bytes, answers of {answer_bytes} bytes"
    )
    rate, reference_rate = extent.bursts / ours.burst_s, extent.bursts / theirs.burst_s
    measurements = [
        Measurement("kafka_bids_per_s", rate, f"{extent.burst} bids at once, {setting}", extent.bursts),
        Measurement("faust_events_per_s", reference_rate, reference_setting, extent.bursts),
        Measurement(
            "kafka_over_faust_ratio",
            rate / reference_rate,
            f"bids per second over {reference_setting}; {setting}",
            extent.bursts,
        ),
    ]
    for percentile in (50, 99):
        own, other = ours.percentile_ms(percentile), theirs.percentile_ms(percentile)
        note = f"at 100 bids per second, {setting}"
        measurements += [
            Measurement(f"kafka_latency_p{percentile}_ms", own, note, extent.paces),
            Measurement(f"faust_latency_p{percentile}_ms", other, "the reference, likewise", extent.paces),
            Measurement(f"kafka_latency_p{percentile}_over_faust_ratio", own / other, note, extent.paces),
        ]
    rows = [{"bid": number, "latency_ms": each_ms} for number, each_ms in enumerate(ours.latencies_ms)]
    return Result(tuple(measurements), (Table("kafka_latency", rows),))


@dataclass
class _Measurements:
    """Measurements of one side, over all rounds."""

    burst_s: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)

    def percentile_ms(self, percentile: int) -> float:
        return float(np.percentile(self.latencies_ms, percentile))


def _usual_sizes(seed: int) -> tuple[bytes, int]:
    """Return the value of a bid, and the mean size of the decisions on some bids, in bytes."""
    rng = random.Random(seed)
    fed = FilledCell()
    fed.send(configuration(NODES))
    for quote in vendor_quotes(random.Random(0)):
        fed.send(quote)
    sizes = []
    for number in range(_SIZED):
        event = fed.envelope(bid(rng, f"burst0-{number}", now_s=0.0))
        sizes += [len(decision.canonical) for decision in fed.cell.handle(event)]
    return event.envelope.value, sum(sizes) // len(sizes)


def _burst_s(line: BrokerPipeline, decisions: Decisions, rng: random.Random, prefix: str, bids: int) -> float:
    """Return the time from the first of some bids that are sent at once to the last decision."""
    drawn = [bid(rng, f"{prefix}{number}", now_s=0.0) for number in range(bids)]
    began_s = time.monotonic()
    for one in drawn:
        line.produce(one)
    line.producer.flush(60)
    arrivals = decisions.read(bids, timeout_s=60)
    return max(at_s for _, at_s in arrivals.values()) - began_s


def _latencies_ms(
    line: BrokerPipeline, decisions: Decisions, rng: random.Random, prefix: str, bids: int
) -> list[float]:
    """Produce 100 bids per second and return the time of each until its decision is read."""
    drawn = iter([bid(rng, f"{prefix}{number}", now_s=0.0) for number in range(bids)])
    return paced_latencies_ms(
        lambda: line.produce(next(drawn)),
        lambda wait_s: {cause: at_s for cause, (_, at_s) in decisions.poll(wait_s).items()},
        bids,
    )
