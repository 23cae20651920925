"""The codec: canonical bytes survive every round trip, and what is no event is refused with a reason."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.base import MAX_TIME_S
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope, InvalidRecordError
from schemas.registry import DECISION_TYPES, EVENT_TYPES
from tests.schemas.samples import CONFIGURED, IGNORED, SUBMITTED, TICKED
from tests.schemas.strategies import PRINTABLE, SEEDED, payloads
from tests.support.examples import examples

CHAIN = "0f" * 32
HEADERS = [
    ("ce_specversion", b"1.0"),
    ("ce_id", b"event-1"),
    ("ce_type", b"millrace.clock.ticked.v1"),
    ("ce_source", b"/clock"),
    ("ce_time", b"2031-05-01T12:00:00Z"),
]


def ticked(value: bytes, **replaced: bytes | None) -> Envelope:
    """Decode a tick whose headers are as above but for those named."""
    headers = dict(HEADERS) | {f"ce_{name}": raw for name, raw in replaced.items()}
    return codec.decode_event(value, headers.items())


def structured(**replaced: Any) -> bytes:
    """A tick in structured mode, whose attributes are as usual but for those named."""
    fields = {
        "specversion": "1.0",
        "id": "event-1",
        "type": "millrace.clock.ticked.v1",
        "source": "/clock",
        "data": TICKED,
    }
    return json.dumps(
        {name: value for name, value in (fields | replaced).items() if value != "absent"}
    ).encode()


@pytest.mark.parametrize("ce_type", sorted(EVENT_TYPES))
def test_events_round_trip_byte_for_byte(ce_type: str) -> None:
    @settings(SEEDED, max_examples=examples(40))
    @given(payload=payloads(ce_type), id=PRINTABLE, source=PRINTABLE, time=PRINTABLE)
    def round_trip(payload: dict[str, Any], id: str, source: str, time: str) -> None:
        event = EVENT_TYPES[ce_type].model_validate_json(json.dumps(payload))
        envelope = Envelope(id=id, source=source, time=time, event=event)
        binary = codec.decode_event(envelope.value, envelope.headers())
        assert binary == envelope
        assert (binary.value, binary.canonical) == (envelope.value, envelope.canonical)
        for line in (envelope.canonical, envelope.canonical.decode()):
            assert codec.decode_event_line(line).canonical == envelope.canonical
        assert codec.decode_event(envelope.canonical, []).canonical == envelope.canonical
        assert codec.decode_stored_event(envelope.value, envelope.headers()).stored == envelope.value
        line = b'{"offset":7,' + envelope.canonical[1:]
        offset, read = codec.decode_ledger_line(line)
        assert (offset, read, read.canonical) == (7, envelope, envelope.canonical)

    round_trip()


@pytest.mark.parametrize("ce_type", sorted(DECISION_TYPES))
def test_decisions_round_trip_byte_for_byte(ce_type: str) -> None:
    @settings(SEEDED, max_examples=examples(40))
    @given(payload=payloads(ce_type), cause=PRINTABLE, time_s=st.none() | st.floats(0, MAX_TIME_S))
    def round_trip(payload: dict[str, Any], cause: str, time_s: float | None) -> None:
        outcome = DECISION_TYPES[ce_type].model_validate_json(json.dumps(payload))
        decision = Decision("cell-1-7-0", "cell-1", cause, time_s, outcome, CHAIN)
        read = codec.decode_decision(decision.canonical)
        assert read == decision
        assert read.canonical == decision.canonical
        assert codec.decode_decision(decision.canonical.decode()).canonical == decision.canonical

    round_trip()


def test_the_canonical_bytes_are_pinned() -> None:
    tick = ticked(b'{ "time_s": 600, "cell": "cell-1" }', id="é".encode())
    assert tick.value == b'{"cell":"cell-1","time_s":600.0}'
    assert tick.canonical == (
        b'{"id":"\\u00e9","type":"millrace.clock.ticked.v1","source":"/clock","time":"2031-05-01T12:00:00Z",'
        b'"data":{"cell":"cell-1","time_s":600.0}}'
    )
    outcome = DECISION_TYPES["millrace.event.ignored.v1"].model_validate_json(json.dumps(IGNORED))
    assert Decision("cell-1-7-0", "cell-1", "event-1", None, outcome, CHAIN).canonical == (
        b'{"id":"cell-1-7-0","type":"millrace.event.ignored.v1","cell":"cell-1","cause":"event-1","time_s":null,'
        b'"data":{"reason":"unknown_job","facts":{"job_id":"job-9"}},"chain":"' + CHAIN.encode() + b'"}'
    )


def test_defaults_are_written_out() -> None:
    event = EVENT_TYPES["millrace.job.submitted.v1"].model_validate_json(json.dumps(SUBMITTED))
    workload = json.loads(event.model_dump_json())["workload"]
    assert workload["hyperparameters"]["rank"] == 8
    assert workload["memory_gib"] is None


@pytest.mark.parametrize(
    ("fields", "fault"),
    [({"rank": 1_025}, "rank"), ({"target_modules": ["q_proj", "q_proj"]}, "q_proj is named twice")],
    ids=["a rank that no executor takes", "a layer that is named twice"],
)
def test_invalid_hyperparameters_are_refused_at_intake(fields: dict[str, Any], fault: str) -> None:
    bid = SUBMITTED | {"workload": SUBMITTED["workload"] | {"hyperparameters": fields}}
    headers = [("ce_type", b"millrace.job.submitted.v1"), *(h for h in HEADERS if h[0] != "ce_type")]
    with pytest.raises(InvalidRecordError, match=fault):
        codec.decode_event(json.dumps(bid).encode(), headers)


def test_binary_and_structured_mode_read_the_same() -> None:
    binary = ticked(json.dumps(TICKED).encode(), time=b"")
    assert codec.decode_event(structured(), []) == binary
    assert codec.decode_event(structured(), [("content-type", b"application/cloudevents+json")]) == binary


def test_the_ce_type_header_decides_the_mode() -> None:
    with pytest.raises(InvalidRecordError, match="specversion: Extra inputs"):
        ticked(structured())


def test_foreign_headers_and_attributes_are_ignored() -> None:
    headers = [*HEADERS, ("traceparent", b"\xff" * 5_000), ("ce_traceparent", b"00-1-2-01"), ("other", None)]
    assert codec.decode_event(json.dumps(TICKED).encode(), headers).id == "event-1"
    assert codec.decode_event(structured(datacontenttype="application/json"), []).id == "event-1"


@pytest.mark.parametrize("subject", [None, b"", b"\xff", b"s" * 5_000])
def test_unread_attribute_may_have_any_value(subject: bytes | None) -> None:
    value = json.dumps(TICKED).encode()
    assert ticked(value, subject=subject) == ticked(value)
    headers = [*HEADERS, ("ce_subject", subject), ("ce_subject", subject)]
    assert codec.decode_event(value, headers) == ticked(value)


def test_a_null_attribute_is_as_absent() -> None:
    binary = ticked(json.dumps(TICKED).encode(), time=None, specversion=None)
    assert binary.time == ""
    absent = structured(specversion="absent")
    for null in ({"time": None}, {"specversion": None}, {"subject": None}, {"data_base64": None}):
        assert codec.decode_event(structured(**null), []) == binary
    assert codec.decode_event(absent, []) == binary


NESTED = b"[" * 100_000 + b"]" * 100_000
REFUSED_VALUES = {
    "no value": (None, "no value"),
    "empty": (b"", "not JSON"),
    "broken": (b'{"cell":"cell-1","time_s":600.0', "not JSON"),
    "two values": (b'{"cell":"cell-1","time_s":1}{}', "not JSON"),
    "no object": (b"[1]", "not a JSON object"),
    "bare NaN": (b"NaN", "not a JSON object"),
    "unknown field": (b'{"cell":"cell-1","time_s":1,"x":2}', "x: Extra inputs"),
    "field with a line break": (b'{"cell":"cell-1","time_s":1,"x\\ny":2}', r"x\\ny: Extra inputs"),
    "missing field": (b'{"cell":"cell-1"}', "time_s: Field required"),
    "text for a number": (b'{"cell":"cell-1","time_s":"1"}', "time_s: Input should be a valid number"),
    "truth for a number": (b'{"cell":"cell-1","time_s":true}', "time_s: Input should be a valid number"),
    "null": (b'{"cell":"cell-1","time_s":null}', "time_s: Input should be a valid number"),
    "number for text": (b'{"cell":1,"time_s":1}', "cell: Input should be a valid string"),
    "NaN": (b'{"cell":"cell-1","time_s":NaN}', "time_s: Input should be a finite number"),
    "infinity": (b'{"cell":"cell-1","time_s":-Infinity}', "time_s: Input should be a finite number"),
    "overflow": (b'{"cell":"cell-1","time_s":1e999}', "time_s: Input should be a finite number"),
    "huge integer": (b'{"cell":"cell-1","time_s":1' + b"0" * 300 + b"}", "less than or equal"),
    "integer without end": (b'{"cell":"cell-1","time_s":1' + b"0" * 9_000 + b"}", "4300 digits"),
    "negative": (b'{"cell":"cell-1","time_s":-0.5}', "greater than or equal to 0"),
    "deep nesting": (NESTED, "not JSON: maximum recursion depth"),
    "deep nesting in a field": (b'{"cell":' + NESTED + b',"time_s":1}', "not JSON: maximum recursion depth"),
    "lone surrogate": (b'{"cell":"\\ud800","time_s":1}', "hex escape"),
    "lone surrogate in UTF-8": (b'{"cell":"\xed\xa0\x80","time_s":1}', "not JSON: 'utf-8'"),
    "not UTF-8": (b'{"cell":"\xff","time_s":1}', "not JSON: 'utf-8'"),
    "UTF-16": ('{"cell":"cell-1","time_s":1}'.encode("utf-16"), "not JSON: 'utf-8'"),
    "byte order mark": (b'\xef\xbb\xbf{"cell":"cell-1","time_s":1}', "not JSON: Unexpected UTF-8 BOM"),
    "name twice": (b'{"cell":"cell-1","time_s":1,"time_s":2}', "time_s is given twice"),
    "long identifier": (b'{"cell":"' + b"c" * 129 + b'","time_s":1}', "cell: String should match"),
    "identifier with a line break": (b'{"cell":"cell-1\\n","time_s":1}', "cell: String should match"),
    "over-long value": (b'{"cell":"' + b"c" * codec.MAX_VALUE_BYTES + b'"}', "at most 1048576 are read"),
}


@pytest.mark.parametrize(("value", "reason"), REFUSED_VALUES.values(), ids=REFUSED_VALUES)
def test_a_bad_value_is_refused_with_the_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason) as refusal:
        codec.decode_event(value, HEADERS)
    assert str(refusal.value).isprintable()


REFUSED_HEADERS: dict[str, tuple[dict[str, bytes | None], str]] = {
    "unknown type": ({"type": b"millrace.clock.ticked.v9"}, "unknown event type 'millrace.clock.ticked.v9'"),
    "type of a decision": ({"type": b"millrace.job.admitted.v1"}, "unknown event type"),
    "type with a line break": ({"type": b"a\nb"}, r"unknown event type 'a\\nb'"),
    "no id": ({"id": None}, "attribute id is missing"),
    "empty id": ({"id": b""}, "attribute id must have 1 to 256"),
    "long id": ({"id": b"i" * 257}, "attribute id must have 1 to 256"),
    "long source": ({"source": b"s" * 257}, "attribute source must have 0 to 256"),
    "long header": ({"source": b"s" * 1_025}, "header ce_source is longer than 1024"),
    "id with a line break": ({"id": b"a\nb"}, "attribute id must have"),
    "time that is not UTF-8": ({"time": b"\xff"}, "header ce_time is not UTF-8"),
    "another specversion": ({"specversion": b"0.3"}, "only version 1.0 of CloudEvents"),
}


@pytest.mark.parametrize(("replaced", "reason"), REFUSED_HEADERS.values(), ids=REFUSED_HEADERS)
def test_bad_headers_are_refused_with_the_reason(replaced: dict[str, bytes | None], reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason) as refusal:
        ticked(json.dumps(TICKED).encode(), **replaced)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 200


def test_a_missing_or_repeated_header_is_refused() -> None:
    value = json.dumps(TICKED).encode()
    with pytest.raises(InvalidRecordError, match="attribute source is missing"):
        codec.decode_event(value, [header for header in HEADERS if header[0] != "ce_source"])
    with pytest.raises(InvalidRecordError, match="header ce_id is given twice"):
        codec.decode_event(value, [*HEADERS, ("ce_id", b"event-2")])


REFUSED_STRUCTURES = {
    "no data": (structured(data="absent"), "neither a ce_type header nor"),
    "null data": (structured(data=None), "^data is null: give the event as a JSON object under data$"),
    "null id": (structured(id=None), "attribute id is missing"),
    "data in base 64": (structured(data="absent", data_base64="e30="), "data_base64 is not read"),
    "no type": (structured(type="absent"), "unknown event type that is no string"),
    "type of the wrong kind": (structured(type=["a"]), "unknown event type that is no string"),
    "deeply nested type": (
        structured(type=json.loads("[" * 900 + "]" * 900)),
        "unknown event type that is no",
    ),
    "id of the wrong kind": (structured(id=7), "attribute id is missing or no string"),
    "id with a lone surrogate": (structured(id="\ud800"), "attribute id must have"),
    "time of the wrong kind": (structured(time=7), "attribute time is missing or no string"),
    "data of the wrong kind": (structured(data=[TICKED]), "Input should be an object"),
    "data with a lone surrogate": (structured(data={"cell": "\ud800", "time_s": 1}), "hex escape"),
    "another specversion": (structured(specversion="0.3"), "only version 1.0 of CloudEvents"),
    "attribute twice": (structured().replace(b'"source"', b'"id"'), "not JSON: id is given twice"),
}


@pytest.mark.parametrize(("value", "reason"), REFUSED_STRUCTURES.values(), ids=REFUSED_STRUCTURES)
def test_invalid_structured_record_is_refused_with_reason(value: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        codec.decode_event(value, [])


@pytest.mark.parametrize("depth", range(900, 1_000))
def test_nesting_near_the_recursion_limit_is_refused_too(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    for line in (
        b'{"type":' + nested + b',"data":{}}',
        b'{"id":"e","source":"s","type":"millrace.clock.ticked.v1","data":' + nested + b"}",
    ):
        with pytest.raises(InvalidRecordError):
            codec.decode_event_line(line)
    with pytest.raises(InvalidRecordError):
        codec.decode_decision(b'{"data":' + nested + b"}")


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "..", "../x", "a/..", "a/../../x", "a//../x", "a\\..\\x", "a\0", "a\n", ""]
)
def test_a_path_outside_its_root_is_refused(path: str) -> None:
    submitted = SUBMITTED | {"workload": SUBMITTED["workload"] | {"dataset": {"path": path, "samples": 1}}}
    with pytest.raises(InvalidRecordError, match=r"workload\.lora\.dataset\.path: "):
        ticked(json.dumps(submitted).encode(), type=b"millrace.job.submitted.v1")
    finished = {
        "cell": "c",
        "node": "n",
        "slot": 1,
        "job_id": "j",
        "samples_done": 1,
        "loss": 0.5,
        "adapter_path": path,
        "adapter_digest": CHAIN,
    }
    with pytest.raises(InvalidRecordError, match="adapter_path: "):
        ticked(json.dumps(finished).encode(), type=b"millrace.run.finished.v1")


@pytest.mark.parametrize("named", [{"adapter_path": "c/j"}, {"adapter_digest": CHAIN}])
def test_an_adapter_is_reported_with_its_digest(named: dict[str, str]) -> None:
    finished = {"cell": "c", "node": "n", "run_id": "1/j", "job_id": "j", "samples_done": 1}
    ticked(json.dumps(finished).encode(), type=b"millrace.run.finished.v1")
    with pytest.raises(InvalidRecordError, match="adapter_path and adapter_digest go together"):
        ticked(json.dumps(finished | named).encode(), type=b"millrace.run.finished.v1")


def test_value_too_long_in_canonical_form_is_refused() -> None:
    """It would be written to the ledger and could never be read again."""
    [zone] = CONFIGURED["zones"]
    row = {"gpu_type": "a100", "samples_per_s": 1, "memory_gib": 1}
    rows = [row | {"rank": 1, "batch_size": 1, "sequence_length": 1}] * 10_000
    nodes = [{"id": f"node-{index}", "gpu_type": "a100", "tariff": "flat"} for index in range(800)]
    configured = CONFIGURED | {"zones": [zone | {"nodes": nodes, "throughput": rows}]}
    value = json.dumps(configured, separators=(",", ":")).encode()
    assert 1_000_000 < len(value) < codec.MAX_VALUE_BYTES
    with pytest.raises(InvalidRecordError, match="in canonical form"):
        ticked(value, type=b"millrace.cell.configured.v1")


OTHER_FORMS = {
    "space": b'{"cell":"cell-1", "time_s":600.0}',
    "line break": b'{"cell":"cell-1","time_s":600.0}\n',
    "another order": b'{"time_s":600.0,"cell":"cell-1"}',
    "key twice": b'{"cell":"cell-1","time_s":1.0,"time_s":600.0}',
    "integer": b'{"cell":"cell-1","time_s":600}',
    "exponent": b'{"cell":"cell-1","time_s":6e2}',
    "escaped letter": b'{"cell":"\\u0063ell-1","time_s":600.0}',
}


@pytest.mark.parametrize("value", OTHER_FORMS.values(), ids=OTHER_FORMS)
def test_the_ledger_holds_the_canonical_form_alone(value: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="the data are not in canonical form"):
        codec.decode_stored_event(value, HEADERS)


def test_earlier_event_without_field_keeps_bytes() -> None:
    event = EVENT_TYPES["millrace.job.submitted.v1"].model_validate_json(json.dumps(SUBMITTED))
    earlier = json.dumps(SUBMITTED, separators=(",", ":")).encode()
    assert len(earlier) < len(event.model_dump_json())
    headers = [*HEADERS[:2], ("ce_type", b"millrace.job.submitted.v1"), *HEADERS[3:]]
    envelope = codec.decode_stored_event(earlier, headers)
    assert (envelope.event, envelope.value) == (event, earlier)


def test_earlier_event_is_read_despite_length() -> None:
    zone = CONFIGURED["zones"][0] | {"horizon_slots": 16}
    node = {"gpu_type": "a100", "tariff": "flat"}
    nodes = [{"id": f"{index:0100}", **node} for index in range(7_277)]
    value = json.dumps(CONFIGURED | {"zones": [zone | {"nodes": nodes}]}).encode()
    model = EVENT_TYPES["millrace.cell.configured.v1"]
    event = model.model_validate_json(value)
    stored = event.model_dump_json(exclude_unset=True).encode()
    assert len(stored) <= codec.MAX_VALUE_BYTES < len(event.model_dump_json())
    headers = [*HEADERS[:2], ("ce_type", b"millrace.cell.configured.v1"), *HEADERS[3:]]
    assert codec.decode_stored_event(stored, headers).value == stored


NOT_STRICT = {
    "a name twice": (b'{"cell":"cell-1","time_s":1.0,"time_s":600.0}', "time_s is given twice"),
    "twice the same": (b'{"cell":"cell-1","time_s":600.0,"time_s":600.0}', "time_s is given twice"),
    "names of no model": (b"{%s}" % b",".join(b'"n%d":0' % n for n in range(300)), "has 300 names"),
}


@pytest.mark.parametrize(("value", "fault"), NOT_STRICT.values(), ids=NOT_STRICT)
def test_strictness_is_independent_of_earlier_reads(value: bytes, fault: str) -> None:
    canonical = b'{"cell":"cell-1","time_s":600.0}'
    for _ in range(2):
        assert ticked(canonical).value == canonical
        with pytest.raises(InvalidRecordError, match=fault):
            ticked(value)


def test_one_reading_serves_intake_and_ledger() -> None:
    event = EVENT_TYPES["millrace.job.submitted.v1"].model_validate_json(json.dumps(SUBMITTED))
    sent = Envelope("event-1", "/ada", "", event)
    taken = codec.decode_event(sent.value, sent.headers())
    stored = codec.decode_stored_event(taken.value, taken.headers(), taken.event)
    assert stored == taken
    assert stored.event is taken.event
    assert stored.canonical == taken.canonical


@pytest.mark.parametrize(
    "number",
    ["0.0", "0.1", "1e-7", "1.5e-300", "0.0001", "123456789.125", "4102444800.0", "1700000000.000001"],
)
def test_the_form_of_numbers_is_pinned(number: str) -> None:
    """Ledgers are kept for ever: a library that wrote numbers otherwise would read none of them."""
    value = b'{"cell":"cell-1","time_s":%s}' % number.encode()
    assert codec.decode_stored_event(value, HEADERS).value == value


DECISION = {
    "id": "cell-1-7-0",
    "type": "millrace.event.ignored.v1",
    "cell": "cell-1",
    "cause": "event-1",
    "time_s": 600.0,
    "data": IGNORED,
    "chain": CHAIN,
}
REFUSED_DECISIONS = {
    "no object": ([], "not a JSON object"),
    "unknown type": (DECISION | {"type": "millrace.job.submitted.v1"}, "unknown decision type"),
    "type of the wrong kind": (DECISION | {"type": []}, "type: Input should be a valid string"),
    "id of the wrong kind": (DECISION | {"id": 1}, "id: Input should be a valid string"),
    "time of the wrong kind": (DECISION | {"time_s": "x"}, "time_s: Input should be a valid number"),
    "no chain": ({k: v for k, v in DECISION.items() if k != "chain"}, "chain: Field required"),
    "bad chain": (DECISION | {"chain": "xyz"}, "chain: String should match"),
    "unknown field": (DECISION | {"x": 1}, "x: Extra inputs"),
    "bad outcome": (DECISION | {"data": {"reason": "whim", "facts": {}}}, "reason: Input should be"),
    "lone surrogate": (DECISION | {"cause": "\ud800"}, "hex escape"),
}


@pytest.mark.parametrize(("decision", "reason"), REFUSED_DECISIONS.values(), ids=REFUSED_DECISIONS)
def test_a_bad_decision_is_refused_with_the_reason(decision: Any, reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        codec.decode_decision(json.dumps(decision))


def test_stored_event_of_other_type_is_read() -> None:
    event = EVENT_TYPES["millrace.job.submitted.v1"].model_validate_json(json.dumps(SUBMITTED))
    sent = Envelope("event-1", "/ada", "", event)
    other = ClockTicked(cell="cell-1", time_s=1.0)
    assert codec.decode_stored_event(sent.value, sent.headers(), other) == sent
