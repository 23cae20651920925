"""The record of a node: its state in three parts that change independently, and the one function that changes
it. `docs/cell/changes.md` has the table of transitions with the reasons against all others."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from schemas.decisions import NodeStatus

Membership = (
    Literal["owned", "lending", "retiring"]
    | Literal["lent", "lent_returning", "lent_retiring"]
    | Literal["on_loan", "loan_returning", "loan_retiring"]
    | Literal["reclaimed", "reclaimed_retiring", "gone"]
)
"""The zone that a node serves, and whether it is to leave it.

It serves its owner while it is `owned`, `lending` (to go to a zone that an operator lends it to) or
`retiring`. It serves another zone while it is `lent` by an operator, or `on_loan` by an offer. A server on
loan that is `reclaimed` returns. `returning` and `retiring` lead to the owner and out of the cell.
"""
Connection = Literal["assumed", "watched", "down", "awaited"]
"""Connection to a node. `assumed`: it counts as up without a report. `watched`: it has reported since it was
last down, so that its silence counts. `awaited`: it is down until it announces that it is fit for its
zone."""
Scheduling = Literal["open", "cordoned"]
"""Whether operators allow new work on a node."""
LeavingReason = Literal["lent", "returned", "retired"]
NodeEvent = (
    LeavingReason
    | Literal["loaned", "reclaimed", "kept", "moved"]
    | Literal["announced", "reported", "refused", "lost", "awaited", "assumed"]
    | Literal["cordoned", "uncordoned"]
)
_PARTS = ("membership", "connection", "scheduling")
_ANY_CONNECTION: Mapping[NodeEvent, Connection] = {
    "announced": "watched",
    "awaited": "awaited",
    "assumed": "assumed",
}
TRANSITIONS: Mapping[str, Mapping[NodeEvent, str]] = {
    "owned": {"loaned": "on_loan", "lent": "lending", "retired": "retiring"},
    "lending": {"kept": "owned", "retired": "retiring", "moved": "lent"},
    "retiring": {"kept": "owned", "moved": "gone"},
    "lent": {"returned": "lent_returning", "retired": "lent_retiring"},
    "lent_returning": {"retired": "lent_retiring", "moved": "owned"},
    "lent_retiring": {"kept": "lent", "moved": "gone"},
    "on_loan": {"reclaimed": "reclaimed", "returned": "loan_returning", "retired": "loan_retiring"},
    "loan_returning": {"retired": "loan_retiring", "moved": "owned"},
    "loan_retiring": {"kept": "on_loan", "moved": "gone"},
    "reclaimed": {"retired": "reclaimed_retiring", "moved": "owned"},
    "reclaimed_retiring": {"kept": "reclaimed", "moved": "gone"},
    "gone": {},
    "assumed": {**_ANY_CONNECTION, "reported": "watched", "refused": "watched", "lost": "down"},
    "watched": {**_ANY_CONNECTION, "reported": "watched", "refused": "watched", "lost": "down"},
    # A node that has gone offline still refuses commands that were sent to it before.
    "down": {**_ANY_CONNECTION, "reported": "watched", "refused": "down", "lost": "down"},
    "awaited": {**_ANY_CONNECTION, "reported": "awaited", "refused": "awaited", "lost": "awaited"},
    "open": {"cordoned": "cordoned"},
    "cordoned": {"uncordoned": "open"},
}
"""State of a part of the record after an event, by its state before. Callers refuse all other events."""
LEAVING: Mapping[str, LeavingReason] = {
    "lending": "lent",
    "reclaimed": "returned",
    **dict.fromkeys(("lent_returning", "loan_returning"), "returned"),
    **dict.fromkeys(("retiring", "lent_retiring", "loan_retiring", "reclaimed_retiring"), "retired"),
}
"""Reasons for which nodes leave their zones, by membership; the others stay."""
_LENT = ("lending", "lent", "lent_returning", "lent_retiring")
_ON_LOAN = ("on_loan", "loan_returning", "loan_retiring", "reclaimed", "reclaimed_retiring")


@dataclass(frozen=True)
class PlannedReclaim:
    """A request of an owner for some of its servers."""

    owner: str
    id: str
    """Unique among the open reclaims of the owner."""
    due_s: float
    """Time by which they must be back."""


@dataclass(frozen=True)
class Loan:
    """Terms of a server on loan, from its first moment in another zone until it is back."""

    owner: str
    borrower: str
    since_s: float
    """Start of its present status."""
    notice_s: float
    """Least time from the reclaim to its due time, as the owner guaranteed when it was lent."""
    number: int
    """Place in the order of the loans."""
    reclaim: PlannedReclaim | None = None
    """Reclaim that it belongs to, until its end; None without one, or if an operator sends it back."""

    @property
    def due_s(self) -> float:
        """For a server that drains: time by which it must be back."""
        return self.since_s + self.notice_s if self.reclaim is None else self.reclaim.due_s


@dataclass(frozen=True)
class NodeRecord:
    """State of a node, and its terms. The configuration has its owner."""

    membership: Membership = "owned"
    connection: Connection = "assumed"
    scheduling: Scheduling = "open"
    lent_to: str | None = None
    """Zone that an operator lends it to."""
    loan: Loan | None = None
    leaves: int | None = None
    """Place in the order in which departures were decided; None for a node that stays."""

    @property
    def is_down(self) -> bool:
        """Whether the cell does not count on it."""
        return self.connection in ("down", "awaited")

    @property
    def status(self) -> NodeStatus:
        """The state that decisions name."""
        if self.is_down:
            return "down"
        return "leaving" if self.leaves is not None else "up" if self.scheduling == "open" else "cordoned"

    @property
    def serves(self) -> str | None:
        """The zone that it serves in place of its owner's."""
        if self.loan is not None:
            return self.loan.borrower
        return None if self.membership == "lending" else self.lent_to

    def allows(self, event: NodeEvent) -> bool:
        """Return whether an event is possible in the present state."""
        return any(event in TRANSITIONS[getattr(self, part)] for part in _PARTS)

    def after(
        self, event: NodeEvent, number: int = 0, lent_to: str | None = None, loan: Loan | None = None
    ) -> "NodeRecord":
        """Return the record after an event that the present state allows.

        Args:
            number: place in the order of departures, if one begins.
            lent_to: see the field; None if it is unchanged, or ends.
            loan: likewise.
        """
        for part in _PARTS:
            before = getattr(self, part)
            after = TRANSITIONS[before].get(event)
            if after is not None:
                break
        else:
            raise AssertionError(f"no node is {event} that is {self}")
        if after == before:
            return self
        state: dict[str, Any] = {part: after}
        if part == "membership":
            leaves = number if self.leaves is None else self.leaves
            state["lent_to"] = (lent_to or self.lent_to) if after in _LENT else None
            state["loan"] = (loan or self.loan) if after in _ON_LOAN else None
            state["leaves"] = leaves if after in LEAVING else None
        return replace(self, **state)
