"""Tables, example and numbers of docs/schemas.md and docs/schemas/types.md are those of the models."""

import json
import re
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from schemas import base, codec
from schemas.registry import DECISION_TYPES, EVENTS_BY_TOPIC, INTAKE_EVENTS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "schemas.md").read_text(encoding="utf-8")
TYPES = (DOCS / "schemas" / "types.md").read_text(encoding="utf-8")


def meaning(model: Any) -> str:
    """The first paragraph of a model's docstring, on one line."""
    return " ".join(model.__doc__.partition("\n\n")[0].split())


def test_tables_list_every_type() -> None:
    events = [
        f"| `{model.TYPE}` | `{topic}` | {meaning(model)} |"
        for topic, models in EVENTS_BY_TOPIC.items()
        for model in models
    ]
    events += [f"| `{model.TYPE}` | `ledger` alone | {meaning(model)} |" for model in INTAKE_EVENTS]
    decisions = [f"| `{model.TYPE}` | {meaning(model)} |" for model in DECISION_TYPES.values()]
    assert [line for line in TYPES.splitlines() if line.startswith("| `millrace.")] == events + decisions


def test_the_example_in_structured_mode_is_read() -> None:
    [example] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert (
        codec.decode_event(example.encode(), []).value
        == json.dumps(json.loads(example)["data"], separators=(",", ":")).encode()
    )


def test_the_bounds_are_those_of_the_models() -> None:
    def limit(bounded: Any, keyword: str) -> Any:
        return TypeAdapter(bounded).json_schema()[keyword]

    stated = {
        "| 0 to 1e15; only": limit(base.Micros, "maximum") == 1e15,
        "of a task: 1 to 1e12": limit(base.PositiveSamples, "maximum") == 1e12,
        "planned: 0 to 2e12": limit(base.Samples, "maximum") == 2e12,
        "2^-30 (a byte) to 1e6": (limit(base.Gib, "minimum"), limit(base.Gib, "maximum")) == (2**-30, 1e6),
        "0 to the year 2100": limit(base.UnixTime, "maximum") == 4_102_444_800,
        "a slot: 0 to 1e12": limit(base.Slot, "maximum") == 1e12,
        "at most 2,000 characters": limit(base.Text, "maxLength") == 2_000,
        "Paths have at most 512": limit(base.RelativePath, "maxLength") == 512,
        "1 to 128 of": limit(base.Identifier, "pattern") == r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
        "1 to 256 printable": codec.MAX_ATTRIBUTE_LENGTH == 256,
        "longer than 1 MiB": codec.MAX_VALUE_BYTES == 1024 * 1024,
    }
    for sentence, holds in stated.items():
        assert sentence in PAGE, sentence
        assert holds, sentence
