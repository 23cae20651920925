"""Decisions about loans: which server is lent to whom, and by when it is back."""

from typing import ClassVar, Literal

from schemas.base import Detail, Identifier, Outcome


class LoanChanged(Outcome):
    """A server that a zone lends is in another state than before."""

    TYPE: ClassVar = "millrace.loan.changed.v1"

    server: Identifier
    owner: Identifier
    """The zone that lends it."""
    borrower: Identifier
    """The zone that uses it, or has used it."""
    status: Literal["on_loan", "draining", "returned"]
    """`draining`: reclaimed; its borrower clears it."""
    since_s: float | None
    """Of this status; None before the cell's first tick."""
    due_s: float | None = None
    """By when it must be back; None while nobody wants it back."""
    reclaim_id: Identifier | None = None
    """The reclaim that took it."""


class ReclaimPlanned(Outcome):
    """These servers are given back because of a reclaim."""

    TYPE: ClassVar = "millrace.reclaim.planned.v1"

    owner: Identifier
    reclaim_id: Identifier
    due_s: float
    servers: tuple[Identifier, ...]
    """In the order in which they were chosen."""
    detail: Detail = ""


class ReclaimEnded(Outcome):
    """All servers of a reclaim are back, or its deadline has passed without some."""

    TYPE: ClassVar = "millrace.reclaim.ended.v1"

    owner: Identifier
    reclaim_id: Identifier
    status: Literal["in_time", "overdue", "late"]
    """`overdue`: the deadline is over and some are not back; `late` follows when they are."""
    missing: tuple[Identifier, ...] = ()
    """Servers that are not back."""
    late_s: float = 0.0
    """How long after the deadline the last one came back."""
