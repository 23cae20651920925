"""Intake: every record becomes a ledger record or a dead letter with a reason, whatever is in it."""

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base import MAX_TIME_S, Event
from schemas.clock import ClockTicked
from schemas.codec import MAX_VALUE_BYTES, decode_event
from schemas.registry import EVENTS_BY_TOPIC, TOPIC_BY_EVENT, writer_of
from streams.cell.ledger import ledger_event_of
from streams.cell.rules import RuleBook
from streams.kafka.records import ReadRecord, SentRecord
from streams.worker.intake import MAX_KEPT_VALUE_BYTES, Accepted, Claim, Intake, IntakeTopic
from tests.streams import events
from tests.streams.mutations import mutate
from tests.support.examples import examples
from tests.support.rules import BOTH, FIRST, SECOND

INTAKE = Intake(
    {f"t.{name}": IntakeTopic(models, f"t.{name}.dlt") for name, models in EVENTS_BY_TOPIC.items()},
    "t.ledger",
    frozenset({"alpha"}),
    max_tick_ahead_s=60.0,
    partitions=1,
)
GOOD = events.envelope(events.bid(1), "bid-1")


def record(topic: str = "jobs", **changes: object) -> ReadRecord:
    """A good record, but for `changes`."""
    good = ReadRecord(f"t.{topic}", 2, 17, 1_767_225_600_123, b"alpha", GOOD.value, tuple(GOOD.headers()))
    return replace(good, **changes)  # type: ignore[arg-type]


def without(name: str) -> tuple[tuple[str, bytes], ...]:
    return tuple(header for header in GOOD.headers() if header[0] != name)


def edited(**changes: object) -> bytes:
    return json.dumps({**json.loads(GOOD.value), **changes}).encode()


def admitted(record: ReadRecord, intake: Intake = INTAKE) -> SentRecord:
    """Return the result of a record: a ledger record, or a dead letter."""
    decided = intake.admit(record)
    return decided.record if isinstance(decided, Accepted) else decided


def reason(sent: SentRecord) -> str:
    return dict(sent.headers)["dlt_reason"].decode()


def test_good_record_enters_the_ledger_canonically() -> None:
    spaced = json.dumps(json.loads(GOOD.value), indent=2).encode()

    sent = admitted(record(value=spaced))

    assert (sent.topic, sent.key, sent.value) == ("t.ledger", b"alpha", GOOD.value)
    assert decode_event(sent.value, sent.headers) == GOOD
    as_read = ReadRecord(sent.topic, 0, 5, None, sent.key, sent.value, sent.headers)
    assert ledger_event_of(as_read).envelope == GOOD


def test_structured_mode_enters_the_ledger_in_binary_mode() -> None:
    sent = admitted(record(value=GOOD.canonical, headers=()))

    assert (sent.topic, sent.value) == ("t.ledger", GOOD.value)
    assert dict(sent.headers) == dict(GOOD.headers())


def test_empty_time_is_stamped_from_the_record() -> None:
    sent = admitted(record(headers=without("ce_time")))

    assert dict(sent.headers)["ce_time"] == b"2026-01-01T00:00:00.123Z"


def test_time_of_the_producer_is_kept() -> None:
    assert dict(admitted(record()).headers)["ce_time"] == GOOD.time.encode()


def test_trace_context_is_passed_on_and_nothing_else() -> None:
    headers = (
        *GOOD.headers(),
        ("traceparent", b"00-ab-cd-01"),
        ("tracestate", b"a=b"),
        ("cookie", b"secret"),
    )

    sent = dict(admitted(record(headers=headers)).headers)

    assert (sent["traceparent"], sent["tracestate"]) == (b"00-ab-cd-01", b"a=b")
    assert "cookie" not in sent


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"value": None}, "no value", id="tombstone"),
        pytest.param({"value": b""}, "JSON", id="empty"),
        pytest.param({"value": b"\xff\xfe"}, "JSON", id="not text"),
        pytest.param({"value": b"[" * 4_000, "headers": ()}, "JSON", id="deeply nested"),
        pytest.param({"value": b"x" * (MAX_VALUE_BYTES + 1)}, "bytes", id="too large"),
        pytest.param({"value": b"9" * 10_000, "headers": ()}, "JSON", id="number of 10,000 digits"),
        pytest.param({"headers": ()}, "ce_type", id="no attributes"),
        pytest.param({"headers": without("ce_id")}, "id", id="no id"),
        pytest.param({"headers": (*without("ce_id"), ("ce_id", b""))}, "id", id="empty id"),
        pytest.param({"headers": (*without("ce_type"), ("ce_type", b"x"))}, "unknown event type", id="type"),
        pytest.param({"headers": (*without("ce_type"), ("ce_type", None))}, "ce_type", id="null header"),
        pytest.param({"headers": (*without("ce_id"), ("ce_id", b"\xff"))}, "UTF-8", id="header not text"),
        pytest.param({"value": edited(cell="beta")}, "cell beta is not served", id="foreign cell"),
        pytest.param({"value": edited(bid_micros=-1)}, "bid_micros", id="negative bid"),
        pytest.param({"value": edited(bid_micros="5")}, "bid_micros", id="bid as text"),
        pytest.param({"value": edited(surprise=1)}, "surprise", id="unknown field"),
        pytest.param({"topic": "t.clock"}, "does not belong on t.clock", id="wrong topic"),
    ],
)
def test_refused_with_a_reason(changes: dict[str, object], expected: str) -> None:
    refused = replace(record(), **changes)  # type: ignore[arg-type]

    sent = admitted(refused)

    assert sent.topic == f"{refused.topic}.dlt"
    assert expected in reason(sent)
    about = dict(sent.headers)
    assert (about["dlt_topic"], about["dlt_partition"], about["dlt_offset"]) == (
        refused.topic.encode(),
        b"2",
        b"17",
    )


