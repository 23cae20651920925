"""The AsyncAPI document of the messages on all topics, from the view of Millrace."""

from typing import Any, Literal

from schemas import topics
from schemas.base import Event, Outcome, Record, View
from schemas.codec import MAX_ATTRIBUTE_LENGTH, SPECVERSION
from schemas.commands import NodeCommand
from schemas.questions import SolvePosed
from schemas.registry import DECISION_TYPES, EVENT_TYPES, EVENTS_BY_TOPIC, LEDGER_TYPES
from schemas.topics import (
    ESCAPED_HEADER_COUNT_HEADER,
    HEADER_COUNT_HEADER,
    OFFSET_HEADER,
    PARTITION_HEADER,
    REASON_HEADER,
    STATE_DIGEST_HEADER,
    TOPIC_HEADER,
    VALUE_BYTES_HEADER,
)
from schemas.view_records import JobState, ZoneState

ASYNCAPI_VERSION = "3.0.0"
KAFKA_BINDING_VERSION = "0.5.0"
DOCUMENT_VERSION = "1.0.0"
"""Version of the topics and their roles. The types of messages have their own versions."""

_SCHEMA_FORMAT = "application/schema+json;version=draft-2020-12"
_PREFIX = "millrace"
_Action = Literal["send", "receive"]


def _first_paragraph(model: type[Record]) -> str:
    return " ".join((model.__doc__ or "").partition("\n\n")[0].split())


_SUMMARIES = {
    topics.LEDGER: "Every accepted event, in the order of decision. Only workers write it; kept forever.",
    topics.DECISIONS: "Decisions of cells with their reasons, chained by hash to the ledger; kept forever.",
    topics.SOLVES_REQUESTED: "Problems that cells pose to solvers; kept for a day, or up to a size.",
    topics.RULES_STATES: "The state of a cell at each change of its rules; kept forever.",
    topics.COMMANDS: "Decisions that executors carry out, repeated under the node's id.",
    topics.JOBS_STATE: "Present state of each job.",
    topics.ZONES_STATE: "Present configuration of each zone.",
}
_NO_EVENT = {"type": "object", "properties": {"content-type": {"const": "application/json"}}}
"""Headers of a record that is a state instead of an event."""


def asyncapi() -> dict[str, Any]:
    """Return the AsyncAPI 3.0 document of Millrace; payloads refer to the JSON Schemas in the same folder."""
    specs = {spec.name.removeprefix(f"{_PREFIX}."): spec for spec in topics.topics(_PREFIX)}
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": {
            "title": "Millrace",
            "version": DOCUMENT_VERSION,
            "description": (
                "A market and a scheduler for fine-tuning fleets, driven by events on Kafka. Messages follow "
                "the Kafka binding of CloudEvents in binary mode; structured mode is read on input topics. "
                f"The prefix `{_PREFIX}` of the topics is a setting of the deployment."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {name: _channel(name, spec) for name, spec in specs.items()},
        "operations": {
            f"{action}-{name}": _operation(action, name) for name in specs for action in _actions(name)
        },
        "components": {"messages": _messages(), "schemas": _header_schemas()},
    }


def _channel(name: str, spec: topics.TopicSpec) -> dict[str, Any]:
    summary = _summary(name) or f"Records that could not be read from `{name.removesuffix('.dlt')}`."
    configuration = {
        "cleanup.policy": [spec.cleanup_policy],
        "retention.ms": spec.retention_ms,
        "max.message.bytes": spec.max_message_bytes,
    }
    return {
        "address": spec.name,
        "summary": summary,
        "messages": {message: {"$ref": f"#/components/messages/{message}"} for message in _messages_on(name)},
        "bindings": {
            "kafka": {
                "topic": spec.name,
                "topicConfiguration": configuration,
                "bindingVersion": KAFKA_BINDING_VERSION,
            }
        },
    }


def _summary(name: str) -> str | None:
    if name in topics.INPUTS:
        return topics.INPUTS[name].summary
    for view in topics.VIEWS.get(name, ()):
        if issubclass(view, View):
            return f"{_first_paragraph(view)} The latest of each {view.KEY_FIELD}."
    return _SUMMARIES.get(name)


def _key(model: type[Record]) -> str:
    """Describe the keys of the records of a type."""
    if issubclass(model, NodeCommand):
        return "Id of the cell; on `commands`, id of the node."
    if issubclass(model, View):
        return f"Id of the cell; on `{model.VIEW}`, `<cell>/<{model.KEY_FIELD}>`."
    return {JobState: "`<cell>/<user>/<job>`.", ZoneState: "`<cell>/<zone>`."}.get(model, "Id of the cell.")


