"""The committed documents are those of the models, and no released version is broken unnoticed."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from infra.commands.documents import main
from schemas.codec import Decision
from schemas.documents import SPEC, check, json_schemas, release, write
from schemas.questions import SolvePosed
from schemas.registry import DECISION_TYPES, EVENT_TYPES
from schemas.view_records import JobState, ZoneState
from tests.schemas.strategies import SEEDED, payloads
from tests.support.examples import examples

TICKED = "millrace.clock.ticked.v1.json"

documents = functools.cache(json_schemas)
"""All of them: they take a quarter of a second to make."""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A directory with the documents of today."""
    write(tmp_path)
    return tmp_path


def edit(path: Path, **changes: Any) -> None:
    """Replace keywords of a JSON Schema's `properties.time_s`."""
    schema = json.loads(path.read_text())
    schema["properties"]["time_s"] |= changes
    path.write_text(json.dumps(schema))


def test_the_committed_documents_are_those_of_the_models() -> None:
    assert check(SPEC) == []


def test_every_type_has_valid_schema() -> None:
    schemas = documents()
    others = {JobState.TYPE, ZoneState.TYPE, SolvePosed.TYPE}
    assert schemas.keys() == EVENT_TYPES.keys() | DECISION_TYPES.keys() | others
    for ce_type, schema in schemas.items():
        Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"{ce_type}.json"
        assert schema["description"]


@pytest.mark.parametrize("ce_type", sorted(EVENT_TYPES))
def test_event_values_satisfy_their_schemas(ce_type: str) -> None:
    validator = Draft202012Validator(documents()[ce_type])

    @settings(SEEDED, max_examples=examples(10))
    @given(payload=payloads(ce_type))
    def valid(payload: dict[str, Any]) -> None:
        event = EVENT_TYPES[ce_type].model_validate_json(json.dumps(payload))
        validator.validate(json.loads(event.model_dump_json()))

    valid()


@pytest.mark.parametrize("ce_type", sorted(DECISION_TYPES))
def test_decision_values_satisfy_their_schemas(ce_type: str) -> None:
    validator = Draft202012Validator(documents()[ce_type])

    @settings(SEEDED, max_examples=examples(10))
    @given(payload=payloads(ce_type))
    def valid(payload: dict[str, Any]) -> None:
        outcome = DECISION_TYPES[ce_type].model_validate_json(json.dumps(payload))
        record = json.loads(Decision("cell-1-7-0", "cell-1", "event-1", 1.0, outcome, "0f" * 32).canonical)
        validator.validate(record)
        assert not validator.is_valid(record | {"type": "another"})

    valid()


def test_names_of_mapping_match_pattern() -> None:
    workload = json_schemas()["millrace.job.submitted.v1"]["$defs"]["LoraWorkload"]
    speeds = Draft202012Validator(workload["properties"]["speed_samples_per_s"])
    assert speeds.is_valid({"a100": 1.0})
    assert not speeds.is_valid({"a 100": 1.0})


def test_the_attribute_docstrings_are_the_descriptions() -> None:
    dataset = json_schemas()["millrace.job.submitted.v1"]["$defs"]["Dataset"]
    assert dataset["properties"]["samples"]["description"].startswith("Size of the data")


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_documents_are_independent_of_set_order(hash_seed: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infra.commands.documents", "--directory", str(tmp_path), "write"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": hash_seed})
    names = {path.name for path in SPEC.glob("*.*")}
    assert len(names) > 20
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (SPEC / name).read_bytes()


def test_missing_or_changed_document_is_reported(spec: Path) -> None:
    (spec / "asyncapi.yaml").unlink()
    (spec / "millrace.job.lost.v1.json").write_text("{}")
    edit(spec / TICKED, minimum=1)
    assert check(spec) == [
        "asyncapi.yaml is missing: write the documents again",
        "millrace.job.lost.v1.json is of no known type: write the documents again",
        f"{TICKED} differs from the models: write the documents again",
    ]
    write(spec)
    assert check(spec) == []


@pytest.mark.slow
def test_a_break_with_any_release_is_reported(spec: Path) -> None:
    release("0.1.0", spec)
    release("0.2.0", spec)
    assert check(spec) == []
    edit(spec / "released" / "0.1.0" / TICKED, minimum=-1)
    edit(spec / "released" / "0.2.0" / TICKED, type=["number", "null"])
    (spec / "released" / "0.2.0" / "millrace.job.lost.v1.json").write_text("{}")
    assert check(spec) == [
        "since 0.1.0: millrace.clock.ticked.v1 $.time_s: minimum 0 where there was minimum -1",
        "since 0.2.0: millrace.clock.ticked.v1 $.time_s: type null removed, number left",
        "since 0.2.0: millrace.job.lost.v1 is gone",
    ]


def test_what_is_released_stays_as_it_was(spec: Path) -> None:
    release("0.1.0", spec)
    released = {path.stem for path in (spec / "released" / "0.1.0").iterdir()}
    assert released == json_schemas().keys()
    with pytest.raises(FileExistsError):
        release("0.1.0", spec)
    write(spec)
    assert {path.stem for path in (spec / "released" / "0.1.0").iterdir()} == released


def test_documents_with_faults_are_not_released(spec: Path) -> None:
    (spec / TICKED).unlink()
    with pytest.raises(ValueError, match=f"not fit for release: {TICKED} is missing"):
        release("0.1.0", spec)
    assert not (spec / "released").exists()


def test_command_ends_with_1_and_fault_lines(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["--directory", str(spec)]
    assert main([*there, "check"]) == 0
    assert capsys.readouterr().err == ""
    (spec / TICKED).unlink()
    assert main([*there, "check"]) == 1
    assert capsys.readouterr().err == f"{TICKED} is missing: write the documents again\n"
    assert main([*there, "release", "0.1.0"]) == 1
    assert main([*there, "write"]) == 0
    assert main([*there, "release", "0.1.0"]) == 0
    assert main([*there, "release", "0.1.0"]) == 1
    assert "0.1.0" in capsys.readouterr().err
