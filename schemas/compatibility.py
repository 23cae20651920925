"""Proof that a new version of a JSON Schema accepts all values that the old version accepted.

The proof goes part by part and keyword by keyword. It is conservative: it reports what it cannot prove.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

Schema: TypeAlias = bool | dict[str, Any]
"""JSON Schema 2020-12: `True` accepts everything, `False` nothing."""

_ANNOTATIONS = frozenset({"$comment", "$defs", "default", "deprecated", "description", "examples"})
_VERBATIM = ("format", "multipleOf", "pattern", "uniqueItems")
"""Keywords whose values cannot be compared: they may be removed, but neither added nor changed."""


@dataclass(frozen=True)
class _Limit:
    """A bound on a number or a size."""

    inclusive: str
    exclusive: str | None
    widens: int
    """-1 if a lower limit accepts more, 1 if a higher one does."""
    absent: float
    """Limit without the keyword."""

    def tightest(self, schema: dict[str, Any]) -> tuple[float, bool, str]:
        """Return the tightest limit, comparable so that a tighter one is smaller: its signed value, whether
        the value itself is accepted, and its text."""
        limits = [(self.absent * self.widens, True, f"no {self.inclusive}")]
        for keyword, accepts_itself in ((self.inclusive, True), (self.exclusive, False)):
            if keyword in schema:
                limits.append((schema[keyword] * self.widens, accepts_itself, f"{keyword} {schema[keyword]}"))
        return min(limits, key=lambda limit: limit[:2])


_LIMITS = (
    _Limit("minimum", "exclusiveMinimum", -1, -inf),
    _Limit("maximum", "exclusiveMaximum", 1, inf),
    _Limit("minLength", None, -1, 0),
    _Limit("maxLength", None, 1, inf),
    _Limit("minItems", None, -1, 0),
    _Limit("maxItems", None, 1, inf),
    _Limit("minProperties", None, -1, 0),
    _Limit("maxProperties", None, 1, inf),
)
_COMPARED_KEYWORDS = frozenset(
    {"additionalProperties", "const", "enum", "items", "patternProperties", "prefixItems", "properties"}
    | {"propertyNames", "required", "title", "type"}
    | set(_VERBATIM)
    | {keyword for limit in _LIMITS for keyword in (limit.inclusive, limit.exclusive) if keyword}
)


def violations(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the values that may be valid under `old` and are not proven valid under `new`, one line each.

    Each line names the type (its `$id`, or its title), the path of the value, and what became narrower.
    """
    name = str(old.get("$id") or old.get("title") or "schema").removesuffix(".json")
    old, new = _without_identity(old), _without_identity(new)
    faults = _DocumentComparison(old, new).faults(old, new, _Place("$", frozenset()))
    return [f"{name} {fault}" for fault in dict.fromkeys(faults)]


@dataclass(frozen=True)
class _Place:
    """Position of a comparison in the value, and the pairs of references that are being compared."""

    path: str
    open_pairs: frozenset[str]

    def below(self, step: str) -> "_Place":
        return _Place(self.path + step, self.open_pairs)

    def fault(self, what: str) -> str:
        return f"{self.path}: {what}"