def _messages_on(name: str) -> list[str]:
    if name in EVENTS_BY_TOPIC:
        return [model.__name__ for model in EVENTS_BY_TOPIC[name]]
    match name:
        case topics.LEDGER:
            return [model.__name__ for model in LEDGER_TYPES.values()]
        case topics.DECISIONS:
            return [model.__name__ for model in DECISION_TYPES.values()]
        case topics.COMMANDS:
            return [model.__name__ for model in DECISION_TYPES.values() if issubclass(model, NodeCommand)]
        case topics.RULES_STATES:
            return ["CellState"]
        case topics.SOLVES_REQUESTED:
            return [SolvePosed.__name__]
    return [view.__name__ for view in topics.VIEWS.get(name, ())] or ["DeadLetter"]


def _actions(name: str) -> tuple[_Action, ...]:
    if name in topics.INPUTS:
        return ("receive",)
    return ("send", "receive") if name == topics.LEDGER else ("send",)


def _operation(action: _Action, name: str) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{message}"} for message in _messages_on(name)],
    }


def _messages() -> dict[str, Any]:
    events = {model.__name__: _message(model, "EventHeaders") for model in EVENT_TYPES.values()}
    decisions = {model.__name__: _message(model, "DecisionHeaders") for model in DECISION_TYPES.values()}
    dead_letter = {
        "name": "dead-letter",
        "title": "DeadLetter",
        "summary": "A refused record: its key, headers and value as far as bounds allow, and the reason.",
        "contentType": "application/octet-stream",
        "headers": {"$ref": "#/components/schemas/DeadLetterHeaders"},
    }
    cell_state = {
        "name": "cell-state",
        "title": "CellState",
        "summary": "The packed state of a cell, compressed by zlib, in the layout of the rules before.",
        "contentType": "application/octet-stream",
        "headers": {
            "type": "object",
            "properties": {
                STATE_DIGEST_HEADER: {
                    "type": "string",
                    "pattern": "^[0-9a-f]{64}$",
                    "description": "BLAKE2b-256 of the packed state, before compression.",
                }
            },
            "required": [STATE_DIGEST_HEADER],
        },
    }
    return {
        **events,
        **decisions,
        "SolvePosed": _message(SolvePosed, "DecisionHeaders"),
        "JobState": _message(JobState, None),
        "ZoneState": _message(ZoneState, None),
        "CellState": cell_state,
        "DeadLetter": dead_letter,
    }


def _message(
    model: type[Event] | type[Outcome] | type[JobState | ZoneState | SolvePosed], headers: str | None
) -> dict[str, Any]:
    """Return the message of a model; `headers` is the schema of its attributes, if it is a CloudEvent."""
    return {
        "name": model.TYPE,
        "title": model.__name__,
        "summary": _first_paragraph(model),
        "headers": _NO_EVENT if headers is None else _typed(headers, model.TYPE),
        "payload": {"schemaFormat": _SCHEMA_FORMAT, "schema": {"$ref": f"./{model.TYPE}.json"}},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": _key(model)},
                "bindingVersion": KAFKA_BINDING_VERSION,
            }
        },
    }


def _typed(headers: str, ce_type: str) -> dict[str, Any]:
    return {
        "allOf": [
            {"$ref": f"#/components/schemas/{headers}"},
            {"type": "object", "properties": {"ce_type": {"const": ce_type}}},
        ]
    }


def _header_schemas() -> dict[str, Any]:
    text = {"type": "string", "maxLength": MAX_ATTRIBUTE_LENGTH}
    common = {
        "ce_specversion": {"const": SPECVERSION},
        "ce_id": {
            **text,
            "minLength": 1,
            "description": "Unique to its writer; a repeated id changes nothing.",
        },
        "ce_type": {**text, "description": "Names the JSON Schema of the value."},
        "content-type": {"const": "application/json"},
    }
    required = ["ce_specversion", "ce_id", "ce_type", "ce_source"]
    number = {"type": "string", "pattern": "^-?[0-9]+$"}
    return {
        "EventHeaders": {
            "type": "object",
            "description": "Attributes of an event.",
            "properties": {
                **common,
                "ce_source": {**text, "description": "Writer of the event."},
                "ce_time": {
                    **text,
                    "description": "Time of the event, in RFC 3339; no decision depends on it.",
                },
                "traceparent": {"type": "string", "description": "W3C trace context, passed on."},
            },
            "required": required,
        },
        "DecisionHeaders": {
            "type": "object",
            "description": "Attributes of a decision.",
            "properties": {**common, "ce_source": {**text, "description": "Id of the cell."}},
            "required": required,
        },
        "DeadLetterHeaders": {
            "type": "object",
            "description": "Place of the record and reason of its refusal, besides the record's own headers.",
            "properties": {
                TOPIC_HEADER: {"type": "string"},
                PARTITION_HEADER: number,
                OFFSET_HEADER: number,
                REASON_HEADER: {"type": "string"},
                VALUE_BYTES_HEADER: {**number, "description": "Length of the value before it was cut."},
                HEADER_COUNT_HEADER: {**number, "description": "Number of headers before some were omitted."},
                ESCAPED_HEADER_COUNT_HEADER: {
                    **number,
                    "description": "Number of kept headers with escaped characters.",
                },
            },
            "required": [TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER, REASON_HEADER],
        },
    }
