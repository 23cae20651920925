"""Decisions about loans: servers, their borrowers, and due times."""

from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import Identifier, Outcome, Record, View
from schemas.facts import Facts

LoanStatus = Literal["on_loan", "draining", "returned"]
"""Status of a loan. `draining`: the borrower drains the server, which is due back."""


class LoanChanged(View):
    """A server that a zone lends is now on loan, reclaimed, or returned."""

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
    """Time at which this status began."""
    due_s: float | None = None
    """Time by which it must be back; None without one."""
    reclaim_id: Identifier | None = None
    """Id of its reclaim; None if an operator or a change of the cell ended the loan."""


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
"""Reason why a server is not lent. `no_fitting_borrower`: no borrower has its GPU type. `occupied`: jobs of
its owner need it. `inside_headroom`: the load and the headroom need it. `breaks_a_promise`: a promise of a
zone excludes the loan."""


class RefusedServers(Record):
    """Servers that are not lent, for one reason."""

    reason: OfferRefusal
    servers: tuple[Identifier, ...]
    facts: Facts = Field(default_factory=dict)


class OfferAnswered(Outcome):
    """Answer to an offer: each server is lent, or refused with a reason."""

    TYPE: ClassVar = "millrace.offer.answered.v1"

    owner: Identifier
    offer_id: Identifier
    lent: tuple[Identifier, ...]
    """Lent servers, whose borrowers are in the `LoanChanged` decisions that follow."""
    refused: tuple[RefusedServers, ...]


class ReclaimPlanned(Outcome):
    """The servers that are returned because of a reclaim."""

    TYPE: ClassVar = "millrace.reclaim.planned.v1"

    owner: Identifier
    reclaim_id: Identifier
    due_s: float
    servers: tuple[Identifier, ...]
    """Servers in the order of their choice."""


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