@dataclass(frozen=True)
class _DocumentComparison:
    """Comparison of two documents, each with its own references."""

    old_document: dict[str, Any]
    new_document: dict[str, Any]

    def faults(self, old: Schema, new: Schema, place: _Place) -> list[str]:
        """Return the faults. Schemas are conjunctions: each part of `new` must follow from a part of
        `old`."""
        if old is False or _same(old, new):
            return []
        old_parts = list(_parts(old)) or [{}]
        faults: list[str] = []
        for new_part in _parts(new):
            attempts = [self._part_faults(old_part, new_part, place) for old_part in old_parts]
            best = min(attempts, key=len)
            faults += best
        return faults

    def _part_faults(self, old: Schema, new: Schema, place: _Place) -> list[str]:
        if old is False:
            return []
        if not isinstance(new, dict) or not isinstance(old, dict):
            return [place.fault("no value is accepted any more")]
        if "$ref" in old or "$ref" in new:
            return self._reference_faults(old, new, place)
        if "anyOf" in old:
            return [fault for branch in old["anyOf"] for fault in self.faults(branch, new, place)]
        if "anyOf" in new:
            return self._alternative_faults(old, new["anyOf"], place)
        return self._keyword_faults(old, new, place)

    def _reference_faults(self, old: dict[str, Any], new: dict[str, Any], place: _Place) -> list[str]:
        pair = _canonical([old, new])
        if pair in place.open_pairs:
            return []  # A recursive type: the claim may be assumed one level down.
        try:
            old_target, new_target = _resolve(self.old_document, old), _resolve(self.new_document, new)
        except LookupError as missing:
            return [place.fault(f"cannot be compared: {missing.args[0]}")]
        return self.faults(old_target, new_target, _Place(place.path, place.open_pairs | {pair}))

    def _alternative_faults(self, old: dict[str, Any], branches: list[Schema], place: _Place) -> list[str]:
        """Return the faults of alternatives: a schema without a union must fit into one alternative."""
        attempts = [self.faults(old, branch, place) for branch in branches]
        if not all(attempts):
            return []
        label = _label(self.old_document, old)
        alike = [
            attempt
            for branch, attempt in zip(branches, attempts, strict=True)
            if _label(self.new_document, branch) == label
        ]
        return alike[0] if len(alike) == 1 else [place.fault(f"alternative {label} removed")]

    def _keyword_faults(self, old: dict[str, Any], new: dict[str, Any], place: _Place) -> list[str]:
        unknown = sorted((old.keys() | new.keys()) - _COMPARED_KEYWORDS)
        if unknown:
            return [place.fault(f"cannot be compared: keyword {keyword}") for keyword in unknown]
        old_types, new_types = _types(old), _types(new)
        accepted = {*new_types, "integer"} if "number" in new_types else set(new_types)
        lost = [kind for kind in old_types if kind not in accepted]
        if lost:
            left = "|".join(new_types)
            return [place.fault(f"type {kind} removed, {left} left") for kind in lost]
        faults = [place.fault(what) for what in (*_value_faults(old, new), *_bound_faults(old, new))]
        if "array" in old_types:
            faults += self._array_faults(old, new, place)
        if "object" in old_types:
            faults += self._object_faults(old, new, place)
        return faults

    def _array_faults(self, old: dict[str, Any], new: dict[str, Any], place: _Place) -> list[str]:
        """Return the faults of arrays. If a schema has rules for positions, positions are compared one by
        one."""
        old_first, new_first = old.get("prefixItems", []), new.get("prefixItems", [])
        old_rest, new_rest = old.get("items", True), new.get("items", True)
        positions, most = max(len(old_first), len(new_first)), old.get("maxItems", inf)
        faults: list[str] = []
        for position in range(min(positions, most)):
            old_rule = old_first[position] if position < len(old_first) else old_rest
            new_rule = new_first[position] if position < len(new_first) else new_rest
            faults += self.faults(old_rule, new_rule, place.below(f"[{position}]"))
        if most > positions:
            faults += self.faults(old_rest, new_rest, place.below("[]"))
        return faults

    def _object_faults(self, old: dict[str, Any], new: dict[str, Any], place: _Place) -> list[str]:
        required = sorted(set(new.get("required", ())) - set(old.get("required", ())))
        faults = [place.below(f".{name}").fault("became required") for name in required]
        old_patterns, new_patterns = (schema.get("patternProperties", {}) for schema in (old, new))
        if old_patterns.keys() != new_patterns.keys():
            return [*faults, place.fault("cannot be compared: patternProperties has other patterns")]
        for pattern, rule in old_patterns.items():
            faults += self.faults(rule, new_patterns[pattern], place.below(".*"))
        old_names, new_names = (schema.get("properties", {}) for schema in (old, new))
        old_others, new_others = (schema.get("additionalProperties", True) for schema in (old, new))
        for name, rule in old_names.items():
            below = place.below(f".{name}")
            if name not in new_names and new_others is False:
                faults.append(below.fault("field removed, and unknown fields are refused"))
            else:
                faults += self.faults(rule, new_names.get(name, new_others), below)
        for name in sorted(new_names.keys() - old_names.keys()):
            # In the old schema the name matched a pattern or the rule for other names.
            for rule in (old_others, *old_patterns.values()):
                faults += self.faults(rule, new_names[name], place.below(f".{name}"))
        faults += self.faults(old_others, new_others, place.below(".*"))
        old_keys, new_keys = (schema.get("propertyNames", True) for schema in (old, new))
        return faults + self.faults(old_keys, new_keys, place.below(" (names)"))