@pytest.mark.parametrize(
    ("book", "rules", "advice"),
    [
        pytest.param(FIRST, 2, "(it has 1): a newer version of Millrace has them", id="newer"),
        pytest.param(SECOND, 1, "(it has 2): version 0.1.0 of Millrace has them", id="former"),
        pytest.param(BOTH, 3, "(it has 1, 2): a newer version of Millrace has them", id="newest"),
    ],
)
def test_a_configuration_names_rules_that_the_worker_has(book: RuleBook, rules: int, advice: str) -> None:
    inputs = {"t.cells": IntakeTopic(EVENTS_BY_TOPIC["cells"], "t.cells.dlt")}
    intake = replace(INTAKE, inputs=inputs, book=book)

    def configured(version: int) -> SentRecord:
        event = events.configuration().model_copy(update={"rules": version})
        envelope = events.envelope(event, "c")
        sent = record("cells", value=envelope.value, headers=tuple(envelope.headers()))
        return admitted(sent, intake)

    refused = f"the configuration names rules {rules}, which this program does not have {advice}"
    assert reason(configured(rules)) == refused
    assert configured(book.newest.version).topic == "t.ledger"


def test_nodes_and_clock_need_partition_of_cell() -> None:
    inputs = {
        "t.jobs": IntakeTopic(EVENTS_BY_TOPIC["jobs"], "t.jobs.dlt"),
        "t.clock": IntakeTopic(EVENTS_BY_TOPIC["clock"], "t.clock.dlt", in_own_partition=True),
    }
    intake = replace(INTAKE, inputs=inputs, partitions=4)
    own = intake.partition_of("alpha")

    assert admitted(replace(tick(STAMP_S), partition=own), intake).topic == "t.ledger"
    strayed = admitted(replace(tick(STAMP_S), partition=(own + 1) % 4), intake)
    assert f"it lies in partition {(own + 1) % 4}" in reason(strayed)
    assert f"belongs in {own}: key records by cell" in reason(strayed)
    # Anybody's client may send a bid, whatever its partitioner.
    assert admitted(record(partition=(own + 1) % 4), intake).topic == "t.ledger"


CLAIMS = {
    "a bid": (events.bid(1), "jobs", "jobs/user"),
    "a tick": (ClockTicked(cell="alpha", time_s=1.0), "clock", "clock"),
    "a quote": (events.stream(12)[-1], "quotes", "quotes/labels"),
}


@pytest.mark.parametrize(("event", "topic", "writer"), CLAIMS.values(), ids=CLAIMS.keys())
def test_record_claims_writer_before_validation(event: Event, topic: str, writer: str) -> None:
    envelope = events.envelope(event, "1")
    sent = record(topic, value=envelope.value, headers=tuple(envelope.headers()))

    claim = INTAKE.claim(sent)

    assert claim is not None
    assert (claim.cell, claim.writer, claim.type) == ("alpha", writer, type(event))
    assert claim.writer == writer_of(event)


