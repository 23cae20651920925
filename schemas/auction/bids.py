"""Terms of jobs and of requests for quotes in an auction zone, and the prices of labour vendors."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol, Self

from pydantic import Field

from schemas.base import Event, Identifier, Micros, Outcome, UnixTime
from schemas.kind import InputTopic, Terms, Workload
from schemas.lora import LoraWorkload

QUOTES = InputTopic(
    name="quotes",
    summary="Prices and delays of pre-processing, deliveries and failures, from labour vendors.",
    writers="vendors",
    writer_field="vendor",
)

Delay = Annotated[float, Field(ge=0, le=31_536_000)]


class BidTerms(Terms):
    """The most that a user would pay for a workload that is done in time."""

    kind: Literal["bid"] = "bid"
    bid_micros: Micros
    """Bid (b_i)."""
    deadline_s: UnixTime
    """Deadline (d_i): the last slot of a plan ends no later than this."""

    @property
    def latest_s(self) -> float:
        """The deadline."""
        return self.deadline_s

    @property
    def offered_micros(self) -> int:
        """The bid."""
        return self.bid_micros


class DeadlineTerms(Terms):
    """The deadline for which a quote is requested."""

    kind: Literal["deadline"] = "deadline"
    deadline_s: UnixTime
    """Deadline (d_i)."""


class VendorQuoted(Event):
    """A standing quote: price q_in and delay h_in as affine functions of the data size. The latest one
    applies."""

    TYPE: ClassVar = "millrace.vendor.quoted.v1"

    vendor: Identifier
    fixed_price_micros: Micros
    price_per_thousand_samples_micros: Micros
    fixed_delay_s: Delay
    delay_per_thousand_samples_s: Delay


class VendorLeft(Event):
    """A vendor withdraws its quote; bids decided before are not affected."""

    TYPE: ClassVar = "millrace.vendor.left.v1"

    vendor: Identifier


class QuoteAccepted(Outcome):
    """A labour vendor's standing quote, or its end, applies to every later bid."""

    TYPE: ClassVar = "millrace.vendor.quote_accepted.v1"

    zone: Identifier
    vendor: Identifier
    reason: Literal["quoted", "left", "late"]
    """Reason: a new quote, its withdrawal, or its end because a delivery was late. A vendor that was late
    gets orders again once it quotes again."""


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
