"""The frozen base classes of all records, and the bounded types of their fields.

Units are in the names: `_s` seconds, `_slots` slots, `_samples` samples, `_gib` GiB, `_micros` 1e-6 of a
unit of money. Every bound exists so that sums over a cell stay exact in 64-bit integers and floats.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
)
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_T = TypeVar("_T")

MAX_MICROS = 10**15
"""One thousand million units of money: the sum of eight such amounts still is exact in a float."""

MAX_TIME_S = 4_102_444_800.0
"""2100-01-01T00:00:00Z."""

HOURS_PER_DAY = 24

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A name that is also safe as one folder of a path."""

RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,191}$")]
"""Name of a run: chosen by its policy, repeated in its reports, opaque to a node."""

MAX_TEXT_LENGTH = 2_000

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_LENGTH)]
"""Free text of bounded length, such as an error message."""

_RELATIVE_PATH = r"^(?!/)(?!(?:[^/]*/)*\.\.(?:/|$))[^\\\x00-\x1f\x7f]+$"
"""Pattern with look-ahead, which Pydantic lacks: it is checked below and stated in the JSON Schema."""


def _inside_its_root(path: str) -> str:
    if not re.fullmatch(_RELATIVE_PATH, path):
        raise ValueError(f"path {path!r} must stay inside its root: relative, without '..'")
    return path


RelativePath = Annotated[
    str,
    StringConstraints(min_length=1, max_length=512),
    AfterValidator(_inside_its_root),
    Field(json_schema_extra={"pattern": _RELATIVE_PATH}),
]
"""A POSIX path below a root that the reader chooses: never absolute, and without `..`."""

Micros = Annotated[int, Field(ge=0, le=MAX_MICROS)]
PositiveSamples = Annotated[int, Field(ge=1, le=10**12)]
Samples = Annotated[int, Field(ge=0, le=2 * 10**12)]
"""Twice the largest work: the last slot of a plan may train almost as many samples as all before it."""
Gib = Annotated[float, Field(ge=2**-30, le=1_000_000)]
"""Memory of a byte at least, in GiB."""
SamplesPerSecond = Annotated[float, Field(ge=1e-9, le=1e9)]
"""A speed of a sample in 32 years at least."""
LEAST_S = 1e-3
"""Shortest wait: a count of shorter ones during a job could overflow."""
LEAST_PART = 1e-6
"""Smallest fraction, for settings that must be above zero."""
UnixTime = Annotated[float, Field(ge=0, le=MAX_TIME_S)]
Slot = Annotated[int, Field(ge=0, le=10**12)]


def is_none(value: object) -> bool:
    """Return whether a field has no value, for fields that are omitted without one."""
    return value is None


def distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names if they are distinct: a validator.

    Raises:
        ValueError: a name is repeated; the message has the first one.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name} is named twice")
        seen.add(name)
    return names


class Record(BaseModel):
    """A frozen value that refuses unknown fields, wrong types, NaN and infinities."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Amount = Annotated[int, Field(ge=0)]
"""Computed micros. They lack the upper bound of inputs, since it must not refuse an outcome."""


class Event(Record):
    """A record that may enter the ledger of a cell."""

    TYPE: ClassVar[str]
    """The CloudEvents type."""

    cell: Identifier


class Outcome(Record):
    """The record of a decision of a cell on an event, before it has an id and a link of the chain."""

    TYPE: ClassVar[str]
    """The CloudEvents type."""


class View(Outcome):
    """A state, whose latest record under each key is also kept in a compacted topic."""

    VIEW: ClassVar[str]
    """The compacted topic, without its prefix."""
    KEY_FIELD: ClassVar[str]
    """The field that is the key in that topic, after the cell's id."""


class ZoneView(View):
    """The state of a zone, whose latest record is also kept in a compacted topic."""

    KEY_FIELD: ClassVar = "zone"

    zone: Identifier


class Kinded(Record):
    """A member of a tagged union; each member narrows `kind` to its own literal."""

    kind: str

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema of the member, whose kind is required in JSON and optional in Python."""
        reference = handler(schema)
        resolved = handler.resolve_ref_schema(reference)
        resolved["required"] = list(dict.fromkeys(["kind", *resolved.get("required", [])]))
        return reference


@dataclass(frozen=True)
class TaggedUnion:
    """An annotation: the value is one of some models, selected by its `kind`.

    Pydantic's own discriminated unions need two members at least, and a union may have a member of one policy
    only.
    """

    members: Sequence[type[Kinded]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the union."""
        return _tagged_union(self.members, handler)


class _Open(Generic[_T]):
    """An annotation whose values depend on the policies of the process.

    Until `close`, a model with such a field is incomplete, as with an unresolved forward reference.
    """

    def __init__(self) -> None:
        self._values: tuple[_T, ...] | None = None

    def close(self, values: Iterable[_T]) -> None:
        """Set the values of this process's policies."""
        self._values = tuple(values)

    @property
    def values(self) -> tuple[_T, ...]:
        """The values of this process's policies.

        Raises:
            PydanticUndefinedAnnotation: the policies are not installed yet.
        """
        if self._values is None:
            raise PydanticUndefinedAnnotation(
                "the policies of this process, by schemas.installed.install,", "no policies are installed"
            )
        return self._values


class OpenUnion(_Open[type["Kinded"]]):
    """A tagged union of the types of this process's policies."""

    def __init__(self, name: str) -> None:
        """Create a union; `name` denotes its members in errors."""
        super().__init__()
        self.name = name

    @property
    def members(self) -> Sequence[type["Kinded"]]:
        """The types; see `values`."""
        return self.values

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the union."""
        return _tagged_union(self.values, handler)


class OpenWords(_Open[str]):
    """A closed list of words, extended by the policies of this process."""

    def __init__(self, *words: str) -> None:
        super().__init__()
        self.general = words
        """Words of the list without policies."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the words."""
        return core_schema.literal_schema(list(dict.fromkeys((*self.general, *self.values))))


def _tagged_union(members: Iterable[type[Kinded]], handler: GetCoreSchemaHandler) -> CoreSchema:
    choices = {kind_of(member): handler.generate_schema(member) for member in members}
    return core_schema.tagged_union_schema(choices, discriminator="kind")


def kind_of(member: type[Kinded]) -> str:
    """Return the kind of a member of a tagged union."""
    (kind,) = member.model_fields["kind"].annotation.__args__  # type: ignore[union-attr]
    assert isinstance(kind, str)
    return kind
