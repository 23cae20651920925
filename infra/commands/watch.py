"""`millrace watch`."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live

from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    Json,
    TopicPrefix,
    bounded,
    target_of,
)
from infra.commands.output import console, print_json, say
from infra.errors import CommandError
from infra.log.reader import BoardFollower
from infra.views.tables import board_view
from infra.views.words import happening
from schemas.codec import Decision, Envelope

_POLL_S = 0.25


def watch(
    cell: CellName = None,
    once: Annotated[bool, typer.Option("--once", help="Show the present state and exit.")] = False,
    jobs: Annotated[int, bounded(least=1, most=10_000, help="Rows of the table.")] = 20,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Watch jobs, nodes, runs and losses; `--json` streams every event and decision."""
    with BoardFollower(target_of(bootstrap_servers, topic_prefix, "auditor")) as follower:
        if json:
            _stream(follower, cell, once)
        elif once:
            _show_once(follower, cell, jobs)
        else:
            _show_live(follower, cell, jobs)


def _stream(follower: BoardFollower, cell: str | None, once: bool) -> None:
    for record in follower.catch_up():
        _print_record(record, cell, print_json)
    while not once:
        for record in follower.poll(_POLL_S):
            _print_record(record, cell, print_json)


def _print_record(record: Envelope | Decision, cell: str | None, print_json: Any) -> None:
    kind, name = ("decision", record.cell) if isinstance(record, Decision) else ("event", record.event.cell)
    if cell in (None, name):
        print_json({"kind": kind, **json.loads(record.canonical)})


def _show_once(follower: BoardFollower, cell: str | None, jobs: int) -> None:
    follower.catch_up()
    boards = [board for name, board in sorted(follower.boards.items()) if cell in (None, name)]
    if not boards:
        raise CommandError("the log is empty" if cell is None else f"the log has no cell {cell}")
    for board in boards:
        console().print(board_view(board, jobs))


def _show_live(follower: BoardFollower, cell: str | None, jobs: int) -> None:
    screen = console()
    if not screen.is_terminal:
        records = follower.catch_up()
        while True:
            for record in records:
                if not isinstance(record, Decision) or cell not in (None, record.cell):
                    continue
                line = happening(record)
                if line is not None:
                    say(f"{_clock(record.time_s)}  {record.cell}  {line}")
            records = follower.poll(_POLL_S)
    follower.catch_up()
    with Live(console=screen, refresh_per_second=4) as live:
        while True:
            follower.poll(_POLL_S)
            boards = [board for name, board in sorted(follower.boards.items()) if cell in (None, name)]
            live.update(Group(*(board_view(board, jobs) for board in boards)))


def _clock(time_s: float | None) -> str:
    return "--:--:--" if time_s is None else f"{datetime.fromtimestamp(time_s, UTC):%H:%M:%S}"
