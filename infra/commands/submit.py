"""`millrace submit`."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.commands.options import DEFAULT_PREFIX, BootstrapServers, CellName, Json, Timeout, TopicPrefix

if TYPE_CHECKING:
    from schemas.codec import Decision
    from schemas.jobs import JobSubmitted

_SOURCE = "millrace/submit"


def submit(
    file: Annotated[
        str, typer.Argument(help="Bids, as YAML or JSON lines; `-` is standard input.", metavar="FILE")
    ],
    cell: CellName = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the decisions.")] = False,
    timeout_s: Timeout = 30.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Submit bids and wait for what is decided about them."""
    from infra.bids_file import read_bids
    from infra.commands.asking import ask
    from infra.commands.options import target_of
    from infra.log.publisher import EventPublisher
    from schemas.topics import JOBS

    bids = read_bids(file, time.time(), cell)
    target = target_of(bootstrap_servers, topic_prefix, "users")
    if no_wait:
        with EventPublisher(target, _SOURCE) as publisher:
            for bid in bids:
                publisher.publish(bid)
        for bid in bids:
            _show(json, {"job_id": bid.job_id, "state": "submitted"}, f"{bid.job_id}: submitted")
        return
    for bid, decision in ask(target, JOBS, _SOURCE, bids, lambda bid: bid.job_id, timeout_s):
        _tell(bid, decision, json)


def _tell(bid: "JobSubmitted", decision: "Decision", json: bool) -> None:
    from infra.errors import CommandError
    from infra.money import units
    from schemas.decisions import JobAdmitted, JobRejected

    outcome = decision.outcome
    fields: dict[str, Any] = {"job_id": bid.job_id, "decision_id": decision.id}
    match outcome:
        case JobAdmitted():
            cells = outcome.offer.plan.cells if outcome.offer.plan else ()
            line = f"admitted: pays {units(outcome.payment_micros)} of {units(outcome.bid_micros)}"
            if cells:
                line += f", trains in slots {cells[0][0]} to {cells[-1][0]}"
            fields |= {"state": "admitted", "payment_micros": outcome.payment_micros}
        case JobRejected():
            line = f"rejected ({outcome.reason}): {outcome.detail}"
            fields |= {"state": "rejected", "reason": outcome.reason, "detail": outcome.detail}
        case _:
            raise CommandError(f"{bid.job_id}: not decided: {getattr(outcome, 'detail', outcome.TYPE)}")
    _show(json, fields, f"{bid.job_id}: {line}")


def _show(json: bool, fields: dict[str, Any], line: str) -> None:
    from infra.commands.output import print_json, say

    if json:
        print_json(fields)
    else:
        say(line)
