"""The record of a server on loan."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedReclaim:
    """A request of an owner for some of its servers."""

    id: str
    due_s: float
    """Time by which they must be back."""


@dataclass(frozen=True)
class Loan:
    """A server on loan, from its first moment in another zone until it is back.

    It drains while it is leaving its borrower's zone, which `NodePool.leaving` has.
    """

    owner: str
    borrower: str
    since_s: float
    """Start of its present status."""
    notice_s: float
    """Least time from the reclaim to its due time, as the owner guaranteed when it was lent."""
    reclaim: PlannedReclaim | None = None
    """Reclaim that it belongs to, until its end; None without one, or if an operator sends it back."""

    @property
    def due_s(self) -> float:
        """Time by which it must be back, of a server that drains."""
        return self.since_s + self.notice_s if self.reclaim is None else self.reclaim.due_s

    def is_of_reclaim(self, owner: str, reclaim_id: str) -> bool:
        """Return whether it belongs to a reclaim of an owner."""
        return self.owner == owner and self.reclaim is not None and self.reclaim.id == reclaim_id
