"""`millrace state`."""

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any

import typer

from infra.commands.deciding import present_cell
from infra.commands.options import DEFAULT_PREFIX, BootstrapServers, Json, LedgerAlone, TopicPrefix
from infra.commands.output import print_json, print_line
from infra.errors import CommandError
from infra.views.state_lines import state_lines

_MOST_NAMES = 20
_PLACE = ("cell", "ledger_offset", "rules", "time_s")


def state(
    cell: Annotated[str, typer.Argument(help="The cell's name.", metavar="CELL")],
    zone: Annotated[
        str | None, typer.Option(help="Only this zone.", metavar="ZONE", show_default=False)
    ] = None,
    job: Annotated[
        str | None, typer.Option(help="Only this job, while it is live.", metavar="JOB", show_default=False)
    ] = None,
    ledger: LedgerAlone = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Show the state of a cell: nodes, loans, zones with jobs, GPUs, queues, plans and prices."""
    found = present_cell(cell, ledger, bootstrap_servers, topic_prefix)
    shown = chosen(found.describe(), zone, job)
    if json:
        print_json(shown)
    else:
        for line in state_lines(shown):
            print_line(line)


def chosen(described: dict[str, Any], zone: str | None, job: str | None) -> dict[str, Any]:
    """A described cell, or the place in the ledger and one zone or one job of it.

    Raises:
        CommandError: there is no such zone or live job; the message names those that there are.
    """
    cell, zones = described["cell"], described["zones"]
    if zone is not None and zone not in zones:
        raise CommandError(f"cell {cell} has no zone {zone}: {_those_of(zones)}")
    if zone is None and job is None:
        return described
    place = {name: described.get(name) for name in _PLACE}
    if job is None:
        return {**place, "zones": {zone: zones[zone]}}
    jobs = {
        id: {"zone": name, **one}
        for name, each in zones.items()
        if zone in (None, name)
        for id, one in each["jobs"].items()
    }
    if job not in jobs:
        where = f"cell {cell}" if zone is None else f"zone {zone} of cell {cell}"
        raise CommandError(
            f"{where} has no live job {job}: {_those_of(jobs)}; `millrace explain` has those that are over"
        )
    return {**place, "job": {"id": job, **jobs[job]}}


def _those_of(names: Iterable[str]) -> str:
    """The names that there are, as far as a line has room."""
    there = list(names)
    more = len(there) - _MOST_NAMES
    listed = ", ".join(islice(there, _MOST_NAMES)) + (f" and {more} more" if more > 0 else "")
    return f"it has {listed}" if there else "it has none"
