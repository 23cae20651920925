"""Thousands of mutated records: each is read, and then survives the round trip, or is refused in one line."""

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from schemas import codec
from schemas.codec import Decision, Envelope, InvalidRecordError
from schemas.documents import json_schemas
from schemas.registry import EVENT_TYPES
from tests.schemas.samples import CONFIGURED, IGNORED, SUBMITTED, TICKED
from tests.support.mutations import mutated_bytes, mutated_json

SAMPLES: dict[str, Any] = {
    "millrace.job.submitted.v1": SUBMITTED,
    "millrace.cell.configured.v1": CONFIGURED,
    "millrace.clock.ticked.v1": TICKED,
}
MUTANTS_PER_TYPE = 1_500


def outcome(decode: Callable[[], Envelope | Decision]) -> Envelope | Decision | None:
    """Return the decoded record; None if it was refused, which must be with one line of bounded length."""
    try:
        return decode()
    except InvalidRecordError as refusal:
        reason = str(refusal)
        assert reason
        assert reason.isprintable()
        assert len(reason) < 1_200
        return None


@pytest.mark.parametrize("ce_type", SAMPLES)
def test_mutated_bytes_are_read_or_refused(ce_type: str) -> None:
    source = random.Random(1)
    event = EVENT_TYPES[ce_type].model_validate_json(json.dumps(SAMPLES[ce_type]))
    envelope = Envelope("event-1", "/test", "", event)
    read = Counter[bool]()
    for _ in range(MUTANTS_PER_TYPE):
        mutant = mutated_bytes(source, envelope.value)
        line = mutated_bytes(source, envelope.canonical)
        headers = [
            (name, mutated_bytes(source, raw) if source.random() < 0.1 else raw)
            for name, raw in envelope.headers()
        ]
        for decoded in (
            outcome(lambda mutant=mutant, headers=headers: codec.decode_event(mutant, headers)),
            outcome(lambda line=line: codec.decode_event(line, [])),
            outcome(lambda line=line: codec.decode_decision(line)),
        ):
            read[decoded is not None] += 1
            if isinstance(decoded, Envelope):
                assert codec.decode_event(decoded.value, decoded.headers()).canonical == decoded.canonical
                assert codec.decode_event_line(decoded.canonical).canonical == decoded.canonical
    assert read[True] > 10
    assert read[False] > MUTANTS_PER_TYPE


@pytest.mark.parametrize("ce_type", SAMPLES)
def test_what_the_codec_accepts_the_json_schema_accepts(ce_type: str) -> None:
    """A client that checks against the published schema then refuses no event that the codec reads."""
    source = random.Random(2)
    validator = Draft202012Validator(json_schemas()[ce_type])
    read = Counter[bool]()
    headers = [("ce_id", b"e"), ("ce_source", b"s"), ("ce_type", ce_type.encode())]
    for _ in range(MUTANTS_PER_TYPE):
        payload = mutated_json(source, SAMPLES[ce_type])
        decoded = outcome(lambda payload=payload: codec.decode_event(json.dumps(payload).encode(), headers))
        read[decoded is not None] += 1
        if decoded is not None:
            assert validator.is_valid(payload), payload
    assert read[True] > 20
    assert read[False] > 200


def test_mutated_decisions_are_read_or_refused() -> None:
    source = random.Random(3)
    decision: dict[str, Any] = {
        "id": "cell-1-7-0",
        "type": "millrace.event.ignored.v1",
        "cell": "cell-1",
        "cause": "event-1",
        "time_s": 600.0,
        "data": IGNORED,
        "chain": "0f" * 32,
    }
    read = Counter[bool]()
    for _ in range(MUTANTS_PER_TYPE):
        mutant = json.dumps(mutated_json(source, decision))
        decoded = outcome(lambda mutant=mutant: codec.decode_decision(mutant))
        read[decoded is not None] += 1
        if decoded is not None:
            assert codec.decode_decision(decoded.canonical) == decoded
    assert read[True] > 20
    assert read[False] > 200
