"""How the demo is shown: a table that is drawn again and again, or lines."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live

from infra.views.board import Board
from infra.views.tables import board_view
from infra.views.words import happening
from schemas.base import ZoneView
from schemas.codec import Decision, Envelope

_JOBS_SHOWN = 16
_STANDING_S = 15.0


class Show(Protocol):
    """Takes what happens."""

    def say(self, line: str) -> None:
        """A line about the demo itself."""

    def update(self, board: Board | None, records: Sequence[Envelope | Decision]) -> None:
        """The board after these records."""


class LiveShow:
    """A table that is drawn again and again."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def say(self, line: str) -> None:
        self._live.console.print(line)

    def update(self, board: Board | None, records: Sequence[Envelope | Decision]) -> None:  # noqa: ARG002
        if board is not None:
            self._live.update(board_view(board, _JOBS_SHOWN))


class PlainShow:
    """A line for each thing that happens, and now and then one for how the training stands."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start_s = self._stood_s = time.monotonic()
        self._zones: dict[str, str] = {}
        """The last line of how each zone stands."""

    def say(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._start_s:6.1f} s  {line}", markup=False)

    def update(self, board: Board | None, records: Sequence[Envelope | Decision]) -> None:
        for record in records:
            if isinstance(record, Decision):
                line = happening(record)
                if line is not None and not self._is_known(record, line):
                    self.say(line)
        if board is not None and time.monotonic() - self._stood_s >= _STANDING_S:
            self._stood_s = time.monotonic()
            jobs = board.jobs.by_id.values()
            running = [job for job in jobs if job.nodes and job.first_loss is not None]
            losses = ", ".join(f"{job.job_id} {job.first_loss:.2f} → {job.loss:.2f}" for job in running)
            if losses:
                self.say(f"losses: {losses}")

    def _is_known(self, record: Decision, line: str) -> bool:
        """Whether a zone stands as the line before said."""
        if not isinstance(view := record.outcome, ZoneView):
            return False
        before, self._zones[view.zone] = self._zones.get(view.zone), line
        return line == before


@contextmanager
def show(console: Console) -> Iterator[Show]:
    """The show that suits where the output goes."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            yield LiveShow(live)
    else:
        yield PlainShow(console)
