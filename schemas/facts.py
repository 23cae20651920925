"""Facts of a decision: the numbers and names behind its reason.

Facts are part of the log. Sentences are not: views make them from reason and facts, and may change them at
any time.
"""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, NamedTuple
from urllib.parse import quote

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from schemas.base import MAX_TEXT_LENGTH

FactName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
"""Name of a fact with its unit, as for fields: `waited_s`, `held_bytes`."""

FactText = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:/%-]+$", max_length=MAX_TEXT_LENGTH)]
"""An identifier, a path or a word: without spaces, so that no sentence is one. See `quoted`."""

Fact = int | float | FactText | tuple[FactText, ...]
"""A number, an identifier or a word of a closed list, or several of these. Texts stay in the events, from
which views take them."""


NO_FACTS: Mapping[str, Fact] = MappingProxyType({})

_WORD = re.compile(r"[a-z][a-z0-9_]{0,63}")
_WORDS = ("case", "because")
"""Names of the facts that are words of closed lists."""


def quoted(text: str) -> str:
    """Return a text with freely chosen content, such as a path, as a fact. Characters that `FactText` does
    not allow are percent-encoded (RFC 3986). A text that is too long for a log is cut off."""
    return quote(text, safe=":/", errors="replace").replace("~", "%7E")[:MAX_TEXT_LENGTH]


def _with_words(facts: dict[str, Fact]) -> dict[str, Fact]:
    for name in _WORDS:
        if name in facts and not _WORD.fullmatch(str(facts[name])):
            raise ValueError(f"the fact {name} must be a word of a closed list: a-z, 0-9 and _")
    return facts


Facts = Annotated[dict[FactName, Fact], Field(max_length=16), AfterValidator(_with_words)]
"""Facts by name. If a reason has several cases, the fact `case` is a word of a closed list; `because` is
another reason."""


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
