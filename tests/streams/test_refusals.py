"""The cost of a refused record is bounded, whatever its contents; and no event is refused for its cost."""

import json
import math
import sys
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from schemas import codec, text
from schemas.codec import MAX_NAMES, MAX_VALUE_BYTES, Envelope
from schemas.experts.reports import ELEMENTS_PER_LAYER, MAX_ELEMENTS
from schemas.experts.workload import MAX_EXPERTS
from schemas.registry import EVENT_TYPES, EVENTS_BY_TOPIC, TOPIC_BY_EVENT
from streams.kafka.records import ReadRecord
from streams.worker import intake as intake_module
from streams.worker.intake import (
    MAX_KEPT_HEADER_BYTES,
    MAX_KEPT_HEADERS_BYTES,
    MAX_REASON_LENGTH,
    MAX_USUAL_VALUE_BYTES,
    Accepted,
    Intake,
    IntakeTopic,
    dead_letter,
)
from streams.worker.intake_queue import Waiting
from tests.schemas.samples import CONFIGURED, SUBMITTED
from tests.schemas.strategies import MODELS

LONGEST_NAME = "a" * 128
INTAKE = Intake(
    {f"t.{name}": IntakeTopic(models, f"t.{name}.dlt") for name, models in EVENTS_BY_TOPIC.items()},
    "t.ledger",
    frozenset({LONGEST_NAME, "cell-1"}),
    max_tick_ahead_s=math.inf,
    partitions=1,
)
BID = "millrace.job.submitted.v1"
CONFIGURATION = "millrace.cell.configured.v1"
USUAL = sorted(
    ce_type
    for ce_type, model in EVENT_TYPES.items()
    if TOPIC_BY_EVENT.get(model) in {"jobs", "quotes", "fleet", "clock"}
)


def headers(ce_type: str) -> list[tuple[str, bytes | None]]:
    return [("ce_id", b"e"), ("ce_source", b"s"), ("ce_type", ce_type.encode())]


def record(value: bytes, further: Any = (), ce_type: str = BID, **changes: Any) -> ReadRecord:
    topic = f"t.{TOPIC_BY_EVENT[EVENT_TYPES[ce_type]]}"
    fields = {"key": b"k", "headers": (*headers(ce_type), *further)} | changes
    return ReadRecord(topic, 0, 0, 1, value=value, **fields)


def bid(**changes: Any) -> bytes:
    return json.dumps({**SUBMITTED, **changes}, separators=(",", ":")).encode()


def workload(**changes: Any) -> bytes:
    return bid(workload={**SUBMITTED["workload"], **changes})


def largest(schema: dict[str, Any], fill: str, document: dict[str, Any] | None = None) -> Any:
    """The value of a schema with the most and the longest parts; free text is all of one character."""
    document = schema if document is None else document
    if "$ref" in schema:
        return largest(document["$defs"][schema["$ref"].removeprefix("#/$defs/")], fill, document)
    if "const" in schema or "enum" in schema:
        return max(schema.get("enum", [schema.get("const")]), key=len)
    if "anyOf" in schema:
        return max((largest(branch, fill, document) for branch in schema["anyOf"]), key=lambda v: len(str(v)))
    if "oneOf" in schema:
        return max((largest(branch, fill, document) for branch in schema["oneOf"]), key=lambda v: len(str(v)))
    match schema["type"]:
        case "null":
            return None
        case "boolean":
            return False
        case "integer":
            return schema["maximum"]
        case "number":
            return schema.get("maximum", schema.get("exclusiveMaximum")) / 3
        case "string" if "maxLength" in schema:
            return fill * schema["maxLength"]
        case "string":
            return {"^[0-9a-f]{64}$": "f" * 64}.get(schema["pattern"], LONGEST_NAME)
        case "array" if schema.get("uniqueItems"):
            return [f"{number:a<128}" for number in range(schema["maxItems"])]
        case "array":
            return [largest(schema["items"], fill, document)] * schema["maxItems"]
        case "object" if "patternProperties" in schema:
            [rule] = schema["patternProperties"].values()
            names = (f"{number:a<128}" for number in range(schema["maxProperties"]))
            return {name: largest(rule, fill, document) for name in names}
        case "object":
            parts = {name: largest(rule, fill, document) for name, rule in schema["properties"].items()}
            if "speedup" in parts:
                parts["speedup"] = [1.0, *[4 / 3] * (len(parts["speedup"]) - 1)]
            if "layers" in parts:
                parts["layers"] = parts["layers"][: MAX_ELEMENTS // (MAX_EXPERTS + ELEMENTS_PER_LAYER)]
            return parts
    raise NotImplementedError(f"no largest value for {schema}")


def escaped(value: Any) -> str:
    """JSON in which every character of every string is escaped, as any producer may write it."""
    match value:
        case dict():
            return "{" + ",".join(f"{escaped(name)}:{escaped(part)}" for name, part in value.items()) + "}"
        case list():
            return "[" + ",".join(map(escaped, value)) + "]"
        case str():
            units = value.encode("utf-16-be").hex()
            return '"' + "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)) + '"'
    return json.dumps(value)


FORMS = {
    "compact": lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False),
    "indented": lambda value: json.dumps(value, indent=8),
    "escaped": escaped,
}


