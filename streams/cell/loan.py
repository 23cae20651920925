"""The record of a server on loan."""

from dataclasses import dataclass

from schemas.loans import LoanStatus


@dataclass(frozen=True)
class Loan:
    """A server on loan, from its first moment in another zone until it is back."""

    owner: str
    borrower: str
    since_s: float
    """Start of its present status."""
    notice_s: float
    """Least time from the reclaim to its due time, as the owner guaranteed when it was lent."""
    due_s: float | None = None
    """Time by which it must be back; None while it is not reclaimed."""
    reclaim_id: str | None = None
    """Reclaim that it belongs to; None without one, or if an operator sends it back."""

    @property
    def status(self) -> LoanStatus:
        """`draining` once it has a due time."""
        return "on_loan" if self.due_s is None else "draining"
