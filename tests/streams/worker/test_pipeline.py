"""The path of records through a worker without Kafka: intake, ledger, cell, decisions, acknowledgement."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas import codec
from schemas.base import Event
from schemas.clock import ClockTicked
from schemas.codec import decode_decision
from schemas.decisions import JobAdmitted, JobRejected
from schemas.fleet import NodeHeartbeat, NodeOnline
from schemas.topics import DECISIONS, JOBS, topic_name
from streams.kafka.records import Partition
from streams.worker.settings import WorkerSettings
from tests.streams import events
from tests.streams.worker.broker import LEDGER_TOPIC, PREFIX, Broker, pipeline, run

CELL = "alpha"
BIDS = 20
JOBS_TOPIC = topic_name(PREFIX, JOBS)


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Number of times that bytes became an event, by type."""
    counts, decoded = Counter[str](), codec.parse_event

    def count(model: type[Event], value: bytes) -> Any:
        counts[model.TYPE] += 1
        return decoded(model, value)

    monkeypatch.setattr(codec, "parse_event", count)
    return counts


def inputs() -> list[Event]:
    nodes = events.configuration(CELL).zones[0].nodes
    online = [NodeOnline(cell=CELL, node=node.id, base_model="tiny", runners=("lora",)) for node in nodes]
    bids = [events.bid(number, CELL) for number in range(BIDS)]
    return [events.configuration(CELL), *online, ClockTicked(cell=CELL, time_s=events.EPOCH_S), *bids]


def passed(broker: Broker, settings: WorkerSettings, count: int) -> None:
    """Run a pipeline until so many ledger records and all input records are acknowledged."""
    wanted = Counter(record.topic for record in broker.records)

    def is_done() -> bool:
        acknowledged = all(broker.acknowledged.get(name, -1) + 1 == n for name, n in wanted.items())
        return acknowledged and broker.acknowledged.get(LEDGER_TOPIC, -1) + 1 == count

    async def work() -> None:
        await run(pipeline(broker, CELL, settings), broker, is_done)

    asyncio.run(work())


@pytest.fixture
def settings(tmp_path: Path) -> WorkerSettings:
    # Ticks of the cell's own time, which is long past.
    return WorkerSettings(
        topic_prefix=PREFIX, data_dir=tmp_path, snapshot_every_s=0.05, max_tick_ahead_s=float("inf")
    )


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    for number, event in enumerate(inputs()):
        made.put(events.envelope(event, f"e{number}"))
    return made


def test_a_bid_is_decided_published_and_acknowledged(broker: Broker, settings: WorkerSettings) -> None:
    passed(broker, settings, count=len(inputs()))
    decisions = [decode_decision(sent.value or b"") for sent in broker.sent[topic_name(PREFIX, DECISIONS)]]
    decided = {one.outcome.job_id for one in decisions if isinstance(one.outcome, JobAdmitted | JobRejected)}
    assert decided == {f"job-{number}" for number in range(BIDS)}
    assert broker.data.keys() == {CELL.encode(), b"/0"}


@pytest.mark.parametrize("behind", [[], [Partition(JOBS_TOPIC, 0)]], ids=["in time", "behind"])
def test_each_record_is_parsed_once(
    broker: Broker, settings: WorkerSettings, parses: Counter[str], behind: list[Partition]
) -> None:
    broker.behind = behind
    passed(broker, settings, count=len(inputs()))
    assert parses == Counter(event.TYPE for event in inputs())


def test_record_in_other_form_is_parsed_once(settings: WorkerSettings, parses: Counter[str]) -> None:
    broker = Broker()
    for number, event in enumerate(inputs()):
        envelope = events.envelope(event, f"e{number}")
        broker.put(envelope, json.dumps(json.loads(envelope.value), indent=1).encode())
    passed(broker, settings, count=len(inputs()))
    assert parses == Counter(event.TYPE for event in inputs())
    assert all(b"\n" not in (sent.value or b"") for sent in broker.sent[LEDGER_TOPIC])


def test_invalid_record_of_backlog_is_dead_letter(broker: Broker, settings: WorkerSettings) -> None:
    broker.behind = [Partition(JOBS_TOPIC, 0)]
    broker.put(events.envelope(events.bid(99, CELL), "bad"), b'{"cell":"alpha","user":"user"}')
    passed(broker, settings, count=len(inputs()))
    (letter,) = broker.sent[f"{JOBS_TOPIC}.dlt"]
    assert letter.value == b'{"cell":"alpha","user":"user"}'


def test_refused_record_is_acknowledged_dead_letter(broker: Broker, settings: WorkerSettings) -> None:
    broker.put(events.envelope(events.bid(99, CELL), "bad"), b"{")
    passed(broker, settings, count=len(inputs()))
    (letter,) = broker.sent[f"{JOBS_TOPIC}.dlt"]
    assert letter.value == b"{"


def test_a_heartbeat_stays_on_the_worker(broker: Broker, settings: WorkerSettings) -> None:
    heartbeat = NodeHeartbeat(cell=CELL, node=f"{CELL}-n0", base_model="tiny", runners=("lora",))
    broker.put(events.envelope(heartbeat, "beat"))
    passed(broker, settings, count=len(inputs()))
    assert all(b"heartbeat" not in dict(sent.headers)["ce_type"] for sent in broker.sent[LEDGER_TOPIC])


def test_reading_pauses_while_too_much_waits(broker: Broker, settings: WorkerSettings) -> None:
    for number in range(BIDS, BIDS + 400):
        broker.put(events.envelope(events.bid(number, CELL), f"e{number}"))
    paused: list[Partition] = []
    broker.pause_partitions = paused.extend  # type: ignore[method-assign]
    passed(broker, settings.model_copy(update={"intake_waiting_mib": 1}), count=len(inputs()) + 400)
    assert paused == [Partition(JOBS_TOPIC, 0)]
