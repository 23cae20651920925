"""Facts of a decision: the numbers and names behind its reason.

Facts are part of the log. Sentences are not: views make them from reason and facts, and may change them at
any time.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from schemas.base import MAX_TEXT_LENGTH

FactName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
"""Name of a fact with its unit, as for fields: `waited_s`, `held_bytes`."""

Fact = int | float | str | tuple[str, ...]
"""A number, an identifier or a word of a closed list, or several of these. Texts stay in the events, from
which views take them."""


NO_FACTS: Mapping[str, Fact] = MappingProxyType({})


def _clipped(text: str) -> str:
    return text[:MAX_TEXT_LENGTH]


def _all_clipped(facts: dict[str, Fact]) -> dict[str, Fact]:
    return {name: _clipped(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}


Facts = Annotated[dict[FactName, Fact], Field(max_length=16), AfterValidator(_all_clipped)]
"""Facts by name. Names are cut to a length fit for a log, so that no decision fails for one. If a reason has
several cases, the fact `case` is a word of a closed list."""


def facts_bytes(facts: Mapping[str, Fact]) -> int:
    """Return the most bytes of facts in a snapshot."""
    return len(json.dumps(dict(facts)).encode()) if facts else len("{}")


class Fault(NamedTuple):
    """A fault of a value: a word of a closed list and facts, for logs, and a sentence for the writer of the
    value."""

    word: str
    message: str
    facts: Mapping[str, Fact] = NO_FACTS

    @property
    def error(self) -> PydanticCustomError:
        """Error of a validator; its type is the word, and its context the facts."""
        return PydanticCustomError(self.word, self.message, dict(self.facts))
