"""The real worker on real Kafka: whatever is killed, no event is lost and no decision is another."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench.spine.cells import CELL
from bench.spine.slow_bids import MarketShape, TaskShape, bid_for, configuration
from infra.cli import run
from infra.kafka.local import LocalKafka
from infra.topics import ensure_topics
from schemas.auction.bids import DeadlineTerms
from schemas.base import MAX_TIME_S
from schemas.clock import ClockTicked
from schemas.codec import decode_decision
from schemas.decisions import JobAdmitted, JobQuoted
from schemas.jobs import JobQuoteRequested
from schemas.registry import TOPIC_BY_EVENT
from schemas.service_base import EXIT_FAILED, EXIT_UNANSWERED, EXIT_UNFIT
from schemas.topics import topics
from schemas.view_records import JobState
from streams.kafka.records import ReadRecord
from streams.replay.export import export
from streams.replay.files import verify_files
from streams.replay.replay import Verdict
from streams.replay.sources import verify_kafka
from tests.integration.deployment import Deployment, Worker, until
from tests.integration.kafka_records import ordered_producer
from tests.integration.storm import CELLS, market, storm
from tests.streams import events
from tests.streams.mutations import mutate

SEED = 20_260_101
STORM_KILLS = int(os.environ.get("MILLRACE_STORM_KILLS", "20"))
STORM_BIDS = 2_000
HEADER_REASON = "dlt_reason"


@pytest.fixture
def deployment(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(kafka, topic_prefix, tmp_path, ["alpha", "beta"])
    yield deployment
    deployment.stop_workers()


def test_events_become_decisions_and_views(deployment: Deployment) -> None:
    worker = deployment.start_worker()
    deployment.configure("alpha", "beta")
    deployment.send(events.stream(60, "alpha")[1:])
    deployment.send(events.stream(60, "beta")[1:])

    verdict = deployment.proven()

    assert worker.running
    assert (verdict.cells, verdict.duplicates) == (2, 0)
    decisions = deployment.records("decisions")
    assert {record.key for record in decisions} == {b"alpha", b"beta"}
    rejected = next(record for record in decisions if b'"unknown_zone"' in (record.value or b""))
    decision = decode_decision(rejected.value or b"")
    assert dict(rejected.headers)["ce_type"] == decision.outcome.TYPE.encode()
    view = deployment.records("jobs.state")
    states = [JobState.model_validate_json(record.value or b"") for record in view]
    assert any(state.state == "rejected" and state.reason == "unknown_zone" for state in states)
    assert [record.key for record in view] == [
        f"{state.cell}/{state.user}/{state.job_id}".encode() for state in states
    ]


@pytest.mark.drill
def test_reading_snapshots_is_not_a_hanging_stream(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust looks every 2.5 s for streams that have read nothing for so long, five minutes by default."""
    monkeypatch.setenv("STREAM_PROCESSING_TIMEOUT", "2")
    worker = deployment.start_worker()
    deployment.configure("alpha", "beta")

    begin_s = time.monotonic()
    while time.monotonic() < begin_s + 7:
        deployment.send(events.stream(3)[2:])
        time.sleep(0.2)
    until(lambda: deployment.count("snapshots") > 2, "snapshots of both cells")

    assert worker.running
    assert not [line for line in worker.output.splitlines() if "ERROR" in line and "snapshots" in line]


