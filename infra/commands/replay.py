"""`millrace replay`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from infra.commands.deciding import deciding
from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    ExpectHead,
    Json,
    LedgerFile,
    TopicPrefix,
    kept_heads,
    target_of,
)
from infra.commands.output import print_json, print_line, remark
from infra.errors import CommandError, disk_faults
from streams.replay.export import export
from streams.replay.files import DECISIONS_FILE, LEDGER_FILE, verify_files
from streams.replay.heads import head_lines
from streams.replay.replay import LIVE, Verdict
from streams.replay.sources import verify_kafka

EXIT_UNVERIFIED = 3
"""Status for a log without faults, part of which was decided by rules that this version does not have."""


def replay(
    ledger: LedgerFile = None,
    decisions: Annotated[
        Path | None,
        typer.Option(
            help="The decisions that belong to the ledger file; by default decisions.jsonl in its folder.",
            metavar="FILE.jsonl",
            show_default=False,
        ),
    ] = None,
    export_to: Annotated[
        Path | None,
        typer.Option(
            "--export",
            help="Also write ledger.jsonl, decisions.jsonl and states there, for `--from`.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    expect_head: ExpectHead = None,
    strict: Annotated[bool, typer.Option("--strict", help="Count awaited decisions as missing.")] = False,
    cell: CellName = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Recompute every decision and compare it, byte by byte and link by link. The status is 1 if a decision
    differs. It is 3 if none differs, but some were decided by rules that this version of Millrace does not
    have.
    """
    kept = kept_heads(expect_head, cell)
    if ledger is None and decisions is not None:
        raise CommandError("--decisions goes with --from")
    if ledger is not None and export_to is not None:
        raise CommandError("--export reads Kafka and does not go with --from")
    with deciding("replaying the log"):
        if ledger is not None:
            verdict = verify_files(ledger, decisions or ledger.with_name(DECISIONS_FILE), cell, kept)
        else:
            target = target_of(bootstrap_servers, topic_prefix, "auditor")
            tolerated = LIVE - {"awaited"} if strict else LIVE
            verdict = verify_kafka(target.kafka, topic_prefix, cell, tolerated, kept)
            if export_to is not None and verdict.events:
                with disk_faults(export_to):
                    export_to.mkdir(parents=True, exist_ok=True)
                    files = export_to / LEDGER_FILE, export_to / DECISIONS_FILE
                    export(target.kafka, topic_prefix, *files, verdict.settled, cell)
    if cell is not None and not verdict.events:
        raise CommandError(f"the ledger has no event of cell {cell}")
    _show(verdict, json)
    if verdict.has_faults:
        raise CommandError(fault_of(verdict))
    if verdict.unverified:
        for stretch in verdict.unverified:
            remark(f"millrace: replay: {stretch}")
        raise typer.Exit(EXIT_UNVERIFIED)


def verdict_line(verdict: Verdict) -> str:
    """Return a verdict in words."""
    found = "every decision follows from the ledger"
    if not verdict.ok:
        found = "NOT VERIFIED" if verdict.has_faults else "VERIFIED IN PART"
    awaited = f", {verdict.awaited} more are awaited" if verdict.awaited else ""
    cells = "1 cell" if verdict.cells == 1 else f"{verdict.cells} cells"
    repeated = f", {verdict.duplicates} repeated records" if verdict.duplicates else ""
    decisions = f"{verdict.decisions - verdict.awaited} decisions{awaited}{repeated}"
    return f"{found}: {cells}, {verdict.events} events, {decisions}"


def fault_of(verdict: Verdict) -> str:
    """Return a line about the first fault or unverified part, and the number of differences."""
    if verdict.first is not None:
        return f"replay: {verdict.difference_count} differences, the first {verdict.first}"
    if verdict.broken_links:
        cell, decision = next(iter(verdict.broken_links.items()))
        return f"replay: the chain of cell {cell} breaks at decision {decision}"
    lines = [*verdict.join_faults, *verdict.head_faults, *map(str, verdict.unverified)]
    return f"replay: {lines[0]}"


def _show(verdict: Verdict, json: bool) -> None:
    if json:
        print_json({"ok": verdict.ok, **asdict(verdict)})
        return
    print_line(verdict_line(verdict))
    for stretch in verdict.stretches:
        if len({each.rules for each in verdict.stretches if each.cell == stretch.cell}) > 1:
            state = "verified" if stretch.unverified is None else "not verified"
            rules = "before any rules" if stretch.rules is None else f"rules {stretch.rules}"
            place = f"{stretch.cell} {stretch.first_offset} to {stretch.last_offset}"
            print_line(f"stretch {place}: {rules}, {state}")
    if not verdict.has_faults:
        for head in head_lines(verdict.heads):
            print_line(f"head {head}")
