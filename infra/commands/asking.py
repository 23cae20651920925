"""`millrace submit`, `quote` and `vendor-quote`: send events and wait for the answers."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, TypeVar

import typer

from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    Json,
    Timeout,
    TopicPrefix,
    target_of,
)
from infra.commands.output import print_json, say, show
from infra.errors import CommandError
from infra.files.events import read_jobs, read_quote_requests, read_vendor_quotes
from infra.log.answers import Answers, Refusal
from infra.log.publisher import EventPublisher
from infra.log.target import Target
from infra.text import units
from infra.views.sentences import sentence
from infra.views.words import describe, happening
from schemas.auction.quotes import QUOTES, VendorLeft, VendorQuoted
from schemas.changes import CellChange
from schemas.codec import Decision
from schemas.decisions import EventWithoutEffect, JobAdmitted, JobQuoted, JobRejected
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.topics import JOBS

RequestEvent = TypeVar(
    "RequestEvent",
    JobSubmitted,
    JobWithdrawalRequested,
    JobQuoteRequested,
    VendorQuoted | VendorLeft,
    CellChange,
)


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
        target: The log.
        topic: Input topic of the events, without the prefix.
        source: CloudEvents source of the events.
        events: Events to send.
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
    file: Annotated[
        str, typer.Argument(help="Jobs, as YAML or JSON lines; `-` is standard input.", metavar="FILE")
    ],
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
            raise CommandError(f"{job.job_id}: not decided: {sentence(outcome)}")
        case _:
            raise CommandError(f"{job.job_id}: not decided: {outcome.TYPE}")
    line = happening(decision)
    assert line is not None
    show(json, fields, line)


def quote(
    file: Annotated[
        str,
        typer.Argument(help="The jobs to ask about, as for `submit`; `-` is standard input.", metavar="FILE"),
    ],
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
        if json:
            print_json(answer.outcome.model_dump(mode="json"))
        else:
            head, *details = describe(answer.outcome)
            say(f"{answer.outcome.quote_id}: {head}")
            for detail in details:
                say(f"  {detail}")


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
        if json:
            print_json({"type": quote.TYPE, **quote.model_dump(mode="json")})
        else:
            say(f"{_about(quote)}: {_vendor_line(quote)}")


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
