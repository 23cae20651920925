"""`millrace submit`, `withdraw`, `quote` and `vendor-quote`: send events and wait for the answers."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError

from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    Json,
    Timeout,
    TopicPrefix,
    target_of,
)
from infra.commands.output import print_line, show
from infra.errors import CommandError
from infra.event_files import read_jobs, read_quote_requests, read_vendor_quotes
from infra.log.answers import Answers, Refusal
from infra.log.publisher import EventPublisher
from infra.log.reader import LogReader
from infra.log.target import Target
from infra.text import units
from infra.views.sentences import policy_of, sentence
from infra.views.words import describe, happening
from schemas.auction.bids import QUOTES, VendorLeft, VendorQuoted
from schemas.base import Event
from schemas.changes import CellChange
from schemas.codec import Decision
from schemas.codec import describe as describe_fault
from schemas.decisions import EventWithoutEffect, JobAdmitted, JobQuoted, JobRejected, JobWithdrawn
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.profiles import ProfileReported
from schemas.topics import JOBS, JOBS_STATE
from schemas.view_records import JobState

RequestEvent = TypeVar(
    "RequestEvent",
    JobSubmitted,
    JobWithdrawalRequested,
    JobQuoteRequested,
    VendorQuoted | VendorLeft,
    CellChange,
    ProfileReported,
)


JobsFile = Annotated[
    str, typer.Argument(help="Jobs, as YAML or JSON lines; `-` is standard input.", metavar="FILE")
]
AnyEvent = TypeVar("AnyEvent", bound=Event)


_WITHDRAWAL_SOURCE = "millrace/withdraw"


def event_of(model: type[AnyEvent], **fields: str) -> AnyEvent:
    """Return an event with these fields.

    Raises:
        CommandError: a field is invalid.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise CommandError(describe_fault(error)) from None


def ask(
    target: Target,
    topic: str,
    source: str,
    events: Iterable[RequestEvent],
    name_of: Callable[[RequestEvent], str],
    timeout_s: float,
) -> Iterator[tuple[RequestEvent, Decision]]:
    """Send events, and yield each with the decision about it, in the order of the decisions.

    Args:
        topic: Input topic of the events, without the prefix.
        source: CloudEvents source of the events.
        name_of: Function to the name of an event in errors.
        timeout_s: Timeout of the next answer.

    Raises:
        CommandError: an event is rejected by intake, or an answer is missing.
        PublishError: the broker does not confirm an event.
        ReadError: the log cannot be read.
    """
    with Answers(target, topic) as answers:
        with EventPublisher(target, source) as publisher:
            waiting = {publisher.publish(event).id: event for event in events}
        for event_id, answer in answers.to(dict(waiting), timeout_s):
            event = waiting.pop(event_id)
            if isinstance(answer, Refusal):
                raise CommandError(f"{name_of(event)}: refused: {answer.reason}")
            yield event, answer
    if waiting:
        first = name_of(next(iter(waiting.values())))
        raise CommandError(
            f"no answer about {first} ({len(waiting)} in all) within {timeout_s:g} s: does a worker run?"
        )