def test_slow_bids_and_quotes_end_no_worker(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    shape = MarketShape(gpu_types=4, tariffs=1, nodes=40, slots=1_008, bids_before=0, seed=0)
    tasks = [
        TaskShape((1_119, 1_119, 1_119, 1_119), 1_000_000, 1_008, 8.0, needs_preprocessing=False),
        TaskShape((1_119, 1_119, 1_219, 1_119), 1_100_000, 1_008, 8.0, needs_preprocessing=False),
        TaskShape((2_297, 1_602, 1_778, 1_907), 765_955, 1_008, 2.0, needs_preprocessing=False),
    ]
    deployment = Deployment(
        kafka, topic_prefix, tmp_path, [CELL], configuration=lambda _: configuration(shape)
    )
    try:
        worker = deployment.start_worker()
        deployment.configure(CELL)
        bids = [bid_for(f"slow{number}", task, 10**12) for number, task in enumerate(tasks * 4)]
        deployment.send(bids)
        deployment.send(
            JobQuoteRequested(
                cell=CELL,
                quote_id=bid.job_id,
                user=bid.user,
                zone=bid.zone,
                workload=bid.workload,
                terms=DeadlineTerms(deadline_s=bid.terms.deadline_s),
            )
            for bid in bids
        )
        deployment.proven()
        assert worker.running
        outcomes = [
            decode_decision(record.value or b"").outcome for record in deployment.records("decisions")
        ]
        offers = [
            outcome.evidence.offer for outcome in outcomes if isinstance(outcome, JobAdmitted | JobQuoted)
        ]
        assert len(offers) == 2 * len(bids)
        assert all(offer is not None and offer.plan_gap_micros is not None for offer in offers)
    finally:
        deployment.stop_workers()


def test_one_altered_byte_in_the_decisions_is_named(deployment: Deployment) -> None:
    deployment.start_worker()
    deployment.configure("alpha")
    deployment.send(events.stream(40)[1:])
    deployment.proven()
    altered = f"{deployment.prefix}-altered"
    ensure_topics(deployment.kafka, topics(altered, partitions=2))
    producer = ordered_producer(deployment.bootstrap_servers)
    decisions = deployment.records("decisions")
    start_of_reason = b'"reason":"'
    with_reason = [record for record in decisions if start_of_reason in (record.value or b"")]
    spoiled = with_reason[len(with_reason) // 2]
    for record in deployment.records("ledger") + decisions:
        value = bytearray(record.value or b"")
        if record is spoiled:
            value[value.index(start_of_reason) + len(start_of_reason)] ^= 1
        topic = record.topic.replace(deployment.prefix, altered)
        producer.produce(topic, bytes(value), record.key, record.partition, headers=list(record.headers))
    assert producer.flush(10) == 0

    verdict = verify_kafka(deployment.kafka, altered)

    assert (verdict.ok, verdict.difference_count, verdict.awaited) == (False, 1, 0)
    assert verdict.first is not None
    topic = spoiled.topic.replace(deployment.prefix, altered)
    assert (verdict.first.kind, verdict.first.decision_id, verdict.first.place) == (
        "altered",
        decode_decision(spoiled.value or b"").id,
        f"{topic}[{spoiled.partition}]@{spoiled.offset}",
    )
    assert verdict.broken_links == {"alpha": verdict.first.decision_id}


def copied(deployment: Deployment, name: str, change: Callable[[list[ReadRecord]], list[ReadRecord]]) -> str:
    """The prefix of a copy of the deployment's log, whose decisions are changed."""
    prefix = f"{deployment.prefix}-{name}"
    ensure_topics(deployment.kafka, topics(prefix, partitions=2))
    producer = ordered_producer(deployment.bootstrap_servers)
    for record in deployment.records("ledger") + change(deployment.records("decisions")):
        topic = record.topic.replace(deployment.prefix, prefix)
        producer.produce(topic, record.value, record.key, record.partition, headers=list(record.headers))
    assert producer.flush(10) == 0
    return prefix


@pytest.mark.drill
def test_export_has_each_decision_once_in_order(deployment: Deployment, tmp_path: Path) -> None:
    deployment.start_worker()
    deployment.configure("alpha", "beta")
    streams = zip(events.stream(30), events.stream(30, "beta"), strict=True)
    deployment.send([event for pair in streams for event in pair][2:])
    deployment.proven()
    kafka = deployment.kafka
    ledger, decisions = tmp_path / "ledger.jsonl", tmp_path / "decisions.jsonl"

    def exported(prefix: str) -> Verdict:
        verdict = verify_kafka(kafka, prefix)
        assert export(kafka, prefix, ledger, decisions, verdict.settled)[1] == len(
            decisions.read_bytes().splitlines()
        )
        return verdict

    plain = exported(deployment.prefix)
    whole = ledger.read_bytes(), decisions.read_bytes()
    assert verify_files(ledger, decisions).heads == plain.heads

    repeated = exported(copied(deployment, "repeated", lambda found: [*found[5:], *found[:9], *found]))
    assert (repeated.ok, repeated.duplicates) == (True, plain.decisions + 4)
    assert (ledger.read_bytes(), decisions.read_bytes()) == whole

    def with_a_lie(records: list[ReadRecord]) -> list[ReadRecord]:
        true = next(record for record in records if b'"reason":"' in (record.value or b""))
        lie = (true.value or b"").replace(b'"reason":"', b'"reason":"x', 1)
        return [*records, replace(true, value=lie), replace(true, value=b"no decision")]

    assert exported(copied(deployment, "lied", with_a_lie)).difference_count == 2
    found = verify_files(ledger, decisions)
    assert {difference.kind for difference in found.differences} == {"altered", "unreadable"}

    def late(records: list[ReadRecord]) -> list[ReadRecord]:
        return [record for record in records if record.key == b"alpha"][:9]

    half = copied(deployment, "behind", late)
    behind = exported(half)
    where = ["replay", "--bootstrap-servers", deployment.bootstrap_servers, "--topic-prefix", half]
    assert (run(where), run([*where, "--strict"])) == (0, 1)
    assert behind.ok
    assert behind.awaited == plain.decisions - 9
    ended = verify_files(ledger, decisions)
    assert (ended.ok, ended.heads) == (True, behind.heads)
    assert set(ended.heads) == {"alpha"}


def test_bad_records_among_good_ones(deployment: Deployment) -> None:
    """400 spoiled records of every kind: each ends in the ledger or, with its reason, in the dead letters."""
    worker = deployment.start_worker()
    deployment.configure("alpha")
    chance = random.Random(SEED)
    spoiled = 0
    for number, event in enumerate(events.stream(102)[2:]):
        deployment.send([event])
        for _ in range(4):
            value, headers = mutate(events.envelope(event, f"bad{number}"), chance)
            deployment.send_raw(TOPIC_BY_EVENT[type(event)], value, headers, b"alpha")
            spoiled += 1
    deployment.send_raw("jobs", b"\x00\xffbroken", [("ce_type", b"no.such.type"), ("ce_id", b"x")], b"k", 0)
    future = events.envelope(ClockTicked(cell="alpha", time_s=MAX_TIME_S), "future")
    deployment.send_raw("clock", future.value, future.headers(), b"alpha")
    deployment.send_raw("ledger", b"not an event", [], b"alpha", 0)
    deployment.send_raw("ledger", b"not an event", [], b"alpha", 1)
    deployment.send(events.stream(40)[2:])

    deployment.proven()

    assert worker.running
    inputs = sum(deployment.count(name) for name in set(TOPIC_BY_EVENT.values()))
    letters = [
        record for name in set(TOPIC_BY_EVENT.values()) for record in deployment.records(f"{name}.dlt")
    ]
    assert spoiled == 400
    assert len(letters) > 100
    assert len(letters) + len(deployment.records("ledger")) - 2 == inputs
    assert all(dict(letter.headers)[HEADER_REASON] for letter in letters)
    broken = next(letter for letter in letters if letter.value == b"\x00\xffbroken")
    about = dict(broken.headers)
    assert about["dlt_topic"] == deployment.topic("jobs").encode()
    assert about[HEADER_REASON].startswith(b"not JSON")
    (late,) = [letter for letter in deployment.records("clock.dlt") if letter.value == future.value]
    assert b"ahead of its record's timestamp" in (dict(late.headers)[HEADER_REASON] or b"")
    place = (int(about["dlt_partition"] or b""), int(about["dlt_offset"] or b""))
    origin = {(record.partition, record.offset): record.value for record in deployment.records("jobs")}
    assert origin[place] == broken.value
    assert len(deployment.records("ledger.dlt")) == 2


@pytest.mark.drill
@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_header_name_without_utf_8_is_refused(deployment: Deployment) -> None:
    worker = deployment.start_worker()
    deployment.configure("alpha")
    # By kcat: the Python clients can neither send nor read such a name.
    command = ["kcat", "-b", deployment.bootstrap_servers, "-P", "-t", deployment.topic("quotes")]
    subprocess.run([*command, "-H", b"\xff\xfe=1"], input=b"odd header", check=True)
    deployment.send(events.stream(40)[2:])

    deployment.proven()

    assert worker.running
    assert any(letter.value == b"odd header" for letter in deployment.records("quotes.dlt"))


@pytest.mark.drill
def test_orderly_stop_leaves_nothing_to_repeat(deployment: Deployment) -> None:
    # Neither the count nor the clock causes a snapshot here: the stop does.
    worker = deployment.start_worker(snapshot_every_events=100_000, snapshot_every_s=600)
    deployment.configure("alpha", "beta")
    deployment.send(events.stream(80, "alpha")[1:])
    deployment.proven()
    assert deployment.committed_lag() > 0

    worker.send(signal.SIGTERM)

    assert worker.wait(20) == 0
    assert worker.output == ""
    assert deployment.committed_lag() == 0
    deployment.start_worker()
    deployment.send(events.stream(40, "beta")[1:])
    assert deployment.proven().duplicates == 0


def test_stop_during_bids_decides_ledger(deployment: Deployment) -> None:
    """A worker of other rules then finds no event that only this worker may decide."""
    worker = deployment.start_worker(snapshot_every_events=100_000, snapshot_every_s=600)
    deployment.configure("alpha")
    bids = deployment.send(events.bid(number) for number in range(6_000))
    until(lambda: deployment.count("decisions") > 100, "the first decisions")

    worker.send(signal.SIGTERM)

    assert worker.wait(20) == 0, worker.output
    assert deployment.count("ledger") < len(bids)
    assert deployment.committed_lag() == 0
    verdict = verify_kafka(deployment.kafka, deployment.prefix)
    assert (verdict.ok, verdict.awaited) == (True, 0)


@pytest.fixture
def busy(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Deployment]:
    """Cells of thirty nodes, in which bids win and lose."""
    deployment = Deployment(kafka, topic_prefix, tmp_path, CELLS, configuration=market)
    yield deployment
    deployment.stop_workers()


@pytest.mark.drill
def test_killed_worker_repeats_but_never_differs(busy: Deployment) -> None:
    storm(busy, SEED, bids=200, kills=2)


@pytest.mark.storm
@pytest.mark.timeout(1_800)
def test_storm_of_kills(busy: Deployment) -> None:
    storm(busy, SEED + 1, STORM_BIDS, STORM_KILLS)


@pytest.mark.drill
def test_broker_killed_and_started_again(topic_prefix: str, tmp_path: Path) -> None:
    with LocalKafka(tmp_path / "broker") as broker:
        deployment = Deployment(broker.bootstrap_servers, topic_prefix, tmp_path, ["alpha"])
        try:
            worker = deployment.start_worker()
            deployment.configure("alpha")
            deployment.send(events.stream(60)[1:])
            broker.kill()
            time.sleep(1.0)
            broker.start()
            deployment.send(events.stream(60)[1:])

            deployment.proven(90)

            assert worker.running, worker.output
            try:
                until(lambda: deployment.committed_lag() == 0, "everything acknowledged")
            except AssertionError as late:
                raise AssertionError(worker.output) from late
        finally:
            deployment.stop_workers()


def test_web_pages_are_for_this_machine_alone(deployment: Deployment, port: int) -> None:
    worker = deployment.start_worker(web_enabled=True, web_port=port)

    def addresses() -> set[str]:
        assert worker.running, worker.output
        connections = psutil.Process(worker.pid).net_connections("tcp")
        listening = {end.laddr for end in connections if end.status == psutil.CONN_LISTEN}
        return {address.ip for address in listening if address.port == port}

    assert until(addresses, "web pages are served") == {"127.0.0.1"}


@pytest.mark.drill
def test_gap_is_fatal_and_reported(deployment: Deployment) -> None:
    worker = deployment.start_worker()
    deployment.configure("alpha", "beta")
    deployment.send(events.stream(20)[1:])
    deployment.proven()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    deployment.delete_snapshots()

    deployment.send(events.stream(20)[1:])
    worker = deployment.start_worker()

    assert worker.wait() == EXIT_FAILED
    assert "the snapshots cover offsets up to -1" in worker.output
    assert len(worker.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        pytest.param({"topic_prefix": "absent"}, "topics are missing", id="topics"),
        pytest.param(
            {"cells_file": "absent.yaml"},
            "absent.yaml: No such file",
            id="cells' file",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"session_timeout_s": "soon"}, "settings: MILLRACE_SESSION_TIMEOUT_S: Input", id="a setting"
        ),
        pytest.param(
            {"node_partitions": "{"},
            "settings: MILLRACE_NODE_PARTITIONS: no JSON",
            id="a setting in JSON",
            marks=pytest.mark.slow,
        ),
        pytest.param({"node_partitions": json.dumps({"n1": 99})}, "node n1 is given partition 99", id="node"),
    ],
)
def test_unfit_worker_ends_with_one_line(
    deployment: Deployment, settings: dict[str, object], line: str
) -> None:
    worker: Worker = deployment.start_worker(**settings)

    assert worker.wait() == EXIT_UNFIT
    assert line in worker.output
    assert len(worker.output.splitlines()) == 1


def test_worker_without_broker_requests_restart(deployment: Deployment) -> None:
    worker = deployment.start_worker(bootstrap_servers="127.0.0.1:1")

    assert worker.wait() == EXIT_UNANSWERED
    assert "No Kafka broker answers at 127" in worker.output
    assert len(worker.output.splitlines()) == 1
