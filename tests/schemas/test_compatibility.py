"""The compatibility check, case by case: every kind of break is named, and compatible changes pass."""

from copy import deepcopy
from typing import Any

import pytest

from schemas.compatibility import violations
from schemas.documents import json_schemas
from tests.schemas.rules import INTEGER, NULL, NUMBER, TEXT, Schema, array, either, fields, mapping

PUBLISHED = list(json_schemas().values())


def named(name: str, rule: Any, **definitions: Any) -> Schema:
    """A reference to a definition of this name."""
    return {"$ref": f"#/$defs/{name}", "$defs": {name: rule, **definitions}}


TREE = {"type": "object", "properties": {"children": array({"$ref": "#/$defs/Tree"})}}
SMALL_TREE = {"type": "object", "properties": {"children": array({"$ref": "#/$defs/Tree"}, maxItems=2)}}
AUCTION = {"title": "Auction", **fields("kind", kind={"const": "auction"})}
LOTTERY = {"title": "Lottery", **fields("kind", kind={"const": "lottery"})}

BREAKS: dict[str, tuple[Schema, Schema, list[str]]] = {
    "required field added": (fields(a=TEXT), fields("b", a=TEXT, b=TEXT), ["$.b: became required"]),
    "field became required": (fields(a=TEXT), fields("a", a=TEXT), ["$.a: became required"]),
    "field removed": (
        fields(a=TEXT, b=TEXT),
        fields(a=TEXT),
        ["$.b: field removed, and unknown fields are refused"],
    ),
    "unknown fields refused": (
        {"type": "object"},
        fields(),
        ["$.*: no value is accepted any more"],
    ),
    "field claims a name that was free": (
        {"type": "object"},
        {"type": "object", "properties": {"a": TEXT}},
        [
            f"$.a: type {kind} removed, string left"
            for kind in ("array", "boolean", "null", "number", "object")
        ],
    ),
    "type changed": (fields(a=TEXT), fields(a=INTEGER), ["$.a: type string removed, integer left"]),
    "number became an integer": (NUMBER, INTEGER, ["$: type number removed, integer left"]),
    "one of two types removed": (
        {"type": ["string", "null"]},
        TEXT,
        ["$: type null removed, string left"],
    ),
    "nothing accepted": (fields(a=TEXT), fields(a=False), ["$.a: no value is accepted any more"]),
    "enum value removed": (
        {"enum": ["a", "b", "c"]},
        {"enum": ["a"]},
        ['$: value "b" removed', '$: value "c" removed'],
    ),
    "enum became a constant": ({"enum": ["a", "b"]}, {"const": "a"}, ['$: value "b" removed']),
    "constant changed": ({"const": 1}, {"const": 2}, ["$: value 1 removed"]),
    "number is not truth": ({"const": 1}, {"const": True}, ["$: type integer removed, boolean left"]),
    "text restricted to values": (TEXT, TEXT | {"enum": ["a", "b"]}, ['$: restricted to "a", "b"']),
    "minimum raised": (
        INTEGER | {"minimum": 1},
        INTEGER | {"minimum": 2},
        ["$: minimum 2 where there was minimum 1"],
    ),
    "minimum added": (INTEGER, INTEGER | {"minimum": 2}, ["$: minimum 2 where there was no minimum"]),
    "minimum became exclusive": (
        NUMBER | {"minimum": 0},
        NUMBER | {"exclusiveMinimum": 0},
        ["$: exclusiveMinimum 0 where there was minimum 0"],
    ),
    "maximum lowered": (
        INTEGER | {"maximum": 10**15},
        INTEGER | {"maximum": 10**15 - 1},
        ["$: maximum 999999999999999 where there was maximum 1000000000000000"],
    ),
    "maximum became exclusive": (
        NUMBER | {"maximum": 1},
        NUMBER | {"maximum": 1, "exclusiveMaximum": 1},
        ["$: exclusiveMaximum 1 where there was maximum 1"],
    ),
    "multiple added": (INTEGER, INTEGER | {"multipleOf": 2}, ["$: multipleOf 2 added"]),
    "minimum length raised": (TEXT, TEXT | {"minLength": 1}, ["$: minLength 1 where there was no minLength"]),
    "maximum length lowered": (
        TEXT | {"maxLength": 9},
        TEXT | {"maxLength": 8},
        ["$: maxLength 8 where there was maxLength 9"],
    ),
    "pattern added": (TEXT, TEXT | {"pattern": "^a"}, ["$: pattern ^a added"]),
    "pattern changed": (
        TEXT | {"pattern": "^a"},
        TEXT | {"pattern": "^b"},
        ["$: pattern ^b changed from ^a"],
    ),
    "format added": (TEXT, TEXT | {"format": "uuid"}, ["$: format uuid added"]),
    "minimum items raised": (
        array(TEXT),
        array(TEXT, minItems=1),
        ["$: minItems 1 where there was no minItems"],
    ),
    "maximum items lowered": (
        array(TEXT, maxItems=3),
        array(TEXT, maxItems=2),
        ["$: maxItems 2 where there was maxItems 3"],
    ),
    "unique items": (array(TEXT), array(TEXT, uniqueItems=True), ["$: uniqueItems True added"]),
    "first item narrowed": (
        {"type": "array", "prefixItems": [NUMBER, TEXT]},
        {"type": "array", "prefixItems": [INTEGER, TEXT]},
        ["$[0]: type number removed, integer left"],
    ),
    "second item ruled like the first": (
        {"type": "array", "prefixItems": [TEXT], "items": NUMBER},
        array(TEXT),
        ["$[]: type number removed, string left"],
    ),
    "items narrowed": (array(NUMBER), array(INTEGER), ["$[]: type number removed, integer left"]),
    "maximum properties lowered": (
        mapping(TEXT) | {"maxProperties": 3},
        mapping(TEXT) | {"maxProperties": 2},
        ["$: maxProperties 2 where there was maxProperties 3"],
    ),
    "values of a mapping narrowed": (
        mapping(NUMBER),
        mapping(INTEGER),
        ["$.*: type number removed, integer left"],
    ),
    "names of a mapping narrowed": (
        mapping(TEXT, "^a"),
        mapping(TEXT, "^b"),
        ["$: cannot be compared: patternProperties has other patterns"],
    ),
    "field claims a name of a mapping": (
        mapping(NUMBER),
        mapping(NUMBER) | {"properties": {"ab": INTEGER}},
        ["$.ab: type number removed, integer left"],
    ),
    "property names restricted": (
        {"type": "object"},
        {"type": "object", "propertyNames": {"maxLength": 3}},
        ["$ (names): maxLength 3 where there was no maxLength"],
    ),
    "alternative removed": (
        either(TEXT, INTEGER, NULL),
        either(TEXT, NULL),
        ["$: alternative integer removed"],
    ),
    "union dissolved": (either(TEXT, NULL), TEXT, ["$: type null removed, string left"]),
    "alternative narrowed": (
        either(NUMBER | {"maximum": 9}, NULL),
        either(NUMBER | {"maximum": 8}, NULL),
        ["$: maximum 8 where there was maximum 9"],
    ),
    "titled alternative removed": (
        either(AUCTION, LOTTERY),
        either(AUCTION, TEXT),
        ["$: alternative Lottery removed"],
    ),
    "titled alternative narrowed": (
        either(AUCTION, LOTTERY),
        either(AUCTION, LOTTERY | {"required": ["kind", "odds"]}),
        ["$.odds: became required"],
    ),
    "definition narrowed": (
        named("A", fields(a=NUMBER)),
        named("A", fields(a=INTEGER)),
        ["$.a: type number removed, integer left"],
    ),
    "same reference, other definition below": (
        named("A", either({"$ref": "#/$defs/B"}, NULL), B=NUMBER),
        named("A", either({"$ref": "#/$defs/B"}, NULL), B=INTEGER),
        ["$: alternative number removed"],
    ),
    "recursive type narrowed": (
        named("Tree", TREE),
        named("Tree", SMALL_TREE),
        ["$.children: maxItems 2 where there was no maxItems"],
    ),
    "narrowed beside a reference": (
        named("A", INTEGER),
        named("A", INTEGER) | {"maximum": 3},
        ["$: maximum 3 where there was no maximum"],
    ),
    "conjunct added": (
        TEXT,
        TEXT | {"allOf": [{"maxLength": 3}]},
        ["$: maxLength 3 where there was no maxLength"],
    ),
    "reference that leads nowhere": (
        INTEGER,
        {"$ref": "https://example.com/x.json"},
        ["$: cannot be compared: $ref https://example.com/x.json leads nowhere"],
    ),
    "unknown keyword added": (TEXT, TEXT | {"not": {"const": "a"}}, ["$: cannot be compared: keyword not"]),
    "unknown keyword changed": (
        {"oneOf": [TEXT]},
        {"oneOf": [TEXT, NULL]},
        ["$: cannot be compared: keyword oneOf"],
    ),
    "break deep inside": (
        fields(task=fields(speeds=array(mapping(either(NUMBER, NULL))))),
        fields(task=fields(speeds=array(mapping(NUMBER)))),
        ["$.task.speeds[].*: type null removed, number left"],
    ),
    "two breaks": (
        fields(a=TEXT, b=TEXT),
        fields("c", a=INTEGER, c=TEXT),
        [
            "$.c: became required",
            "$.a: type string removed, integer left",
            "$.b: field removed, and unknown fields are refused",
        ],
    ),
}