@pytest.mark.parametrize("event", events.stream(12), ids=lambda event: event.TYPE)
def test_every_event_claims_its_writer_unparsed(event: Event) -> None:
    spaced = json.dumps(event.model_dump(mode="json"), indent=2).encode()
    for value in (event.model_dump_json().encode(), spaced):
        headers = tuple(events.envelope(event, "1").headers())
        claim = INTAKE.claim(record(TOPIC_BY_EVENT[type(event)], value=value, headers=headers))
        assert claim == Claim.of(event)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"value": None}, id="tombstone"),
        pytest.param({"value": b"[]"}, id="no object"),
        pytest.param({"value": b"[" * 100_000}, id="deeply nested"),
        pytest.param({"value": edited(cell="beta")}, id="foreign cell"),
        pytest.param({"value": edited(cell=["alpha"])}, id="cell of another type"),
        pytest.param({"value": b'{"workload":{"a":1},' + record().value[1:]}, id="nested before the writer"),
        pytest.param({"value": record().value.replace(b"alpha", b"alph\\u0061")}, id="escaped cell"),
        pytest.param({"value": record().value.replace(b"alpha", b"alph\xff")}, id="cell not text"),
        pytest.param({"headers": ()}, id="structured mode"),
        pytest.param({"headers": (("ce_type", b"millrace.clock.ticked.v1"),)}, id="of another topic"),
        pytest.param({"headers": (("ce_type", None),)}, id="null header"),
        pytest.param({"headers": (("ce_type", b"\xff"),)}, id="header not text"),
    ],
)
def test_record_without_writer_does_not_wait(changes: dict[str, object]) -> None:
    assert INTAKE.claim(replace(record(), **changes)) is None  # type: ignore[arg-type]


def test_dead_letter_keeps_bytes_up_to_bound() -> None:
    small, large = b"\x00broken\xff", b"y" * (MAX_VALUE_BYTES + 1)

    assert admitted(record(value=small)).value == small
    cut = admitted(record(value=large))
    assert cut.value == large[:MAX_KEPT_VALUE_BYTES]
    assert dict(cut.headers)["dlt_value_bytes"] == str(len(large)).encode()


def test_dead_letter_cannot_be_given_false_origins() -> None:
    forged = (("dlt_topic", b"elsewhere"), ("dlt_reason", b"none"))

    sent = admitted(record(headers=forged))

    assert [value for name, value in sent.headers if name == "dlt_topic"] == [b"t.jobs"]
    assert len([name for name, _ in sent.headers if name == "dlt_reason"]) == 1


STAMP_S = 1_767_225_600.0


def tick(time_s: float, timestamp_ms: int | None = int(STAMP_S * 1_000)) -> ReadRecord:
    good = events.envelope(ClockTicked(cell="alpha", time_s=time_s), "tick-1")
    return ReadRecord("t.clock", 0, 3, timestamp_ms, b"alpha", good.value, tuple(good.headers()))


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(tick(STAMP_S), id="now"),
        pytest.param(tick(STAMP_S + 60.0), id="just allowed"),
        pytest.param(tick(0.0), id="long ago"),
        pytest.param(tick(STAMP_S * 2, int(STAMP_S * 2_000)), id="by a simulated clock that stamps alike"),
        pytest.param(tick(30.0, None), id="by a simulated clock without stamps, near its zero"),
    ],
)
def test_tick_enters_the_ledger(record: ReadRecord) -> None:
    assert admitted(record).topic == "t.ledger"


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(tick(STAMP_S + 61.0), id="just not"),
        pytest.param(tick(MAX_TIME_S), id="the end of time"),
        pytest.param(tick(STAMP_S, None), id="without a timestamp"),
        pytest.param(tick(STAMP_S, -1), id="with Kafka's mark for no timestamp"),
    ],
)
def test_tick_from_the_future_is_refused(record: ReadRecord) -> None:
    sent = admitted(record)
    assert sent.topic == "t.clock.dlt"
    assert "ahead of its record's timestamp, at most 60 s are allowed" in reason(sent)


def test_any_tick_passes_without_a_bound() -> None:
    boundless = replace(INTAKE, max_tick_ahead_s=math.inf)
    assert admitted(tick(MAX_TIME_S), boundless).topic == "t.ledger"


def test_unexpected_fault_is_a_dead_letter_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr("streams.worker.intake.decode_event", fail)

    assert reason(admitted(record())) == "unexpected RecursionError: too deep"


@settings(max_examples=examples(9_500), deadline=None)
@given(seed=st.integers(0, 2**63), number=st.integers(0, 40))
def test_mutated_records_never_crash(seed: int, number: int) -> None:
    event = events.stream(42)[number]
    good = events.envelope(event, f"e{number}")
    topic = f"t.{TOPIC_BY_EVENT[type(event)]}"
    value, headers = mutate(good, random.Random(seed))

    spoiled = ReadRecord(topic, 0, seed % 1_000, 1_000, b"k", value, headers)
    claim = INTAKE.claim(spoiled)
    sent = admitted(spoiled)

    if sent.topic == "t.ledger":
        as_read = ReadRecord(sent.topic, 0, 5, None, sent.key, sent.value, sent.headers)
        event = ledger_event_of(as_read).envelope.event
        assert event.cell == "alpha"
        assert claim is None or claim.writer == writer_of(event), "it waits as what it is"
    else:
        assert sent.topic == f"{topic}.dlt"
        assert reason(sent)
