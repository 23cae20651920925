"""`millrace watch`."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live

from infra.commands.log_files import read_log_files, read_records
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
from infra.commands.output import console, print_json, print_line
from infra.errors import CommandError
from infra.figures.board import Board, Boards
from infra.log.reader import BoardFollower
from infra.progress import bar
from infra.views.sentences import policy_of
from infra.views.tables import board_view
from infra.views.words import happening
from schemas.codec import Decision, Envelope, InvalidRecordError

_POLL_S = 0.25


def watch(
    cell: CellName = None,
    once: Annotated[bool, typer.Option("--once", help="Show the present state and exit.")] = False,
    jobs: Annotated[int, bounded(least=1, most=10_000, help="Rows of the table.")] = 20,
    ledger: LedgerFile = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Watch jobs, nodes, runs and losses; `--json` streams every event and decision."""
    if ledger is not None:
        _show_files(ledger, cell, jobs, json)
        return
    with BoardFollower(target_of(bootstrap_servers, topic_prefix, "auditor"), kept=jobs) as follower:
        if json:
            _stream(follower, cell, once)
        elif once:
            _catch_up(follower)
            _show(follower.boards, cell, jobs)
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


def _show_files(ledger: Path, cell: str | None, jobs: int, json: bool) -> None:
    """Show the state at the end of log files, or print all of their records."""
    if json:
        for record in read_records(ledger):
            _print_record(record, cell, print_json)
        return
    boards = Boards(kept=jobs)
    with bar("reading the log"):
        for entry in read_log_files(ledger):
            with suppress(InvalidRecordError):  # replay reports it
                boards.fold(entry)
    _show(boards, cell, jobs)


def _show(boards: Boards, cell: str | None, jobs: int) -> None:
    shown = _chosen(boards, cell)
    if not shown:
        raise CommandError("the log is empty" if cell is None else f"the log has no cell {cell}")
    for board in shown:
        console().print(board_view(board, jobs))


def _show_live(follower: BoardFollower, cell: str | None, jobs: int) -> None:
    screen = console()
    if not screen.is_terminal:
        for line in lines(_endless(follower), follower.boards, cell):
            print_line(line)
    _catch_up(follower)
    with Live(console=screen, refresh_per_second=4) as live:
        while True:
            follower.poll(_POLL_S)
            live.update(Group(*(board_view(board, jobs) for board in _chosen(follower.boards, cell))))


def _endless(follower: BoardFollower) -> Iterator[Envelope | Decision]:
    yield from follower.catch_up()
    while True:
        yield from follower.poll(_POLL_S)


def lines(
    records: Iterable[Envelope | Decision], boards: Mapping[str, Board], cell: str | None
) -> Iterator[str]:
    """Yield a line for each decision that is shown to watchers, as soon as its event is folded.

    Args:
        records: records that `boards` have folded.
        cell: name of the only cell that is shown; None for all.
    """
    waiting: deque[Decision] = deque()
    for record in records:
        if isinstance(record, Decision) and cell in (None, record.cell):
            waiting.append(record)
        while waiting and boards[waiting[0].cell].has_event_of(waiting[0]):
            decision = waiting.popleft()
            if (line := _line(decision, boards[decision.cell])) is not None:
                yield f"{_clock(decision.time_s)}  {decision.cell}  {line}"


def _line(decision: Decision, board: Board) -> str | None:
    job = board.jobs.by_id.get(getattr(decision.outcome, "job_id", ""))
    policy = None if job is None else policy_of(job.submission)
    return happening(decision, policy, board.messages.of(decision))


def _catch_up(follower: BoardFollower) -> None:
    deque(follower.catch_up(), maxlen=0)


def _chosen(boards: Boards, cell: str | None) -> list[Board]:
    return [board for name, board in sorted(boards.items()) if cell in (None, name)]


def _clock(time_s: float | None) -> str:
    return "--:--:--" if time_s is None else f"{datetime.fromtimestamp(time_s, UTC):%H:%M:%S}"
