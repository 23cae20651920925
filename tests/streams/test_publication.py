"""Published decisions agree with the documents."""

import json

import pytest
from jsonschema import Draft202012Validator

from schemas.asyncapi import asyncapi
from schemas.documents import json_schemas
from schemas.view_records import JobState
from streams.kafka.records import ReadRecord
from streams.worker.intake import dead_letter
from streams.worker.publication import Publication
from tests.support.cells import Bench, bid, failed, finished, online, tick, withdraw
from tests.support.loans import lending_cell, offered, reclaimed, reported

HISTORIES = {
    "admitted": (),
    "withdrawn": (withdraw(),),
    "refunded": (tick(0), failed("a1", 0, 0, permanent=True)),
    "completed": (tick(0), finished("a1", 0)),
}


def view(bench: Bench) -> list[tuple[str, JobState]]:
    """The records of `jobs.state` with their keys, in order; each is valid under the published schema."""
    publication = Publication("t", {})
    validator = Draft202012Validator(json_schemas()[JobState.TYPE])
    records = [record for decision in bench.decisions for record in publication.records(decision)]
    written = [(record.key, record.value) for record in records if record.topic == "t.jobs.state"]
    for _, value in written:
        validator.validate(json.loads(value))
    return [(key.decode(), JobState.model_validate_json(value)) for key, value in written]


def states(bench: Bench) -> list[JobState]:
    return [state for _, state in view(bench)]


@pytest.mark.parametrize(("state", "events"), HISTORIES.items(), ids=HISTORIES.keys())
def test_latest_job_state_has_final_payment(state: str, events) -> None:
    bench = Bench.configured()
    bench.send(online("a1"), bid(), *events)
    admitted, latest = states(bench)[0], states(bench)[-1]
    assert latest.state == state
    assert admitted.payment_micros == latest.payment_micros + (latest.returned_micros or 0) > 0


def test_losing_bid_pays_nothing_and_has_reason() -> None:
    bench = Bench.configured()
    bench.send(bid(units=1.0))
    (rejected,) = states(bench)
    assert (rejected.state, rejected.payment_micros) == ("rejected", None)
    assert rejected.facts == {"bid_micros": 1_000_000, "lowest_winning_bid_micros": 2_000_001}


def test_users_with_same_job_id_keep_own_states() -> None:
    bench = Bench.configured()
    bench.send(bid(units=1.0, user="ann"), bid(units=2.0, user="ben"))
    assert {key: state.facts["bid_micros"] for key, state in view(bench)} == {
        "c/ann/j": 1_000_000,
        "c/ben/j": 2_000_000,
    }


def test_completed_job_has_adapter_path() -> None:
    bench = Bench.configured()
    bench.send(online("a1"), bid(), *HISTORIES["completed"])
    completed = states(bench)[-1]
    assert (completed.adapter_path, completed.adapter_digest) == ("c/j", "0" * 64)


def test_view_of_loans_has_latest_of_each_server() -> None:
    bench = Bench()
    bench.send(lending_cell(), tick(0), reported(0.0), offered("s1", "s2"), reclaimed(1, due_slot=4))
    records = [record for decision in bench.decisions for record in Publication("t", {}).records(decision)]
    latest = {record.key: json.loads(record.value)["data"] for record in records if record.topic == "t.loans"}
    assert {key: loan["status"] for key, loan in latest.items()} == {b"c/s1": "returned", b"c/s2": "on_loan"}


def test_dead_letter_headers_match_description() -> None:
    record = ReadRecord("t.jobs", 3, 17, 0, b"c", b"{", (("ce_id", b"1"),))
    headers = {name: raw.decode() for name, raw in dead_letter(record, "t.jobs.dlt", "not JSON").headers}
    described = asyncapi()["components"]["schemas"]["DeadLetterHeaders"]
    assert headers.keys() == described["properties"].keys() | {"ce_id"}
    Draft202012Validator(described).validate(headers)
