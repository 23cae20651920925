"""A server on loan, as the cell keeps it."""

from dataclasses import dataclass

from schemas.loans import LoanStatus


@dataclass(frozen=True)
class Loan:
    """Of one server, from the moment in which it serves another zone until it is back."""

    owner: str
    borrower: str
    since_s: float
    """When its status began."""
    notice_s: float
    """So much time is left at least from the moment in which it is wanted back, as its owner guaranteed when
    it was lent."""
    due_s: float | None = None
    """By when it must be back; None while it is not wanted back."""
    reclaim_id: str | None = None
    """What took it; None where nothing did, or an operator."""

    @property
    def status(self) -> LoanStatus:
        """On loan, or on its way back."""
        return "on_loan" if self.due_s is None else "draining"
