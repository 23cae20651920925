"""Requests to an auction zone, by the types of its own workload and terms."""

from dataclasses import dataclass
from typing import Protocol, Self

from schemas.auction.terms import BidTerms, DeadlineTerms
from schemas.kind import Terms, Workload
from schemas.lora import LoraWorkload


class Asked(Protocol):
    """A job, or a request for a quote."""

    @property
    def workload(self) -> Workload: ...

    @property
    def terms(self) -> Terms: ...


@dataclass(frozen=True)
class Task:
    """Work and deadline of a bid: all of the bid but its price (section 2.1)."""

    workload: LoraWorkload
    deadline_s: float

    @classmethod
    def of(cls, asked: Asked) -> Self:
        """Return the task of a job or a request for a quote.

        Raises:
            TypeError: its workload or its terms are not those of an auction.
        """
        workload, terms = asked.workload, asked.terms
        if not isinstance(workload, LoraWorkload) or not isinstance(terms, BidTerms | DeadlineTerms):
            raise TypeError(f"a {workload.kind} workload on {terms.kind} terms is not a task for an auction")
        return cls(workload, terms.deadline_s)


def bid_micros_of(asked: Asked) -> int:
    """Return the most that the user would pay.

    Raises:
        TypeError: the terms have no bid.
    """
    if not isinstance(asked.terms, BidTerms):
        raise TypeError(f"{asked.terms.kind} terms have no bid")
    return asked.terms.bid_micros
