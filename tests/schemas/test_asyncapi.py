"""The AsyncAPI document obeys AsyncAPI 3.0, and agrees with the code."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from schemas.asyncapi import asyncapi
from schemas.codec import Decision, Envelope
from schemas.documents import json_schemas
from schemas.registry import DECISION_TYPES, EVENT_TYPES, EVENTS_BY_TOPIC, LEDGER_TYPES
from schemas.topics import INPUTS, topics
from schemas.view_records import JobState, ZoneState
from tests.schemas.samples import IGNORED, TICKED

DOCUMENT = asyncapi()
SCHEMAS = json_schemas()

REQUIRED = {
    "document": {"asyncapi", "info"},
    "info": {"title", "version"},
    "channel": set[str](),
    "operation": {"action", "channel"},
    "message": set[str](),
    "components": set[str](),
    "channel binding": set[str](),
    "message binding": set[str](),
}
ALLOWED = {
    "document": {"id", "servers", "defaultContentType", "channels", "operations", "components"},
    "info": {"description", "termsOfService", "contact", "license", "tags", "externalDocs"},
    "channel": {"address", "messages", "title", "summary", "description", "servers", "parameters", "tags"}
    | {"externalDocs", "bindings"},
    "operation": {"title", "summary", "description", "security", "tags", "externalDocs", "bindings"}
    | {"traits", "messages", "reply"},
    "message": {"headers", "payload", "correlationId", "contentType", "name", "title", "summary"}
    | {"description", "tags", "externalDocs", "bindings", "examples", "traits"},
    "components": {"schemas", "servers", "channels", "operations", "messages", "securitySchemes"}
    | {"serverVariables", "parameters", "correlationIds", "replies", "replyAddresses", "externalDocs"}
    | {"tags", "operationTraits", "messageTraits", "serverBindings", "channelBindings"}
    | {"operationBindings", "messageBindings"},
    "channel binding": {"topic", "partitions", "replicas", "topicConfiguration", "bindingVersion"},
    "message binding": {"key", "schemaIdLocation", "schemaIdPayloadEncoding", "schemaLookupStrategy"}
    | {"bindingVersion"},
}
"""The fixed fields of AsyncAPI 3.0's objects and of the Kafka binding 0.5.0."""


def objects() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every object of the document whose fields are fixed: its kind, its place, itself."""
    yield "document", "", DOCUMENT
    yield "info", "info", DOCUMENT["info"]
    yield "components", "components", DOCUMENT["components"]
    for name, channel in DOCUMENT["channels"].items():
        yield "channel", name, channel
        yield "channel binding", name, channel["bindings"]["kafka"]
    for name, operation in DOCUMENT["operations"].items():
        yield "operation", name, operation
    for name, message in DOCUMENT["components"]["messages"].items():
        yield "message", name, message
        if "bindings" in message:
            yield "message binding", name, message["bindings"]["kafka"]


def references(value: Any) -> Iterator[str]:
    """Every `$ref` at or below a value."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    if isinstance(value, list):
        for part in value:
            yield from references(part)


def resolved(reference: str) -> Any:
    """Return the target of a reference; KeyError if it has none."""
    if reference.startswith("./"):
        return SCHEMAS[reference.removeprefix("./").removesuffix(".json")]
    value: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        value = value[part]
    return value


@pytest.mark.parametrize(("kind", "place", "value"), list(objects()), ids=lambda part: str(part)[:40])
def test_objects_have_exactly_their_fields(kind: str, place: str, value: dict[str, Any]) -> None:
    assert REQUIRED[kind] <= value.keys()
    assert value.keys() <= REQUIRED[kind] | ALLOWED[kind]


def test_it_is_of_version_3() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"


def test_names_are_legal() -> None:
    names = [name for part in DOCUMENT["components"].values() for name in part]
    for name in [*names, *DOCUMENT["channels"], *DOCUMENT["operations"]]:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)


def test_every_reference_leads_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert len(found) > 60
    for reference in found:
        assert isinstance(resolved(reference), dict)


