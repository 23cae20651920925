"""The frozen base of everything that travels, and the bounded types its fields are made of.

Units are in the names: `_s` seconds, `_slots` slots, `_samples` samples, `_gib` GiB, `_micros` 1e-6 of a
unit of money. Every bound exists so that sums over a cell stay exact in 64-bit integers and floats.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

MAX_MICROS = 10**15
"""One thousand million units of money: the sum of eight of these still fits a float exactly."""

MAX_TIME_S = 4_102_444_800.0
"""2100-01-01T00:00:00Z."""

HOURS_PER_DAY = 24

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A name that is also safe as one folder of a path."""

RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,191}$")]
"""A run's name: chosen by the policy that ordered it, repeated in every report of it, opaque to a node."""

MAX_TEXT_LENGTH = 2_000

Text = Annotated[str, StringConstraints(max_length=MAX_TEXT_LENGTH)]
"""Free text of bounded length, such as an error message."""

_RELATIVE_PATH = r"^(?!/)(?!(?:[^/]*/)*\.\.(?:/|$))[^\\\x00-\x1f\x7f]+$"
"""Look-ahead, which Pydantic's own patterns lack: it is checked below and stated in the JSON Schema."""


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
"""A POSIX path below a root that the reader chooses: never absolute, never through `..`."""

Micros = Annotated[int, Field(ge=0, le=MAX_MICROS)]
PositiveSamples = Annotated[int, Field(ge=1, le=10**12)]
Samples = Annotated[int, Field(ge=0, le=2 * 10**12)]
"""Twice the largest work: the last slot of a plan may do almost as much again as all before it."""
Gib = Annotated[float, Field(gt=0, le=1_000_000)]
SamplesPerSecond = Annotated[float, Field(gt=0, le=1e9)]
UnixTime = Annotated[float, Field(ge=0, le=MAX_TIME_S)]
Slot = Annotated[int, Field(ge=0, le=10**12)]


class Record(BaseModel):
    """A frozen value that refuses unknown fields, wrong types, NaN and infinities."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
