"""The terms of jobs and of requests for quotes in an auction zone."""

from typing import Literal

from schemas.base import Micros, UnixTime
from schemas.kind import Terms


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
