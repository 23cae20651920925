"""`millrace transfers`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from infra.commands.log_files import read_records
from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    Json,
    LedgerFile,
    TopicPrefix,
    bounded,
    target_of,
)
from infra.commands.output import console, print_json, remark
from infra.errors import CommandError, disk_faults
from infra.log.reader import LogReader
from infra.log.target import Target
from infra.progress import bar
from infra.text import signed_percent
from infra.views.merging.heat_map import MOST_TASKS, draw
from infra.views.merging.transfers import Transfer, Transfers, tasks_in
from schemas.codec import Decision, Envelope, InvalidRecordError, decode_decision, decode_event
from schemas.text import plain
from schemas.topics import DECISIONS, LEDGER
from streams.policies.merging.kind_of_jobs import task_key


def transfers(
    zone: Annotated[str, typer.Argument(help="A zone under policy `merging`.", metavar="ZONE")],
    out: Annotated[
        Path | None,
        typer.Option(help="Also draw a heat map of all pairs.", metavar="FILE.png", show_default=False),
    ] = None,
    ledger: LedgerFile = None,
    rows: Annotated[int, bounded(least=1, most=100_000, help="Rows of the table.")] = 20,
    cell: CellName = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Show which tasks help which: gains that were forecast, and those of merges."""
    with bar("reading the log") as done:
        if ledger is not None:
            records = read_records(ledger)
        else:
            records = _of_kafka(target_of(bootstrap_servers, topic_prefix, "auditor"), done)
        by_cell = _fold(records, zone, cell)
    found = {name: pairs for name, each in by_cell.items() if (pairs := each.found())}
    if not found:
        where = "" if cell is None else f" of cell {cell}"
        raise CommandError(f"the log has no pair of tasks of zone {zone}{where}: there is no forecast yet")
    if len(found) > 1:
        raise CommandError(f"zone {zone} is in cells {', '.join(sorted(found))}: choose with --cell")
    ((name, pairs),) = found.items()
    if out is not None:
        _draw(pairs, out, f"Donors and receivers in zone {zone} of cell {name}")
    if json:
        print_json({"cell": name, "zone": zone, "transfers": [each.as_json() for each in pairs]})
    else:
        console().print(_table(pairs, rows))


def _fold(records: Iterator[Envelope | Decision], zone: str, cell: str | None) -> dict[str, Transfers]:
    by_cell: dict[str, Transfers] = {}
    for record in records:
        name = record.cell if isinstance(record, Decision) else record.event.cell
        if cell not in (None, name):
            continue
        folded = by_cell.setdefault(name, Transfers(zone, task_key))
        if isinstance(record, Decision):
            folded.fold_decision(record.outcome)
        else:
            folded.fold_event(record.event)
    return by_cell


def _of_kafka(target: Target, on_progress: Callable[[float], None]) -> Iterator[Envelope | Decision]:
    ledger = target.topic(LEDGER)
    with LogReader(target, [ledger, target.topic(DECISIONS)], "beginning") as reader:
        for record in reader.to_end(on_progress):
            try:
                if record.topic == ledger:
                    yield decode_event(record.value, record.headers)
                else:
                    yield decode_decision(record.value or b"")
            except InvalidRecordError:
                continue  # replay reports it


def _draw(pairs: list[Transfer], out: Path, title: str) -> None:
    with disk_faults(out):
        draw(pairs, out, title)
    more = len(tasks_in(pairs)) - MOST_TASKS
    if more > 0:
        remark(f"{out} shows the {MOST_TASKS} tasks with the most merges, and not {more} others")


def _table(pairs: list[Transfer], rows: int) -> Table:
    """Return a table of pairs: those with the most merges first, then those of the highest forecast gain."""
    ordered = sorted(pairs, key=lambda each: (-each.merges, -(each.forecast or 0.0)))
    table = Table("mode", "donor", "receiver", "forecast", "came", "merges", "undone", "saved, of one GPU")
    for each in ordered[:rows]:
        merged = (str(each.merges), str(each.undone), f"{each.saved_s:,.0f} s") if each.merges else ("–",) * 3
        names = plain(each.donor), plain(each.receiver)
        table.add_row(each.mode, *names, _percent(each.forecast), _percent(each.gain), *merged)
    return table


def _percent(gain: float | None) -> str:
    return "–" if gain is None else signed_percent(gain)