COMPATIBLE: dict[str, tuple[Schema, Schema]] = {
    "optional field added": (fields(a=TEXT), fields(a=TEXT, b=TEXT)),
    "field no longer required": (fields("a", a=TEXT), fields(a=TEXT)),
    "default and description changed": (TEXT, TEXT | {"default": "a", "description": "b", "title": "c"}),
    "integer became a number": (INTEGER, NUMBER),
    "type added": (TEXT, {"type": ["string", "null"]}),
    "null allowed": (fields(a=TEXT), fields(a=either(TEXT, NULL))),
    "enum value added": ({"enum": ["a"]}, {"enum": ["a", "b"]}),
    "constant became an enum": ({"const": "a"}, {"enum": ["a", "b"]}),
    "constant freed": ({"const": "a"}, TEXT),
    "bounds widened": (
        NUMBER | {"exclusiveMinimum": 0, "maximum": 1},
        NUMBER | {"minimum": 0, "exclusiveMaximum": 2},
    ),
    "bound written otherwise": (NUMBER | {"maximum": 1}, NUMBER | {"maximum": 1.0}),
    "bounds that bind nothing": (TEXT, TEXT | {"minLength": 0}),
    "pattern dropped": (TEXT | {"pattern": "^a"}, TEXT),
    "lengths widened": (TEXT | {"minLength": 2, "maxLength": 3}, TEXT | {"minLength": 1, "maxLength": 4}),
    "items of a pair widened": (
        {"type": "array", "prefixItems": [INTEGER, TEXT], "maxItems": 2},
        {"type": "array", "prefixItems": [NUMBER], "items": TEXT},
    ),
    "items widened": (array(INTEGER, minItems=1, maxItems=2), array(NUMBER, maxItems=3)),
    "items of what is always empty": (array(TEXT, maxItems=0), array(INTEGER, maxItems=0)),
    "uniqueness dropped": (array(TEXT, uniqueItems=True), array(TEXT, uniqueItems=False)),
    "values of a mapping widened": (mapping(INTEGER), mapping(either(NUMBER, NULL))),
    "unknown fields allowed": (fields(a=TEXT), {"type": "object", "properties": {"a": TEXT}}),
    "field freed": (fields(a=TEXT), {"type": "object"}),
    "alternative added": (either(AUCTION), either(LOTTERY, AUCTION)),
    "union of what was one": (named("A", AUCTION), either(LOTTERY, AUCTION)),
    "definition inlined": (named("A", fields(a=TEXT)), fields(a=TEXT)),
    "definition renamed": (named("A", fields(a=TEXT)), named("B", fields(a=TEXT))),
    "recursive type unchanged": (named("Tree", TREE), named("Tree", TREE)),
    "recursive type widened": (named("Tree", SMALL_TREE), named("Tree", TREE)),
    "conjunct dropped": (TEXT | {"allOf": [{"maxLength": 3}]}, TEXT),
    "reference to the whole": (
        fields(next=either({"$ref": "#"}, NULL)),
        fields(next=either({"$ref": "#"}, NULL), a=TEXT),
    ),
    "unknown keyword unchanged": (fields(a={"not": TEXT}), fields(a={"not": TEXT}, b=TEXT)),
}


@pytest.mark.parametrize(("old", "new", "expected"), BREAKS.values(), ids=BREAKS)
def test_every_break_is_named_with_type_and_path(old: Schema, new: Schema, expected: list[str]) -> None:
    found = violations({"$id": "millrace.x.v1.json", **old}, {"$id": "millrace.x.v1.json", **new})
    assert found == [f"millrace.x.v1 {fault}" for fault in expected]


@pytest.mark.parametrize(("old", "new"), COMPATIBLE.values(), ids=COMPATIBLE)
def test_a_compatible_change_passes(old: Schema, new: Schema) -> None:
    assert violations(old, new) == []


@pytest.mark.parametrize("schema", PUBLISHED, ids=[schema["$id"] for schema in PUBLISHED])
def test_every_type_is_compatible_with_itself(schema: Schema) -> None:
    assert violations(schema, deepcopy(schema)) == []