def submit(
    file: JobsFile,
    cell: CellName = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the decisions.")] = False,
    timeout_s: Timeout = 30.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Submit jobs and wait for the decisions."""
    jobs = read_jobs(file, time.time(), cell)
    target = target_of(bootstrap_servers, topic_prefix, "users")
    if no_wait:
        with EventPublisher(target, "millrace/submit") as publisher:
            for job in jobs:
                publisher.publish(job)
        for job in jobs:
            show(json, {"job_id": job.job_id, "state": "submitted"}, f"{job.job_id}: submitted")
        return
    for job, decision in ask(target, JOBS, "millrace/submit", jobs, lambda job: job.job_id, timeout_s):
        _print_answer(job, decision, json)


def _print_answer(job: JobSubmitted, decision: Decision, json: bool) -> None:
    outcome = decision.outcome
    fields: dict[str, Any] = {"job_id": job.job_id, "decision_id": decision.id}
    match outcome:
        case JobAdmitted():
            fields |= {"state": "admitted", "payment_micros": outcome.payment_micros}
        case JobRejected():
            fields |= {"state": "rejected", "reason": outcome.reason, "facts": outcome.facts}
        case EventWithoutEffect():
            raise CommandError(f"{job.job_id}: not decided: {sentence(outcome, policy_of(job))}")
        case _:
            raise CommandError(f"{job.job_id}: not decided: {outcome.TYPE}")
    line = happening(decision, policy_of(job))
    assert line is not None
    show(json, fields, line)


def quote(
    file: JobsFile,
    cell: CellName = None,
    timeout_s: Timeout = 30.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Ask what jobs would cost now, without submitting them."""
    requests = read_quote_requests(file, time.time(), cell)
    target = target_of(bootstrap_servers, topic_prefix, "users")
    answers = ask(target, JOBS, "millrace/quote", requests, lambda request: request.quote_id, timeout_s)
    for request, answer in answers:
        if isinstance(answer.outcome, EventWithoutEffect):
            raise CommandError(f"{request.quote_id}: not answered: {sentence(answer.outcome)}")
        if not isinstance(answer.outcome, JobQuoted):
            raise CommandError(f"{request.quote_id}: not answered: {answer.outcome.TYPE}")
        head, *details = describe(answer.outcome, policy_of(request))
        show(json, answer.outcome.model_dump(mode="json"), f"{answer.outcome.quote_id}: {head}")
        for detail in () if json else details:
            print_line(f"  {detail}")


def vendor_quote(
    file: Annotated[
        str,
        typer.Argument(help="Standing quotes, as YAML or JSON lines; `-` is standard input.", metavar="FILE"),
    ],
    cell: CellName = None,
    timeout_s: Timeout = 30.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Publish or withdraw standing quotes of labour vendors."""
    quotes = read_vendor_quotes(file, cell)
    target = target_of(bootstrap_servers, topic_prefix, "vendors")
    for quote, decision in ask(target, QUOTES.name, "millrace/vendor-quote", quotes, _about, timeout_s):
        if isinstance(decision.outcome, EventWithoutEffect):
            raise CommandError(sentence(decision.outcome))
        fields = {"type": quote.TYPE, **quote.model_dump(mode="json")}
        show(json, fields, f"{_about(quote)}: {_vendor_line(quote)}")


def _about(quote: VendorQuoted | VendorLeft) -> str:
    return f"{quote.vendor} in cell {quote.cell}"


def _vendor_line(quote: VendorQuoted | VendorLeft) -> str:
    if isinstance(quote, VendorLeft):
        return "takes its quote back"
    return (
        f"asks {units(quote.fixed_price_micros)} and {units(quote.price_per_thousand_samples_micros)} per "
        f"thousand samples, and takes {quote.fixed_delay_s:g} s and {quote.delay_per_thousand_samples_s:g} s "
        "per thousand"
    )


def withdraw(
    job_id: Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")],
    user: Annotated[str, typer.Option(help="Whose job it is.", show_default=False)],
    cell: CellName = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the decision.")] = False,
    timeout_s: Timeout = 90.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Withdraw a job, and wait until it is over."""
    target = target_of(bootstrap_servers, topic_prefix, "users")
    if cell is None:
        cell = cell_of_job(_states(target, job_id), job_id, user)
    request = event_of(JobWithdrawalRequested, cell=cell, user=user, job_id=job_id)
    if no_wait:
        with EventPublisher(target, _WITHDRAWAL_SOURCE) as publisher:
            publisher.publish(request)
        show(json, {"job_id": job_id, "state": "withdrawal_requested"}, f"{job_id}: withdrawal requested")
        return
    for _, decision in ask(target, JOBS, _WITHDRAWAL_SOURCE, [request], lambda _: f"job {job_id}", timeout_s):
        print_withdrawal(job_id, decision, json)


def cell_of_job(states: Iterable[JobState], job_id: str, user: str) -> str:
    """Return the cell of a user's job with this id that is not over.

    Args:
        states: States of jobs with this id; a job that waits for its first decision has none.

    Raises:
        CommandError: there is no such job, there are several, or it is another user's or over.
    """
    found = list(states)
    if not found:
        raise CommandError(f"no job {job_id} was decided: of one that still waits, give --cell")
    own = [state for state in found if state.user == user]
    if not own:
        raise CommandError(f"job {job_id} is of another user")
    cells = sorted({state.cell for state in own if state.state == "admitted"})
    if not cells:
        raise CommandError(f"job {job_id} is over: {', '.join(sorted({state.state for state in own}))}")
    if len(cells) > 1:
        raise CommandError(f"job {job_id} is in cells {', '.join(cells)}: choose with --cell")
    return cells[0]


def print_withdrawal(job_id: str, decision: Decision, json: bool) -> None:
    """Print the answer to a withdrawal.

    Raises:
        CommandError: the job is not withdrawn.
    """
    outcome = decision.outcome
    match outcome:
        case JobWithdrawn():
            fields = {
                "job_id": job_id,
                "decision_id": decision.id,
                "state": outcome.STATE,
                "returned_micros": outcome.returned_micros,
                "retained_micros": outcome.retained_micros,
            }
            show(json, fields, f"{job_id} {describe(outcome)[0]}")
        case EventWithoutEffect():
            raise CommandError(f"{job_id}: not withdrawn ({outcome.reason}): {sentence(outcome)}")
        case _:
            raise CommandError(f"{job_id}: over before it was withdrawn: {describe(outcome)[0]}")


def _states(target: Target, job_id: str) -> list[JobState]:
    """Return the states of jobs with this id, of all cells and users."""
    latest: dict[bytes | None, JobState] = {}
    mention = job_id.encode(errors="replace")
    with LogReader(target, [target.topic(JOBS_STATE)], "beginning") as view:
        for record in view.to_end():
            if (record.key or b"").endswith(b"/" + mention):
                try:
                    latest[record.key] = JobState.model_validate_json(record.value or b"")
                except ValidationError:
                    continue  # replay reports it
    return list(latest.values())
