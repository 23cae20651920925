"""Events and decisions in words, with those of a policy from its view."""

from infra.text import units
from infra.views.loan_words import describe_loan, loan_happening
from infra.views.policy import policy_views
from infra.views.sentences import sentence
from schemas.base import Event, Kinded, Outcome, Record
from schemas.codec import Decision
from schemas.commands import Command
from schemas.decisions import (
    CellAccepted,
    EventFaulted,
    JobAdmitted,
    JobCompleted,
    JobQuoted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeMoved,
    NodeStatusChanged,
    ZoneAccepted,
)
from schemas.fleet import CommandRefused, RunFailed, RunFinished, RunProgressed, RunStarted
from schemas.jobs import JobSubmitted, JobWithdrawalRequested
from schemas.kind import Evidence
from schemas.solves import SolveFinished, SolveRequested
from schemas.text import plain


def describe(record: Event | Outcome, policy: str | None = None) -> list[str]:
    """Return a line about a record, and further lines with its numbers.

    Args:
        policy: kind of the policy of the record's zone, if it is known: see `sentence`.
    """
    for words in (_own_words(record), describe_loan(record)):
        if words is not None:
            return words
    match record:
        case JobSubmitted():
            terms, *more = _of(record.terms)
            return [f"{record.user} {terms}", *more, *_of(record.workload)]
        case JobWithdrawalRequested():
            return [f"{record.user} withdraws the job"]
        case JobAdmitted():
            pays = units(record.payment_micros)
            return [f"admitted ({record.reason}): pays {pays}", *_behind(record.evidence)]
        case JobRejected():
            return [f"rejected ({record.reason}){_because(record, policy)}", *_behind(record.evidence)]
        case JobQuoted():
            return [f"{record.reason}{_because(record, policy)}", *_behind(record.evidence)]
        case SolveRequested():
            return [f"a solver is asked: {record.question.kind}"]
        case SolveFinished():
            return ["a solver has answered"]
        case RunStarted():
            counted = record.dataset_samples
            data = "" if counted is None else f"; its data hold {counted} samples"
            return [f"{record.node} starts run {record.run_id} at {record.samples_done} samples{data}"]
        case RunProgressed():
            done = ", run complete" if record.complete else ""
            at = f"{record.samples_done} samples{_loss(record.loss, 4)}"
            memory = "" if record.memory_gib is None else f" and at most {record.memory_gib:.3g} GiB"
            return [f"{record.node} is at {at}, after {record.node_s:.1f} s of its time{memory}{done}"]
        case RunFinished():
            return [f"{record.node} has done all {record.samples_done} samples{_loss(record.loss, 4)}"]
        case CommandRefused():
            why = f": {record.detail}" if record.detail else ""
            return [f"{record.node} refuses command {record.command_id} ({record.reason}){why}"]
        case RunFailed():
            return [f"{record.node} fails at {record.samples_done} samples: {record.error}"]
        case JobRefunded():
            kept = record.retained_micros and f", {units(record.retained_micros)} retained"
            refunded = f"{units(record.refund_micros)}{kept or ''}"
            return [f"refunded {refunded} ({record.reason}){_because(record, policy)}"]
        case JobWithdrawn():
            returned, retained = units(record.returned_micros), units(record.retained_micros)
            return [f"withdrawn: {returned} returned, {retained} retained"]
        case JobCompleted():
            completed = _completed(record, 4)
            if record.adapter_path is None:
                return [completed]
            return [completed, f"adapter {record.adapter_path}, BLAKE2b {record.adapter_digest}"]
        case EventFaulted():
            return [_faulted(record)]
        case Command(CANCELS=True):
            return [f"{record.node} is ordered to stop"]
        case _:
            return [record.TYPE]


def happening(decision: Decision, policy: str | None = None, message: str = "") -> str | None:
    """Return a line for a decision that is shown to watchers; None for the others.

    Args:
        policy: kind of the policy of the decision's zone, if it is known: see `sentence`.
        message: message of the node that the decision is about, see `Messages`.
    """
    line = _happening(decision, policy)
    return f"{line}: {plain(message)}" if line is not None and message else line


def _happening(decision: Decision, policy: str | None) -> str | None:
    outcome = decision.outcome
    own = (view.happening(outcome) for view in policy_views())
    line = next((line for line in (*own, loan_happening(outcome)) if line is not None), None)
    if line is not None:
        return line
    match outcome:
        case CellAccepted():
            return f"cell {decision.cell} accepted"
        case JobAdmitted():
            return f"{outcome.job_id} admitted ({outcome.reason}): pays {units(outcome.payment_micros)}"
        case JobRejected():
            return f"{outcome.job_id} rejected ({outcome.reason}){_because(outcome, policy)}"
        case JobRefunded():
            return f"{outcome.job_id} refunded {units(outcome.refund_micros)} ({outcome.reason})"
        case JobWithdrawn():
            return f"{outcome.job_id} withdrawn"
        case JobCompleted():
            return f"{outcome.job_id} {_completed(outcome, 3)}"
        case SolveRequested():
            return f"zone {outcome.zone} asks a solver: {outcome.question.kind}"
        case NodeStatusChanged(reason="awaited"):
            return f"{outcome.node} must announce itself"
        case NodeStatusChanged():
            return f"{outcome.node} is {outcome.status} ({outcome.reason})"
        case NodeMoved(to_zone=None):
            return f"{outcome.node} has left zone {outcome.from_zone} and the cell ({outcome.reason})"
        case NodeMoved():
            return f"{outcome.node} is in zone {outcome.to_zone} now ({outcome.reason})"
        case ZoneAccepted():
            return f"zone {outcome.zone} is {outcome.reason}"
        case EventFaulted():
            return _faulted(outcome)
        case _:
            return None


def _faulted(fault: EventFaulted) -> str:
    return f"event {fault.event_id} ({fault.event_type}) changed nothing: {sentence(fault)}"


def _because(record: Record, policy: str | None) -> str:
    words = sentence(record, policy)
    return f": {words}" if words else ""


def _completed(job: JobCompleted, decimals: int) -> str:
    on = "" if job.node is None else f" on {job.node}"
    accuracy = "" if job.accuracy is None else f", accuracy {job.accuracy:.{decimals}f}"
    if job.accuracy is not None and job.target_accuracy is not None and job.accuracy < job.target_accuracy:
        accuracy += f", below its target of {job.target_accuracy:g}"
    return f"completed{on}: {job.samples_done} samples{_loss(job.loss, decimals)}{accuracy}"


def _loss(loss: float | None, decimals: int) -> str:
    return "" if loss is None else f", loss {loss:.{decimals}f}"


def _own_words(record: Record) -> list[str] | None:
    """Return the words of the first view that has any."""
    return next((words for view in policy_views() if (words := view.words(record)) is not None), None)


def _of(value: Kinded) -> list[str]:
    """Return words for a member of a policy's union, by its fields if no view has any."""
    words = _own_words(value)
    if words is not None:
        return words
    fields = value.model_dump(mode="json", exclude={"kind"})
    text = ", ".join(f"{name} {field}" for name, field in fields.items())
    return [f"{value.kind} {text}" if text else value.kind]


def _behind(evidence: Evidence | None) -> list[str]:
    return [] if evidence is None else _of(evidence)
