"""`millrace quote`."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from infra.commands.options import DEFAULT_PREFIX, BootstrapServers, CellName, Json, Timeout, TopicPrefix

if TYPE_CHECKING:
    from schemas.decisions import JobQuoted

_SOURCE = "millrace/quote"


def quote(
    file: Annotated[
        str,
        typer.Argument(
            help="The tasks to ask about, written as bids; `-` is standard input.", metavar="FILE"
        ),
    ],
    cell: CellName = None,
    timeout_s: Timeout = 30.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Ask what tasks would cost now, without buying."""
    from infra.bids_file import read_quote_requests
    from infra.commands.asking import ask
    from infra.commands.options import target_of
    from infra.commands.output import print_json, say
    from infra.errors import CommandError
    from schemas.decisions import JobQuoted
    from schemas.topics import JOBS

    requests = read_quote_requests(file, time.time(), cell)
    target = target_of(bootstrap_servers, topic_prefix, "users")
    answers = ask(target, JOBS, _SOURCE, requests, lambda request: request.quote_id, timeout_s)
    for request, answer in answers:
        if not isinstance(answer.outcome, JobQuoted):
            detail = getattr(answer.outcome, "detail", answer.outcome.TYPE)
            raise CommandError(f"{request.quote_id}: not answered: {detail}")
        if json:
            print_json(answer.outcome.model_dump(mode="json"))
        else:
            for line in _lines(answer.outcome):
                say(line)


def _lines(quoted: "JobQuoted") -> list[str]:
    from infra.commands.offers import describe_offer
    from infra.money import units

    if quoted.offer is None or quoted.offer.price is None:
        lines = [f"{quoted.quote_id}: no price ({quoted.reason}): {quoted.detail}"]
    elif quoted.reason != "plan_found":
        lines = [f"{quoted.quote_id}: no bid wins now ({quoted.reason}): {quoted.detail}"]
    else:
        lines = [f"{quoted.quote_id}: a bid of {units(quoted.offer.lowest_winning_bid_micros)} wins now"]
    if quoted.offer is not None:
        lines += [f"  {line}" for line in describe_offer(quoted.offer)]
    return lines
