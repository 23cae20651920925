"""Events and decisions about loans between zones in words."""

from collections.abc import Sequence

from infra.text import first_of, lasting, written
from infra.views.sentences import sentence
from schemas.base import Event, Outcome
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.loans import LoanChanged, OfferAnswered, ReclaimEnded, ReclaimPlanned

_SHOWN_SERVERS = 8


def describe_loan(record: Event | Outcome) -> list[str] | None:
    """Return a line about a record, and further lines on details; None if it is not about loans."""
    match record:
        case InferenceLoadReported():
            serving = f", {len(record.serving)} servers serve" if record.serving else ""
            return [f"zone {record.zone} is {record.load:.1%} loaded at {written(record.time_s)}{serving}"]
        case CapacityOffered():
            return [f"zone {record.zone} offers {servers(record.servers)} (offer {record.offer_id})"]
        case CapacityReclaimed():
            due = f"by {written(record.due_s)} (reclaim {record.reclaim_id})"
            return [f"zone {record.zone} reclaims {record.servers} servers {due}"]
        case OfferAnswered():
            return [_answered(record), *_refusals(record)]
        case LoanChanged():
            reclaim = f" (reclaim {record.reclaim_id})" if record.reclaim_id is not None else ""
            return [f"{_changed(record)}{reclaim}"]
        case ReclaimPlanned():
            return [_planned(record)]
        case ReclaimEnded():
            return [_ended(record)]
    return None


def loan_happening(outcome: Outcome) -> str | None:
    """Return a line for a watcher; None if the outcome is not about loans, or changes of loans follow it."""
    match outcome:
        case OfferAnswered() if outcome.refused or not outcome.lent:
            return ". ".join([_answered(outcome), *_refusals(outcome)])
        case LoanChanged():
            return _changed(outcome)
        case ReclaimEnded():
            return _ended(outcome)
    return None


def servers(names: Sequence[str]) -> str:
    """Return a text with the first few servers by name."""
    return first_of(names, _SHOWN_SERVERS)


def _answered(answer: OfferAnswered) -> str:
    lent = f"{servers(answer.lent)} lent" if answer.lent else "nothing is lent"
    return f"offer {answer.offer_id} of zone {answer.owner}: {lent}"


def _refusals(answer: OfferAnswered) -> list[str]:
    return [
        f"not lent ({refused.reason}): {servers(refused.servers)}"
        + (f"; {words}" if (words := sentence(refused)) else "")
        for refused in answer.refused
    ]


def _changed(loan: LoanChanged) -> str:
    match loan.status:
        case "on_loan":
            return f"{loan.server} of zone {loan.owner} is on loan to zone {loan.borrower}"
        case "draining":
            by = "" if loan.due_s is None else f" by {written(loan.due_s)}"
            return f"{loan.server} drains: it returns from zone {loan.borrower} to {loan.owner}{by}"
        case "returned":
            return f"{loan.server} is back from zone {loan.borrower} in zone {loan.owner}"


def _planned(reclaim: ReclaimPlanned) -> str:
    return (
        f"reclaim {reclaim.reclaim_id} of zone {reclaim.owner} takes {servers(reclaim.servers)}, "
        f"to be back by {written(reclaim.due_s)}"
    )


def _ended(reclaim: ReclaimEnded) -> str:
    name = f"reclaim {reclaim.reclaim_id} of zone {reclaim.owner}"
    match reclaim.status:
        case "in_time":
            return f"{name} is over, all servers are back in time"
        case "overdue":
            return f"{name} is overdue by {lasting(reclaim.late_s)}: {servers(reclaim.missing)} not back"
        case "late":
            return f"{name} is over, {lasting(reclaim.late_s)} late"