def test_channels_are_the_topics() -> None:
    assert [channel["address"] for channel in DOCUMENT["channels"].values()] == [
        spec.name for spec in topics()
    ]
    for spec, channel in zip(topics(), DOCUMENT["channels"].values(), strict=True):
        configuration = channel["bindings"]["kafka"]["topicConfiguration"]
        assert configuration["retention.ms"] == int(spec.config()["retention.ms"])
        assert configuration["cleanup.policy"] == [spec.config()["cleanup.policy"]]
        assert channel["messages"]
        assert channel["summary"]


def test_operations_are_seen_from_the_application() -> None:
    directions = {
        name: {
            operation["action"]
            for operation in DOCUMENT["operations"].values()
            if operation["channel"]["$ref"] == f"#/channels/{name}"
        }
        for name in DOCUMENT["channels"]
    }
    for name, actions in directions.items():
        expected = {"receive"} if name in INPUTS else {"send"}
        assert actions == ({"send", "receive"} if name == "ledger" else expected), name


def test_operation_messages_match_channel() -> None:
    for operation in DOCUMENT["operations"].values():
        channel = operation["channel"]["$ref"]
        expected = {f"{channel}/messages/{name}" for name in resolved(channel)["messages"]}
        assert {message["$ref"] for message in operation["messages"]} == expected


def test_every_type_travels_over_its_topics() -> None:
    channels = DOCUMENT["channels"]
    for name, models in EVENTS_BY_TOPIC.items():
        assert set(channels[name]["messages"]) == {model.__name__ for model in models}
    assert set(channels["ledger"]["messages"]) == {model.__name__ for model in LEDGER_TYPES.values()}
    assert set(channels["decisions"]["messages"]) == {model.__name__ for model in DECISION_TYPES.values()}
    commands = {"SlotAssigned", "RunCancelled", "WorkersAssigned", "WorkersReleased"}
    commands |= {"ProfileOrdered", "TaskAssigned", "TaskReleased", "LoaderPrewarmed"}
    commands |= {"RanksAssigned", "ExpertsPlaced", "RanksReleased", "RunDisowned"}
    assert set(channels["commands"]["messages"]) == commands
    assert set(channels["prices"]["messages"]) == {"ZonePriced"}
    assert set(channels["staffing"]["messages"]) == {"ZoneStaffed"}
    assert set(channels["loans"]["messages"]) == {"LoanChanged"}
    assert set(channels["jobs.state"]["messages"]) == {"JobState"}
    assert set(channels["rules.states"]["messages"]) == {"CellState"}
    assert set(channels["jobs.dlt"]["messages"]) == {"DeadLetter"}


@pytest.mark.parametrize("model", [*EVENT_TYPES.values(), *DECISION_TYPES.values(), JobState, ZoneState])
def test_a_message_names_its_type_and_its_schema(model: Any) -> None:
    message = DOCUMENT["components"]["messages"][model.__name__]
    assert message["name"] == model.TYPE
    assert message["payload"]["schema"] == {"$ref": f"./{model.TYPE}.json"}
    assert message["summary"]


def test_the_headers_that_are_written_are_those_described() -> None:
    document: Resource[Any] = Resource(DOCUMENT, DRAFT202012)
    registry = Registry().with_resource("urn:document", document)

    def validator(name: str) -> Draft202012Validator:
        headers = {"$ref": f"urn:document#/components/messages/{name}/headers"}
        return Draft202012Validator(headers, registry=registry)

    event = EVENT_TYPES["millrace.clock.ticked.v1"].model_validate(TICKED)
    envelope = Envelope("event-1", "/clock", "2031-05-01T12:00:00Z", event)
    outcome = DECISION_TYPES["millrace.event.ignored.v1"].model_validate(IGNORED)
    decision = Decision("cell-1-7-0", "cell-1", "event-1", 600.0, outcome, "0f" * 32)
    for name, headers in (("ClockTicked", envelope.headers()), ("EventIgnored", decision.headers())):
        texts = {header: raw.decode() for header, raw in headers}
        described = resolved(f"#/components/messages/{name}/headers")
        shared = resolved(described["allOf"][0]["$ref"])
        assert texts.keys() <= shared["properties"].keys()
        validator(name).validate(texts)
        assert not validator(name).is_valid(texts | {"ce_type": "another"})
        assert not validator(name).is_valid(texts | {"ce_specversion": "0.3"})
