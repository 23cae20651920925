"""Records written in transactions by other clients, on real Kafka: aborted ones do not count, and neither the
markers that end transactions nor those still open stop a reader."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.spine.kafka import BrokerPipeline
from executors.node.commands import CommandLog
from executors.node.settings import ExecutorSettings
from infra.log.reader import LogReader
from infra.log.target import Target
from infra.topics import ensure_topics
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Envelope, decode_decision
from schemas.decisions import JobAdmitted, JobRejected
from schemas.inference import InferenceLoadReported
from schemas.kafka_connection import KafkaConnection
from schemas.registry import TOPIC_BY_EVENT
from schemas.topics import CLOCK, COMMANDS, DECISIONS, INFERENCE, JOBS, LEDGER, SNAPSHOTS, topic_name, topics
from streams.kafka.configuration import group_member
from streams.kafka.reader import KafkaReader
from streams.worker.cells import Coverage
from tests.integration.deployment import Deployment, until
from tests.integration.test_lender import Inference, lending_cell
from tests.integration.test_solver import admitted, ask, titan_cell
from tests.streams import events

CELL = "alpha"
TIMEOUT_S = 20.0
SILENCE_S = 10.0
"""After so long without a record or a transaction, a reader takes the broker for silent."""


class Transaction:
    """One transaction; begun when it is made."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "partitioner": "murmur2_random",
                "transactional.id": uuid.uuid4().hex,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(TIMEOUT_S)
        self._producer.begin_transaction()

    def write(self, topic: str, value: bytes, partition: int = 0, **fields: object) -> "Transaction":
        self._producer.produce(topic, value, partition=partition, **fields)
        self._producer.flush()
        return self

    def write_event(self, deployment: Deployment, event: Event, id: str) -> "Transaction":
        envelope = Envelope(id, "tests", "", event)
        topic = deployment.topic(TOPIC_BY_EVENT[type(event)])
        return self.write(topic, envelope.value, key=event.cell.encode(), headers=list(envelope.headers()))

    def commit(self) -> None:
        self._producer.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT_S)


Begin = Callable[[], Transaction]


@pytest.fixture
def transaction(kafka: str) -> Begin:
    return lambda: Transaction(kafka)


