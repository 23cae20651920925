"""Versions of the rules: those that this program has, and how a cell goes from one to the next.

The rules of a cell are everything that its decisions depend on except its ledger. `CellConfigured.rules`
names the first version and each `RulesAdopted` the next, so the ledger has the rules of each of its events.
Decisions before the configuration, and whether an adoption is valid, are the same under all rules.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import ReadableError
from schemas.installed import KINDS
from schemas.kind import PolicyKind
from schemas.rules import RULES_VERSION, RulesAdopted

State = dict[str, Any]
"""A cell's state, of types that msgpack writes."""


class RulesError(ReadableError):
    """A cell cannot be folded further with the rules of this program. The message is one line with the
    remedy."""


class MissingRulesError(RulesError):
    """An event is to be decided by rules that this program does not have."""


class WrongStateError(RulesError):
    """Rules were adopted from another state than the ledger leads to."""


def _unchanged(state: State) -> State:
    return state


@dataclass(frozen=True)
class Rules:
    """One version of the rules."""

    version: int
    release: str
    """Version of Millrace that introduced them."""
    policies: Mapping[str, PolicyKind]
    """Policies by kind."""
    convert: Callable[[State], State] = _unchanged
    """Converts a state of older rules, or in an older layout, to these rules and the present layout."""


@dataclass(frozen=True)
class RuleBook:
    """The rules that a program has."""

    rules: tuple[Rules, ...]
    """At least one, ascending by version; cells adopt the last."""
    former: Mapping[int, str] = field(default_factory=dict)
    """Versions of older programs, with the version of Millrace that introduced each."""

    @property
    def newest(self) -> Rules:
        """The rules that cells adopt."""
        return self.rules[-1]

    def get(self, version: int) -> Rules | None:
        """Return the rules of a version; None if the program lacks them."""
        return next((rules for rules in self.rules if rules.version == version), None)

    def lack_of(self, version: int, release: str | None = None) -> str:
        """Return a sentence that the program lacks these rules, and which version of Millrace has them.

        Args:
            release: the version of Millrace, where the ledger names it.
        """
        held = ", ".join(str(rules.version) for rules in self.rules)
        release = release or self.former.get(version)
        age = "a newer" if version > self.newest.version else "an older"
        who = f"{age} version of Millrace has" if release is None else f"version {release} of Millrace has"
        return f"rules {version}, which this program does not have (it has {held}): {who} them"


RULES = RuleBook((Rules(RULES_VERSION, "0.1.0", KINDS),))
"""The rules of this version of Millrace. A change of decisions adds a version (CONTRIBUTING.md)."""


def adoption_holds(adopted: RulesAdopted, rules: int, offset: int) -> bool:
    """Return whether an adoption is the next event of a cell that `rules` have decided up to `offset`."""
    return adopted.previous_rules == rules < adopted.rules and adopted.state_offset == offset


def state_digest(packed: bytes) -> str:
    """Return the digest of a packed state that the ledger has, in hexadecimal."""
    return hashlib.blake2b(packed, digest_size=32).hexdigest()
