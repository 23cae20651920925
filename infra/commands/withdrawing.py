"""`millrace withdraw`."""

from collections.abc import Iterable
from typing import Annotated

import typer
from pydantic import ValidationError

from infra.commands.asking import ask
from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    Json,
    Timeout,
    TopicPrefix,
    target_of,
)
from infra.commands.output import show
from infra.errors import CommandError
from infra.log.publisher import EventPublisher
from infra.log.reader import LogReader
from infra.log.target import Target
from infra.views.sentences import sentence
from infra.views.words import describe
from schemas.codec import Decision
from schemas.codec import describe as describe_fault
from schemas.decisions import EventWithoutEffect, JobWithdrawn
from schemas.jobs import JobWithdrawalRequested
from schemas.topics import JOBS, JOBS_STATE
from schemas.views import JobState

SOURCE = "millrace/withdraw"


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
        cell = cell_of(_states(target, job_id), job_id, user)
    request = _request(cell, user, job_id)
    if no_wait:
        with EventPublisher(target, SOURCE) as publisher:
            publisher.publish(request)
        show(json, {"job_id": job_id, "state": "withdrawal_requested"}, f"{job_id}: withdrawal requested")
        return
    for _, decision in ask(target, JOBS, SOURCE, [request], lambda _: f"job {job_id}", timeout_s):
        print_answer(job_id, decision, json)


def cell_of(states: Iterable[JobState], job_id: str, user: str) -> str:
    """Return the cell of a user's job with this id that is not over.

    Args:
        states: States of jobs with this id; a job that waits for its first decision has none.
        job_id: Id of the job.
        user: User of the job.

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


def print_answer(job_id: str, decision: Decision, json: bool) -> None:
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


def _request(cell: str, user: str, job_id: str) -> JobWithdrawalRequested:
    try:
        return JobWithdrawalRequested(cell=cell, user=user, job_id=job_id)
    except ValidationError as error:
        raise CommandError(describe_fault(error)) from None


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
