"""Small JSON schemas to put together."""

from typing import Any

Schema = dict[str, Any]

TEXT = {"type": "string"}
NUMBER = {"type": "number"}
INTEGER = {"type": "integer"}
NULL = {"type": "null"}


def fields(required: str = "", **rules: Any) -> Schema:
    """A closed object with these fields."""
    return {
        "type": "object",
        "properties": rules,
        "required": required.split(),
        "additionalProperties": False,
    }


def mapping(values: Any, pattern: str = "^a") -> Schema:
    """An object whose names all match a pattern."""
    return {"type": "object", "patternProperties": {pattern: values}, "additionalProperties": False}


def array(items: Any, **keywords: Any) -> Schema:
    return {"type": "array", "items": items, **keywords}


def either(*branches: Any) -> Schema:
    return {"anyOf": list(branches)}
