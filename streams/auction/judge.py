"""Who judges the bids of a zone: at once, or many together."""

from collections.abc import Iterator
from typing import Any, Protocol

from schemas.decisions import EventIgnored
from schemas.jobs import JobSubmitted, JobWithdrawalRequested, Task
from schemas.registry import Outcome
from schemas.solves import SolveFinished
from solvers.auction.auctioneer import Auctioneer
from solvers.auction.mechanism import Request
from solvers.auction.search import Schedule
from streams.auction.verdicts import Verdicts, why_not
from streams.live_bytes import LiveBytes, kept_bytes


class Judge(Protocol):
    """Decides about the bids of one zone."""

    quote_remark: str
    """What a quote with a plan means here."""

    def bid(self, event: JobSubmitted, request: Request) -> Iterator[Outcome]:
        """A bid whose task can be judged."""

    def full(self, user: str, task: Task, schedule: Schedule) -> str | None:
        """Why the cell could not keep a bid of this user with this plan; None where it could."""

    def has(self, job_id: str) -> bool:
        """Whether a bid of this id waits for its decision."""

    def withdraw(self, event: JobWithdrawalRequested) -> Iterator[Outcome]:
        """A user gives up a bid that the book does not have."""

    def on_clock(self, time_s: float) -> Iterator[Outcome]:
        """It is `time_s` now, and the market's window is where it belongs."""

    def on_solve(self, event: SolveFinished) -> Iterator[Outcome]:
        """A solver's answer."""

    def state(self) -> dict[str, Any]:
        """Everything, of types that msgpack writes."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of another judge of the same zone."""


class ImmediateJudge:
    """See `Judge`: every bid is judged as it comes, and nothing is kept."""

    quote_remark = "this is what a bid would meet now"

    def __init__(self, auctioneer: Auctioneer, verdicts: Verdicts, live: LiveBytes) -> None:
        self._auctioneer = auctioneer
        self._verdicts = verdicts
        self._live = live

    def bid(self, event: JobSubmitted, request: Request) -> Iterator[Outcome]:
        appraisal = self._auctioneer.appraise(request)
        schedule, price = appraisal.schedule, appraisal.price
        if schedule is not None and price is not None and event.bid_micros > price.micros:
            full = self.full(event.user, event.task, schedule)
            if full is not None:
                # It had a plan, so it belongs into the bound.
                self._auctioneer.judge(event.bid_micros, request, appraisal)
                yield self._verdicts.rejected(event, "cell_full", full, appraisal)
                return
        award = self._auctioneer.decide(event.bid_micros, request, appraisal)
        if award is None:
            yield self._verdicts.rejected(event, *why_not(appraisal, event.bid_micros), appraisal)
        else:
            yield self._verdicts.admitted(event, request, appraisal, award)

    def full(self, user: str, task: Task, schedule: Schedule) -> str | None:  # noqa: ARG002
        return self._live.refuse_job(kept_bytes(task, len(schedule.placement.slots)))

    def has(self, job_id: str) -> bool:  # noqa: ARG002
        return False

    def withdraw(self, event: JobWithdrawalRequested) -> Iterator[Outcome]:
        yield unknown_job(event.job_id)

    def on_clock(self, time_s: float) -> Iterator[Outcome]:  # noqa: ARG002
        yield from ()

    def on_solve(self, event: SolveFinished) -> Iterator[Outcome]:
        yield unknown_solve(event)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing was kept."""


def unknown_job(job_id: str) -> EventIgnored:
    """What is said of a job that is not here any more, or never was."""
    return EventIgnored(reason="unknown_job", detail=f"job {job_id} is over or never won")


def unknown_solve(event: SolveFinished) -> EventIgnored:
    """What is said of an answer that nobody waits for."""
    return EventIgnored(
        reason="unknown_solve", detail=f"zone {event.zone} waits for no answer to request {event.request_id}"
    )