def _without_identity(document: dict[str, Any]) -> dict[str, Any]:
    return {keyword: value for keyword, value in document.items() if keyword not in ("$id", "$schema")}


def _parts(schema: Schema) -> Iterator[Schema]:
    """Yield the conjuncts of a schema: its own keywords, its reference, its union, and those of its
    `allOf`."""
    if isinstance(schema, bool):
        if not schema:
            yield False
        return
    for keyword in ("$ref", "anyOf"):
        if keyword in schema:
            yield {keyword: schema[keyword]}
    for conjunct in schema.get("allOf", ()):
        yield from _parts(conjunct)
    applicators = {"$ref", "anyOf", "allOf"} | _ANNOTATIONS
    if own := {keyword: value for keyword, value in schema.items() if keyword not in applicators}:
        yield own


def _resolve(document: dict[str, Any], schema: dict[str, Any]) -> Schema:
    """Return the target of a reference, or a schema that is not a reference itself."""
    if "$ref" not in schema:
        return schema
    reference: str = schema["$ref"]
    if reference == "#":
        return document
    target: Schema | None = document.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
    if target is None:
        raise LookupError(f"$ref {reference} leads nowhere")
    return target


def _label(document: dict[str, Any], branch: Schema) -> str:
    """Return the name of an alternative: its title, or else its types."""
    try:
        target = branch if isinstance(branch, bool) else _resolve(document, branch)
    except LookupError as missing:
        return str(missing.args[0])
    if isinstance(target, bool):
        return str(target).lower()
    return str(target.get("title") or "|".join(_types(target)))


def _types(schema: dict[str, Any]) -> list[str]:
    """Return the JSON types that a schema accepts: those that it names, or those of its values, or all."""
    if "type" in schema:
        stated: str | list[str] = schema["type"]
        return [stated] if isinstance(stated, str) else stated
    if (values := _values(schema)) is not None:
        names = {
            bool: "boolean",
            int: "integer",
            float: "number",
            str: "string",
            list: "array",
            dict: "object",
        }
        return sorted({names.get(type(json.loads(value)), "null") for value in values})
    return ["array", "boolean", "null", "number", "object", "string"]


def _same(old: Schema, new: Schema) -> bool:
    """Return whether two schemas have equal texts without references, whose targets may differ."""
    text = _canonical(old)
    return text == _canonical(new) and '"$ref"' not in text


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _values(schema: dict[str, Any]) -> list[str] | None:
    """Return the values that a schema lists, in canonical form; None if it lists none."""
    constant = [schema["const"]] if "const" in schema else None
    values = schema.get("enum", constant)
    if values is None:
        return None
    return [_canonical(value) for value in values if constant is None or value in constant]


def _value_faults(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    old_values, new_values = _values(old), _values(new)
    if new_values is None:
        return []
    if old_values is None:
        return [f"restricted to {', '.join(new_values)}"]
    return [f"value {value} removed" for value in old_values if value not in new_values]


def _bound_faults(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    faults = []
    for keyword in _VERBATIM:
        before, after = old.get(keyword), new.get(keyword)
        if after and after != before:
            change = "added" if before is None else f"changed from {before}"
            faults.append(f"{keyword} {after} {change}")
    for limit in _LIMITS:
        *old_limit, old_text = limit.tightest(old)
        *new_limit, new_text = limit.tightest(new)
        if new_limit < old_limit:
            faults.append(f"{new_text} where there was {old_text}")
    return faults