@pytest.mark.parametrize("fill", [",", "[", "\U0001f600"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ce_type", USUAL)
def test_largest_event_of_each_type_enters(ce_type: str, form: str, fill: str) -> None:
    payload = largest(MODELS[ce_type].model_json_schema(), fill)
    structured = {"id": "i" * 256, "source": "s" * 256, "time": "t" * 256, "type": ce_type, "data": payload}

    binary = INTAKE.admit(record(FORMS[form](payload).encode(), ce_type=ce_type))
    whole = INTAKE.admit(record(FORMS[form](structured).encode(), ce_type=ce_type, headers=()))

    assert isinstance(binary, Accepted), binary.headers
    assert isinstance(whole, Accepted), whole.headers
    assert whole.event == binary.event == EVENT_TYPES[ce_type].model_validate_json(json.dumps(payload))


def test_configurations_and_solutions_may_be_large() -> None:
    [zone] = CONFIGURED["zones"]
    nodes = [{"id": f"n{number}", "gpu_type": "a100", "tariff": "flat"} for number in range(3_000)]
    configured = json.dumps(CONFIGURED | {"zones": [zone | {"nodes": nodes}]}).encode()
    plans = [{"job_id": f"j{number}", "node_slots": [[0, "n1"]]} for number in range(20_000)]
    solution = {"kind": "batch", "status": "optimal", "plans": plans, "bound_micros": 0}
    solved = {"cell": "cell-1", "zone": "z", "request_id": "r", "solution": solution, "solve_s": 1.0}
    answer = json.dumps(solved).encode()

    assert MAX_USUAL_VALUE_BYTES < len(configured) < MAX_VALUE_BYTES
    assert MAX_USUAL_VALUE_BYTES < len(answer) < MAX_VALUE_BYTES
    assert isinstance(INTAKE.admit(record(configured, ce_type=CONFIGURATION)), Accepted)
    assert isinstance(INTAKE.admit(record(answer, ce_type="millrace.solve.finished.v1")), Accepted)


def test_name_limit_exceeds_all_objects() -> None:
    for model in MODELS.values():
        document = model.model_json_schema()
        for schema in (document, *document.get("$defs", {}).values()):
            assert len(schema.get("properties", ())) < MAX_NAMES / 8
            for field in schema.get("properties", {}).values():
                for branch in (field, *field.get("anyOf", ())):
                    assert branch.get("maxProperties", 0) < MAX_NAMES / 8
                    assert "patternProperties" not in branch or "maxProperties" in branch


EXCESSIVE = {
    "a value too long": (record(b"x" * 7_800_000), "7800000 bytes, at most 131072 are read here"),
    "a number too long": (record(b'{"bid_micros":' + b"9" * 7_000_000 + b"}"), "at most 131072 are read"),
    "a header too long": (record(bid(), [("junk", b"\xff\xfe" * 3_900_000)]), "key and headers have 7800"),
    "zeros": (record(b"x", [("junk", b"\0" * 7_800_000)]), "key and headers have 7800"),
    "a name too long": (record(bid(), [("\u202e" * 2_500_000, b"x")]), "key and headers have 2500"),
    "an id too long": (
        record(bid(), headers=[("ce_type", BID.encode()), ("ce_id", b"\xff" * 7_800_000)]),
        "key and headers have 7800",
    ),
    "a type too long": (record(bid(), headers=[("ce_type", b"\xff" * 7_800_000)]), "key and headers"),
    "a key too long": (record(bid(), key=b"\xff" * 7_900_000), "key and headers have 7900"),
    "headers together": (record(bid(), [("h", b"x" * 1_000)] * 66), "66"),
    "many headers": (record(bid(), [("h", b"")] * 400_000), "there are 400003 headers, at most 256 are read"),
    "modules": (
        record(workload(hyperparameters={"target_modules": ["-"] * 30_000})),
        "30018 commas and opening brackets, at most 4096 are read here",
    ),
    "objects": (record(bid(x=[{}] * 30_000)), "commas and opening brackets"),
    "nesting": (record(bid(x=json.loads("[" * 700 + "]" * 700)).replace(b"[]", b"[" * 9_000)), "brackets"),
    "another topic's type": (
        record(json.dumps(CONFIGURED | {"zones": [0] * 30_000}).encode(), headers=headers(CONFIGURATION)),
        "commas and opening brackets",
    ),
}


@pytest.mark.parametrize(("excessive", "reason"), EXCESSIVE.values(), ids=EXCESSIVE)
def test_excessive_record_is_refused_unread(
    excessive: ReadRecord, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("it is not read")

    monkeypatch.setattr("streams.worker.intake.decode_event", read)

    assert INTAKE.claim(excessive) is None
    letter = INTAKE.admit(excessive)
    assert not isinstance(letter, Accepted)
    assert reason in dict(letter.headers)["dlt_reason"].decode()


FAULTY = {
    "modules": (
        workload(hyperparameters={"target_modules": ["-"] * 4_000}),
        BID,
        2,
        "target_modules.0: String",
    ),
    "speeds": (
        workload(speed_samples_per_s={f"-{n}": -1 for n in range(250)}),
        BID,
        600,
        "speed_samples_per_s",
    ),
    "unknown keys": (bid(**{f"k{n}": 0 for n in range(200)}), BID, 200, "k0: Extra inputs"),
    "more of them": (bid(**{f"k{n}": 0 for n in range(900)}), BID, 0, "906 names, at most 256 are read"),
    "plans": (
        json.dumps({"solution": {"kind": "batch", "plans": [0] * 300_000}}).encode(),
        "millrace.solve.finished.v1",
        10,
        "solution.batch.plans.0: Input should be an object",
    ),
    "keys of a configuration": (
        json.dumps(CONFIGURED | {f"k{n}": 0 for n in range(70_000)}).encode(),
        CONFIGURATION,
        0,
        "at most 256 are read",
    ),
}


@pytest.mark.parametrize(("value", "ce_type", "most", "reason"), FAULTY.values(), ids=FAULTY)
def test_faults_are_found_up_to_a_bound(
    value: bytes, ce_type: str, most: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    described, describe = [0], codec.describe

    def counted(error: ValidationError) -> str:
        described.append(error.error_count())
        return describe(error)

    monkeypatch.setattr(codec, "describe", counted)

    letter = INTAKE.admit(record(value, ce_type=ce_type))

    assert not isinstance(letter, Accepted)
    said = dict(letter.headers)["dlt_reason"].decode()
    assert reason in said
    assert len(said) < 1_200
    assert max(described) <= most


def test_first_faults_are_described_others_counted() -> None:
    letter = INTAKE.admit(record(bid(**{f"k{number}": 0 for number in range(30)})))

    assert not isinstance(letter, Accepted)
    said = dict(letter.headers)["dlt_reason"].decode()
    assert "k9: Extra inputs are not permitted; and 20 more" in said
    assert "k10" not in said


HOSTILE_HEADERS: dict[str, list[tuple[str, bytes | None]]] = {
    "one long value": [("junk", b"\xff\xfe" * 3_900_000)],
    "one long name": [("\u202e" * 2_500_000, b"x")],
    "long ids": [("ce_id", ("\u202e" * 2_500_000).encode())] * 3,
    "many of the longest that may be kept": [("junk", b"\0" * 1_000)] * 10_000,
    "many short ones": [("\u202e", b"\xff")] * 400_000,
}


@pytest.mark.parametrize("hostile", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS)
def test_dead_letter_escapes_within_its_limit(
    hostile: list[tuple[str, bytes | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    escaped_lengths = []

    def counted(shown: str) -> str:
        escaped_lengths.append(len(shown))
        return text.plain(shown)

    monkeypatch.setattr(intake_module, "plain", counted)
    refused = ReadRecord("t.jobs", 0, 0, 1, b"k", b"x", tuple(hostile))

    letter = dead_letter(refused, "t.jobs.dlt", "\x00" * 1_000_000)

    # A byte that is not UTF-8 is four characters when it is read.
    assert sum(escaped_lengths) <= 4 * MAX_KEPT_HEADERS_BYTES + MAX_REASON_LENGTH
    assert dict(letter.headers)["dlt_header_count"] == str(len(hostile)).encode()
    assert len(dict(letter.headers)["dlt_reason"]) == MAX_REASON_LENGTH


def test_short_headers_are_kept_between_long_ones() -> None:
    longest = ("h", b"x" * (MAX_KEPT_HEADER_BYTES - 1))
    mixed = (("a", b"\x1b"), ("long", b"x" * 1_021), longest, ("b", b"2"))

    letter = dead_letter(ReadRecord("t.jobs", 0, 0, 1, b"k", b"x", mixed), "t.jobs.dlt", "why")

    assert letter.headers[-3:] == [("a", b"\\x1b"), longest, ("b", b"2")]


def test_one_of_many_traces_enters_ledger() -> None:
    traces = [("traceparent", f"{number:a<200}".encode()) for number in range(200)]

    accepted = INTAKE.admit(record(bid(), traces))

    assert isinstance(accepted, Accepted)
    assert [name for name, _ in accepted.record.headers].count("traceparent") == 1


def test_what_waits_counts_with_its_key_and_headers() -> None:
    beside = [("h", b"x" * 1_000)] * 60
    heavy = record(bid(), beside)
    assert INTAKE.claim(heavy) is not None, "it may wait"
    waiting = Waiting("cell-1", "jobs/ada", 0.0, 0.0, heavy)

    assert waiting.size_bytes > len(bid()) + 60_000
    many = Waiting("cell-1", "jobs/ada", 0.0, 0.0, record(bid(), [("h", b"")] * 200))
    assert many.size_bytes > len(bid()) + 200 * sys.getsizeof(("h", b""))


def test_waiting_event_counts_besides_its_record() -> None:
    source = record(bid())
    accepted = INTAKE.admit(source)
    assert isinstance(accepted, Accepted)
    waits = Waiting("cell-1", "jobs/ada", 0.0, 0.0, source)
    assert replace(waits, accepted=accepted).size_bytes - waits.size_bytes > 4 * len(bid())


def test_an_ordinary_event_is_as_it_was() -> None:
    accepted = INTAKE.admit(record(bid()))

    assert isinstance(accepted, Accepted)
    event = EVENT_TYPES[BID].model_validate_json(bid())
    assert accepted.record.value == Envelope("e", "s", "", event).value
