"""The generated documents: JSON Schemas and the AsyncAPI document, written, checked and kept by release.

They describe the types of the installed policies; the committed documents only those of the project.
"""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from schemas.asyncapi import asyncapi
from schemas.base import Event, Outcome
from schemas.codec import DecisionEnvelope
from schemas.compatibility import violations
from schemas.questions import SolvePosed
from schemas.registry import DECISION_TYPES, EVENT_TYPES
from schemas.view_records import JobState, ZoneState

SPEC = Path(__file__).parent / "spec"
"""Folder of the committed documents; those of each release are in `released/<version>` below."""

_DIALECT = GenerateJsonSchema.schema_dialect


class _Generator(GenerateJsonSchema):
    """Generator of schemas without titles of fields, which refuse what the models refuse."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        json_schema = super().dict_schema(schema)
        if "patternProperties" in json_schema:
            json_schema["additionalProperties"] = False
        return json_schema

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Return the schema of a union. Its kinds exclude each other, so `anyOf` equals `oneOf`."""
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}


@cache
def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of a record's value, by type: of events, of decisions with the link of the log
    around their outcomes, of the states of jobs and zones. All callers share it."""
    events = {ce_type: _plain_schema(model) for ce_type, model in EVENT_TYPES.items()}
    views = {model.TYPE: _plain_schema(model) for model in (JobState, ZoneState, SolvePosed)}
    decisions = {ce_type: _decision_schema(model) for ce_type, model in DECISION_TYPES.items()}
    return {
        ce_type: {"$schema": _DIALECT, "$id": _file_name(ce_type), **schema}
        for ce_type, schema in (events | decisions | views).items()
    }


def write(directory: Path = SPEC) -> None:
    """Write all documents, and remove the schemas of types that no longer exist."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = _texts()
    for name in _committed(directory) - texts.keys():
        (directory / name).unlink()
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")


def check(directory: Path = SPEC) -> list[str]:
    """Return the faults of the committed documents, one line each: differences from the models, and values
    that a released version accepted and the models refuse."""
    texts, committed = _texts(), _committed(directory)
    faults = [f"{name} is missing: write the documents again" for name in sorted(texts.keys() - committed)]
    faults += [
        f"{name} is of no known type: write the documents again" for name in sorted(committed - texts.keys())
    ]
    for name in sorted(texts.keys() & committed):
        if (directory / name).read_text(encoding="utf-8") != texts[name]:
            faults.append(f"{name} differs from the models: write the documents again")
    current = json_schemas()
    for released in sorted((directory / "released").glob("*/*.json")):
        new = current.get(released.stem)
        if new is None:
            broken = [f"{released.stem} is gone"]
        else:
            broken = violations(json.loads(released.read_text(encoding="utf-8")), new)
        faults += [f"since {released.parent.name}: {fault}" for fault in broken]
    return faults


def release(version: str, directory: Path = SPEC) -> None:
    """Keep the JSON Schemas of a released version. All later schemas must be compatible with them.

    Raises:
        FileExistsError: that version is already released.
        ValueError: the documents have faults.
    """
    if faults := check(directory):
        raise ValueError(f"not fit for release: {faults[0]} ({len(faults)} in all)")
    target = directory / "released" / version
    target.mkdir(parents=True)
    for ce_type in json_schemas():
        shutil.copy(directory / _file_name(ce_type), target)


def _plain_schema(model: type[Event] | type[JobState | ZoneState | SolvePosed]) -> dict[str, Any]:
    return model.model_json_schema(schema_generator=_Generator)


def _decision_schema(model: type[Outcome]) -> dict[str, Any]:
    record = DecisionEnvelope.model_json_schema(schema_generator=_Generator)
    outcome = model.model_json_schema(schema_generator=_Generator)
    definitions = outcome.pop("$defs", {})
    record["properties"]["type"] = {"const": model.TYPE, "type": "string"}
    record["properties"]["data"] = {"$ref": f"#/$defs/{model.__name__}"}
    return record | {
        "title": f"{model.__name__}{record['title']}",
        "description": outcome.get("description", record["description"]),
        "$defs": definitions | {model.__name__: outcome},
    }


def _file_name(ce_type: str) -> str:
    return f"{ce_type}.json"


def _texts() -> dict[str, str]:
    """Return the documents by file name."""
    texts = {
        _file_name(ce_type): json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for ce_type, schema in json_schemas().items()
    }
    plain = json.loads(json.dumps(asyncapi()))  # so that YAML repeats shared parts instead of aliases
    texts["asyncapi.yaml"] = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110)
    return texts


def _committed(directory: Path) -> set[str]:
    paths = [*directory.glob("millrace.*.json"), *directory.glob("asyncapi.yaml")]
    return {path.name for path in paths}
