"""The compatibility check on drawn schemas: no proof of compatibility is wrong."""

from collections import Counter
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas.compatibility import violations
from tests.schemas.rules import INTEGER, NULL, NUMBER, TEXT, Schema, array, either, fields, mapping
from tests.schemas.strategies import SEEDED, instances
from tests.support.examples import examples

LEAVES = st.sampled_from(
    [
        INTEGER | {"minimum": 0, "maximum": 3},
        NUMBER | {"exclusiveMinimum": 0, "maximum": 2},
        TEXT | {"minLength": 1, "maxLength": 3},
        TEXT | {"pattern": "^[ab]{1,3}$"},
        {"enum": ["a", "b"], "type": "string"},
        {"const": "a", "type": "string"},
        {"type": "boolean"},
        {"$ref": "#/$defs/Shared"},
    ]
)


@st.composite
def objects(draw: st.DrawFn, rules: st.SearchStrategy[Schema]) -> Schema:
    """Closed objects with one to three fields, some required."""
    drawn = draw(st.lists(rules, min_size=1, max_size=3))
    properties = dict(zip("abc", map(deepcopy, drawn), strict=False))
    return fields(" ".join(draw(st.sets(st.sampled_from(sorted(properties))))), **properties)


def containers(rules: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(
        objects(rules),
        rules.map(lambda rule: array(rule, minItems=1, maxItems=3)),
        rules.map(lambda rule: mapping(rule, "^[ab]{1,3}$") | {"maxProperties": 2}),
        rules.map(lambda rule: either(rule, NULL)),
    )


def places(schema: Any) -> list[Schema]:
    """Every subschema of a document, the document itself included."""
    if not isinstance(schema, dict):
        return []
    named = [
        rule
        for keyword in ("properties", "$defs", "patternProperties")
        for rule in schema.get(keyword, {}).values()
    ]
    below = [*named, *schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
    return [schema, *(place for part in below for place in places(part))]


LIMITS = {"minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems"} | {
    "maxProperties"
}
CHANGED = (
    LIMITS
    | {"properties", "required", "enum", "const", "anyOf", "type", "pattern", "items", "$ref"}
    | {*("additionalProperties", "patternProperties")}
)


def mutate(draw: st.DrawFn, document: Schema) -> None:
    """One change to a document, of those that a change to a model makes: some widen it, some narrow it."""
    changes = [(place, keyword) for place in places(document) for keyword in sorted(CHANGED & place.keys())]
    place, keyword = draw(st.sampled_from(changes))
    match keyword:
        case _ if keyword in LIMITS:
            place[keyword] = max(0, place[keyword] + draw(st.sampled_from([-1, 1])))
        case "properties":
            name = draw(st.sampled_from(sorted(place["properties"]) or ["new"]))
            if draw(st.booleans()):
                place["properties"]["new"] = {"type": "boolean"}
            else:
                place["properties"].pop(name, None)
                place["required"] = [other for other in place["required"] if other != name]
        case "required":
            place["required"] = sorted(draw(st.sets(st.sampled_from(["a", "b", "new"]))))
        case "enum":
            place["enum"] = draw(st.sampled_from([["a", "b", "c"], ["a"], ["b", "c"]]))
        case "const":
            place["const"] = "b"
        case "anyOf":
            branches = place["anyOf"]
            place["anyOf"] = draw(st.sampled_from([[*branches, INTEGER], branches[:1], branches[::-1]]))
        case "type":
            place["type"] = draw(st.sampled_from(["string", "integer", "number", "object", "array"]))
        case "pattern":
            place["pattern"] = draw(st.sampled_from(["^[ab]{1,3}$", "^a", ""]))
        case "additionalProperties":
            place["additionalProperties"] = draw(st.sampled_from([True, INTEGER]))
        case "patternProperties":
            [rule] = place.pop("patternProperties").values()
            place["patternProperties"] = {"^a": rule}
        case "items" | "$ref":
            del place[keyword]


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[Schema, Schema]:
    """A small schema, and what one or two changes make of it."""
    rules = st.recursive(LEAVES, containers, max_leaves=4)
    old = draw(objects(rules)) | {
        "$defs": {"Shared": draw(objects(LEAVES.filter(lambda leaf: "$ref" not in leaf)))}
    }
    new = deepcopy(old)
    for _ in range(draw(st.integers(1, 2))):
        mutate(draw, new)
    return old, new


def test_valid_records_stay_valid_without_violation() -> None:
    """The soundness of the check: instances of the old schema are put to the new one."""
    verdicts = Counter[bool]()
    drawn = examples(1_000)

    @settings(SEEDED, max_examples=drawn, suppress_health_check=[HealthCheck.too_slow])
    @given(evolution=evolutions(), data=st.data())
    def sound(evolution: tuple[Schema, Schema], data: st.DataObject) -> None:
        old, new = evolution
        compatible = not violations(old, new)
        verdicts[compatible] += 1
        if compatible:
            instance = data.draw(instances(old))
            assert Draft202012Validator(old).is_valid(instance)
            assert Draft202012Validator(new).is_valid(instance)

    sound()
    assert verdicts[True] > drawn / 5
    assert verdicts[False] > drawn / 5