@pytest.fixture
def start(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> Iterator[Callable[[Callable[[str], CellConfigured]], Deployment]]:
    """Makes a deployment of one cell and one partition; its processes end with the test."""
    made: list[Deployment] = []

    def make(configuration: Callable[[str], CellConfigured] = events.configuration) -> Deployment:
        deployment = Deployment(
            kafka, topic_prefix, tmp_path, [CELL], partitions=1, configuration=configuration
        )
        made.append(deployment)
        return deployment

    yield make
    for deployment in made:
        deployment.stop_workers()


@pytest.fixture
def topic(kafka: str, topic_prefix: str) -> str:
    """One of a single partition."""
    connection = KafkaConnection(bootstrap_servers=kafka)
    ensure_topics(connection, topics(topic_prefix, partitions=1, command_partitions=1))
    return topic_name(topic_prefix, INFERENCE)


def values(kafka: str, topic: str) -> list[bytes | None]:
    """All of a topic, by both ways of reading to its end."""
    connection = KafkaConnection(bootstrap_servers=kafka)
    with KafkaReader(connection) as reader:
        part = reader.slice(topic)
        read = [record.value for record in reader.read(part)]
        reader.follow([part], "beginning")
        assert [record.value for record in reader.to_end()] == read
    return read


def test_reader_passes_marker_to_end(kafka: str, topic: str, transaction: Begin) -> None:
    transaction().write(topic, b"1").commit()
    assert values(kafka, topic) == [b"1"]


def test_reader_reaches_end_behind_aborted_records(kafka: str, topic: str, transaction: Begin) -> None:
    transaction().write(topic, b"1").abort()
    assert values(kafka, topic) == []


def test_reader_waits_for_open_transaction_and_reports(
    kafka: str, topic: str, transaction: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    transaction().write(topic, b"1").commit()
    began, plain = transaction().write(topic, b"open"), Producer({"bootstrap.servers": kafka})
    plain.produce(topic, b"2")
    plain.flush()
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING):
        read = pool.submit(values, kafka, topic)
        # Longer than a broker may be silent.
        until(lambda: bool(caplog.messages), "a line about the transaction")
        with pytest.raises(TimeoutError):
            read.result(SILENCE_S + 1)
        began.abort()
        assert read.result(TIMEOUT_S) == [b"1", b"2"]
    line = f"{topic}[0]: a transaction is open at offset 2; nothing from there on is read until it ends"
    assert caplog.messages[0] == line


def test_transaction_begun_while_following_is_reported(
    kafka: str, topic: str, transaction: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target(KafkaConnection(bootstrap_servers=kafka), topic.split(".")[0])
    with caplog.at_level(logging.WARNING), LogReader(target, [topic], "end") as reader:
        assert reader.poll(0.5) == []
        began = transaction().write(topic, b"1")
        until(lambda: not reader.poll(0.2) and bool(caplog.messages), "a line about the transaction")
        began.commit()
        until(lambda: [record.value for record in reader.poll(0.2)] == [b"1"], "its record")
    assert "a transaction is open at offset 0" in caplog.messages[0]


def test_aborted_bid_is_ignored_and_committed_one_decided(
    start: Callable[..., Deployment], transaction: Begin
) -> None:
    deployment = start()
    deployment.start_worker()
    deployment.configure(CELL)
    transaction().write_event(deployment, events.bid(1), "aborted").abort()
    transaction().write_event(deployment, events.bid(2), "committed").commit()
    deployment.send([events.bid(3)])

    verdict = deployment.proven()

    decided = [decode_decision(record.value or b"").outcome for record in deployment.records(DECISIONS)]
    jobs = [outcome.job_id for outcome in decided if isinstance(outcome, JobAdmitted | JobRejected)]
    assert jobs == [events.bid(2).job_id, events.bid(3).job_id]
    assert verdict.ok
    assert "aborted" not in deployment.entered_ms()


def test_open_transaction_delays_worker_without_ending_it(
    start: Callable[..., Deployment], transaction: Begin
) -> None:
    deployment = start()
    worker = deployment.start_worker()
    deployment.configure(CELL)
    began = transaction().write_event(deployment, events.bid(1), "first")
    deployment.send([events.bid(2)])
    until(lambda: f"{deployment.topic(JOBS)}[0]: a transaction is open" in worker.output, "a line about it")
    assert deployment.entered_ms().keys() == {"e0"}

    began.commit()

    deployment.proven()
    assert {"first", "e1"} <= deployment.entered_ms().keys()
    assert worker.running


@pytest.mark.drill
def test_markers_in_ledger_and_snapshots_are_no_gaps(
    start: Callable[..., Deployment], transaction: Begin
) -> None:
    """Markers of committed and aborted transactions: under way, at the end that a worker comes back to, and
    where the snapshots are restored."""

    def end_both(topic: str, value: bytes, key: bytes) -> None:
        transaction().write(topic, value, key=key).commit()
        transaction().write(topic, value, key=key).abort()

    deployment = start()
    worker = deployment.start_worker(snapshot_every_s=0.2)
    deployment.configure(CELL)
    deployment.send([events.bid(1)])
    deployment.proven()
    end_both(deployment.topic(LEDGER), b"foreign", CELL.encode())
    deployment.send([events.bid(2)])
    deployment.proven()
    until(lambda: not deployment.committed_lag(), "all events acknowledged")
    end_both(deployment.topic(LEDGER), b"foreign", CELL.encode())
    # A valid coverage record without news, since the worker reads what is committed.
    covered = Coverage(-1, {}).to_bytes()
    end_both(deployment.topic(SNAPSHOTS), covered, b"/99")
    worker.kill()

    successor = deployment.start_worker()
    deployment.send([events.bid(3)])

    deployment.proven()
    assert successor.running


@pytest.mark.drill
def test_worker_waits_for_snapshots_behind_transaction(
    start: Callable[..., Deployment], transaction: Begin
) -> None:
    deployment = start()
    worker = deployment.start_worker(snapshot_every_s=0.2)
    deployment.configure(CELL)
    began = transaction().write(deployment.topic(SNAPSHOTS), b"foreign", key=b"/99")
    deployment.send([events.bid(1)])
    deployment.proven()
    until(lambda: not deployment.committed_lag(), "all events acknowledged")
    worker.kill()

    successor = deployment.start_worker()
    deployment.send([events.bid(2)])
    line = f"{deployment.topic(SNAPSHOTS)}[0]: a transaction is open"
    until(lambda: line in successor.output, "a line about the transaction")
    began.abort()

    deployment.proven()
    assert successor.running


@pytest.mark.drill
def test_a_solver_answers_behind_markers(start: Callable[..., Deployment], transaction: Begin) -> None:
    deployment = start(titan_cell)
    deployment.start_worker()
    deployment.start_solver()
    deployment.configure(CELL)
    decisions = deployment.topic(DECISIONS)
    transaction().write(decisions, b"foreign", key=CELL.encode()).abort()
    ask(deployment, 0)
    until(lambda: len(admitted(deployment)) == 2, "bids that the solver has plans for")


def test_a_node_reads_its_commands_behind_markers(
    kafka: str, topic: str, topic_prefix: str, transaction: Begin
) -> None:
    settings = ExecutorSettings(cell=CELL, node="n1", bootstrap_servers=kafka, topic_prefix=topic_prefix)
    commands = topic_name(topic_prefix, COMMANDS)
    transaction().write(commands, b"aborted").abort()
    transaction().write(commands, b"committed").commit()
    log = CommandLog.connect(settings)
    log.start(0)
    read: list[bytes | None] = []

    def caught_up() -> bool:
        read.extend(record.value for record in log.read(0.1))
        return log.caught_up

    until(caught_up, "all commands")
    assert read == [b"committed"]
    began = transaction().write(commands, b"1")
    assert log.read(3.0) == []
    began.commit()
    until(lambda: [record.value for record in log.read(0.1)] == [b"1"], "the command of the transaction")
    log.close()


def test_benchmark_waits_for_records_not_markers(
    kafka: str, topic_prefix: str, transaction: Begin, tmp_path: Path
) -> None:
    connection = KafkaConnection(bootstrap_servers=kafka)
    ensure_topics(connection, topics(topic_prefix, partitions=1))
    line = BrokerPipeline(connection, connection, tmp_path, topic_prefix)
    line.produce(ClockTicked(cell=CELL, time_s=1.0))
    line.producer.flush(TIMEOUT_S)
    ticks = topic_name(topic_prefix, CLOCK)
    transaction().write(ticks, b"1").abort()
    worker = Consumer(group_member(connection, "tests", f"{topic_prefix}.cells"))
    worker.commit(offsets=[TopicPartition(ticks, 0, 0)], asynchronous=False)
    with pytest.raises(TimeoutError):
        line.wait_until_in_ledger(1.0)
    worker.commit(offsets=[TopicPartition(ticks, 0, 1)], asynchronous=False)
    worker.close()
    line.wait_until_in_ledger(TIMEOUT_S)


@pytest.mark.drill
def test_a_lender_starts_behind_a_transaction(
    start: Callable[..., Deployment], transaction: Begin, tmp_path: Path
) -> None:
    """The last offset of `inference` holds the marker of a report's transaction."""
    deployment = start(lending_cell)
    deployment.start_worker()
    deployment.configure(CELL)
    report = InferenceLoadReported(cell=CELL, zone="serving", time_s=time.time(), load=0.2)
    inference = Inference(deployment, tmp_path)
    try:
        inference.load = None
        time.sleep(1)  # the last report of its thread
        transaction().write_event(deployment, report, "load").commit()
        lender = inference.start_lender()
        until(lambda: "ready" in inference.output(), f"the lender is ready: {inference.output()}")
        inference.load = 0.2
        until(lambda: len(inference.on_loan()) > 0, f"servers on loan: {inference.output()}")
        assert lender.poll() is None
    finally:
        inference.close()
