"""Decisions about loans: which server is lent to whom, and by when it is back."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import Identifier, Outcome, Record, View
from schemas.facts import Facts

LoanStatus = Literal["on_loan", "draining", "returned"]
"""`draining`: it is on its way back; its borrower clears it."""


class LoanChanged(View):
    """A server that a zone lends is lent now, wanted back, or returned."""

    TYPE: ClassVar = "millrace.loan.changed.v1"
    VIEW: ClassVar = "loans"
    KEY_FIELD: ClassVar = "server"

    server: Identifier
    owner: Identifier
    """The zone that lends it."""
    borrower: Identifier
    """The zone that uses it, or has used it."""
    status: LoanStatus
    since_s: float
    """When this status began."""
    due_s: float | None = None
    """By when it must be back; None while nobody wants it back by a certain time."""
    reclaim_id: Identifier | None = None
    """The reclaim that took it; None where an operator or a change of the cell did."""


OfferRefusal = Literal[
    "already_lent",
    "breaks_a_promise",
    "cordoned",
    "down",
    "inside_headroom",
    "leaving",
    "no_fitting_borrower",
    "no_load_report",
    "not_owned",
    "occupied",
    "serving",
    "unknown_server",
]
"""Why a server is not lent. `no_fitting_borrower`: no borrower knows its GPU type. `occupied`: jobs of the
zone that owns it need it. `inside_headroom`: the load and the headroom need it. `breaks_a_promise`: some zone
cannot be without it or with it."""


class RefusedServers(Record):
    """Servers that are not lent, for one reason."""

    reason: OfferRefusal
    servers: tuple[Identifier, ...]
    facts: Facts = Field(default_factory=dict)


class OfferAnswered(Outcome):
    """Answer to an offer: each server is lent, or refused for a reason."""

    TYPE: ClassVar = "millrace.offer.answered.v1"

    owner: Identifier
    offer_id: Identifier
    lent: tuple[Identifier, ...]
    """Their borrowers are in the `LoanChanged` of each, which follows."""
    refused: tuple[RefusedServers, ...]


class ReclaimPlanned(Outcome):
    """The servers that are given back because of a reclaim."""

    TYPE: ClassVar = "millrace.reclaim.planned.v1"

    owner: Identifier
    reclaim_id: Identifier
    due_s: float
    servers: tuple[Identifier, ...]
    """In the order in which they were chosen."""


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
    """Time since the deadline, by the cell's clock."""
