"""Rules that change while a deployment lives: real workers of three versions on real Kafka."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from infra.cli import run
from infra.commands.replay import EXIT_UNVERIFIED
from infra.topics import ensure_topics
from schemas.base import Event
from schemas.codec import decode_event
from schemas.rules import RulesAdopted
from schemas.service_base import EXIT_UNFIT
from schemas.topics import RULES_STATES, topics
from streams.cell.ledger import ledger_event_of
from streams.cell.state_machine import Cell
from streams.kafka.records import ReadRecord
from streams.replay.export import export
from streams.replay.files import verify_files
from streams.replay.sources import verify_kafka
from tests.integration.deployment import Deployment, Worker, until
from tests.integration.kafka_records import ordered_producer
from tests.streams import events
from tests.support.rules import BOTH, FIRST, SECOND, adoption

EVENTS = events.stream(90)
CUT = 40


@pytest.fixture
def deployment(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(kafka, topic_prefix, tmp_path, ["alpha"])
    yield deployment
    deployment.stop_workers()


def start(deployment: Deployment, rules: Literal["first", "both", "second"]) -> Worker:
    return deployment.start_worker("tests.support.rules", test_rules=rules, worker_name="w1")


def stop(worker: Worker) -> None:
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.output


def decided_by_the_first(deployment: Deployment) -> Worker:
    """The worker that has taken the first events."""
    worker = start(deployment, "first")
    deployment.configure("alpha")
    deployment.send(EVENTS[1:CUT])
    deployment.proven()
    return worker


def adoptions(deployment: Deployment) -> list[RulesAdopted]:
    found = [decode_event(record.value, record.headers).event for record in deployment.records("ledger")]
    return [event for event in found if isinstance(event, RulesAdopted)]


def to_ledger(deployment: Deployment, id: str, event: Event) -> None:
    """Put an event into the ledger, as a worker does."""
    envelope = events.envelope(event, id)
    deployment.send_raw("ledger", envelope.value, envelope.headers(), event.cell.encode())


def ends_and_prints(worker: Worker, *words: str) -> None:
    assert worker.wait() == EXIT_UNFIT, worker.output
    (line,) = worker.output.splitlines()
    for word in words:
        assert word in line


def copied(deployment: Deployment, name: str, change: Callable[[ReadRecord], ReadRecord]) -> str:
    """The prefix of a copy of the log in which records are changed."""
    prefix = f"{deployment.prefix}-{name}"
    ensure_topics(deployment.kafka, topics(prefix, partitions=2))
    producer = ordered_producer(deployment.bootstrap_servers)
    for source in ("ledger", "decisions", RULES_STATES):
        for record in map(change, deployment.records(source)):
            producer.produce(
                f"{prefix}.{source}", record.value, record.key, record.partition, headers=list(record.headers)
            )
    assert producer.flush(10) == 0
    return prefix


@pytest.mark.drill
def test_new_rules_continue_where_old_ones_end(deployment: Deployment, tmp_path: Path) -> None:
    stop(decided_by_the_first(deployment))
    worker = start(deployment, "both")
    deployment.send(EVENTS[CUT:])
    verdict = deployment.proven(book=BOTH)
    assert worker.running
    (adopted,) = adoptions(deployment)
    assert [(s.rules, s.first_offset) for s in verdict.stretches] == [(1, 0), (2, adopted.state_offset + 1)]
    assert verdict.stretches[1].state_digest == adopted.state_digest
    stop(worker)

    # Who lacks some of the rules verifies the rest.
    for book, unverified in ((FIRST, 2), (SECOND, 1)):
        found = verify_kafka(deployment.kafka, deployment.prefix, book=book)
        assert (found.has_faults, [stretch.rules for stretch in found.unverified]) == (False, [unverified])
    assert found.heads == verdict.heads
    where = ["--bootstrap-servers", deployment.bootstrap_servers, "--topic-prefix", deployment.prefix]
    assert run(["replay", *where]) == EXIT_UNVERIFIED
    ledger, decisions = tmp_path / "ledger.jsonl", tmp_path / "decisions.jsonl"
    export(deployment.kafka, deployment.prefix, ledger, decisions, verdict.settled)
    assert verify_files(ledger, decisions, book=BOTH).ok
    from_files = verify_files(ledger, decisions, book=SECOND)
    assert (from_files.has_faults, from_files.unverified) == (False, found.unverified)

    def spoil_state(record: ReadRecord) -> ReadRecord:
        kept = record.topic.endswith(RULES_STATES)
        return replace(record, value=(record.value or b"")[:-9]) if kept else record

    def spoil_digest(record: ReadRecord) -> ReadRecord:
        other = (record.value or b"").replace(adopted.state_digest.encode(), b"0" * 64)
        return replace(record, value=other)

    spoiled = copied(deployment, "state", spoil_state)
    (fault,) = verify_kafka(deployment.kafka, spoiled, book=SECOND).join_faults
    assert "it was altered" in fault
    assert verify_kafka(deployment.kafka, spoiled, book=BOTH).ok, "the state follows from the ledger"
    spoiled = copied(deployment, "digest", spoil_digest)
    assert verify_kafka(deployment.kafka, spoiled, book=BOTH).join_faults
    assert verify_kafka(deployment.kafka, spoiled, book=SECOND).broken_links.keys() == {"alpha"}

    ends_and_prints(start(deployment, "first"), "cell alpha", "rules 2, which this program does not have")


@pytest.mark.drill
def test_worker_without_old_rules_needs_orderly_stop(
    deployment: Deployment,
) -> None:
    old = decided_by_the_first(deployment)
    until(lambda: deployment.committed_lag() == 0, "everything in a snapshot")
    old.kill()
    for number in range(3):
        to_ledger(deployment, f"behind-{number}", events.bid(200 + number))
    deployment.send(EVENTS[CUT:])
    published = deployment.count("decisions")

    new = start(deployment, "second")
    ends_and_prints(new, "cell alpha is to be decided by rules 1", "version 0.1.0", "stop it in good order")
    assert (deployment.count("decisions"), adoptions(deployment)) == (published, [])

    old = start(deployment, "first")
    until(lambda: deployment.committed_lag() == 0, "everything in a snapshot")
    deployment.proven()
    stop(old)
    new = start(deployment, "second")
    deployment.send(events.stream(60)[CUT:])
    verdict = deployment.proven(book=BOTH)
    assert new.running
    assert [stretch.rules for stretch in verdict.stretches] == [1, 2]


@pytest.mark.drill
def test_backlog_is_decided_by_its_rules(
    deployment: Deployment,
) -> None:
    old = decided_by_the_first(deployment)
    old.kill()
    for number in range(50):
        to_ledger(deployment, f"behind-{number}", events.bid(200 + number))
    deployment.send(EVENTS[CUT:])
    new = start(deployment, "both")
    verdict = deployment.proven(book=BOTH)
    assert new.running
    first, second = verdict.stretches
    assert (first.rules, second.rules) == (1, 2)
    ids = [record.key and dict(record.headers)["ce_id"] for record in deployment.records("ledger")]
    assert ids.index(b"behind-49") <= first.last_offset


@pytest.mark.drill
def test_cell_moves_to_newest_rules_during_events(
    deployment: Deployment,
) -> None:
    worker = start(deployment, "both")
    deployment.send([events.configuration(), *EVENTS[1:], *(events.bid(500 + n) for n in range(2_000))])
    verdict = deployment.proven(book=BOTH)
    assert worker.running
    assert [stretch.rules for stretch in verdict.stretches if stretch.rules is not None] == [1, 2]
    *stale, adopted = adoptions(deployment)
    assert (verdict.stretches[-1].state_digest, len(stale) <= 2) == (adopted.state_digest, True)
    assert deployment.count(RULES_STATES) == 1 + len(stale)


@pytest.mark.slow
def test_worker_that_reads_newer_rules_ends(deployment: Deployment) -> None:
    worker = decided_by_the_first(deployment)
    cell = Cell("alpha")
    for record in deployment.records("ledger"):
        cell.handle(ledger_event_of(record))
    decided = deployment.count("decisions")
    to_ledger(deployment, "newer", adoption(cell))
    to_ledger(deployment, "behind", events.bid(300))
    ends_and_prints(worker, "from here on it is decided by rules 2", "version 0.2.0 of Millrace has them")
    assert deployment.count("decisions") == decided
    # It has secured what it decided, so who lacks its rules can go on.
    new = start(deployment, "second")
    verdict = deployment.proven(book=BOTH)
    assert new.running
    assert [stretch.rules for stretch in verdict.stretches] == [1, 2]
