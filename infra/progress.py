"""Lines about the progress of a command and the events that it waits for."""

import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.spinner import Spinner
from rich.text import Text

from schemas.text import plain

SHORTEST_REPORTED_S = 2.0
"""Shortest wait that gets a line."""
REMINDER_S = 15.0
_FILE_WIDTH = 110
_SPINNER_WIDTH = 2
_REFRESHES_PER_S = 4


class Progress:
    """Lines on a console. On a terminal, the awaited event is shown below them; in a file, it gets a line at
    intervals. Text from other users is escaped by `plain`."""

    def __init__(
        self, console: Console, *, timed: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin without lines; `timed` puts the seconds since now before each line."""
        self._console = console
        self._clock = clock
        self._start_s = clock()
        self._timed = timed
        self._awaited = ""
        self._part: float | None = None
        self._since_s = self._shown_s = self._start_s
        self._width = (console.width - 1) if console.is_terminal else _FILE_WIDTH

    def show(self, line: str) -> None:
        """Show a line, wrapped at the width of the console."""
        prefix = f"{self._clock() - self._start_s:6.1f} s  " if self._timed else ""
        lines = textwrap.wrap(
            prefix + plain(line),
            max(self._width, len(prefix) + 20),
            subsequent_indent=" " * max(len(prefix), 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        self._console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    def command(self, line: str) -> None:
        """Show a line that is to be copied: indented, and not wrapped."""
        self._console.print(f"  {plain(line)}", markup=False, highlight=False, soft_wrap=True)

    @property
    def awaited(self) -> str:
        """Text about the awaited event; empty without one."""
        return self._awaited

    def awaits(self, what: str = "", part: float | None = None) -> None:
        """Set the text about what is awaited, by default none, and the part of it that is done, if known."""
        self._part = part
        if what != self._awaited:
            self._awaited = what
            self._since_s = self._shown_s = self._clock()

    def remind(self) -> None:
        """Show a line about a long wait, unless there was one recently."""
        now_s = self._clock()
        first = self._shown_s == self._since_s
        if self._awaited and now_s - self._shown_s >= (SHORTEST_REPORTED_S if first else REMINDER_S):
            self._shown_s = now_s
            self.show(self._waiting(now_s, self._awaited))

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """Show the awaited event within the block."""
        _shown.append(self)
        try:
            with self._standing_below() if self._console.is_terminal else self._reminding():
                yield self
        finally:
            _shown.remove(self)

    def _standing_below(self) -> Live:
        return Live(
            console=self._console,
            get_renderable=self._standing,
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
        )

    @contextmanager
    def _reminding(self) -> Iterator[None]:
        over = threading.Event()
        reminding = threading.Thread(target=self._remind_until, args=(over,), daemon=True)
        reminding.start()
        try:
            yield
        finally:
            over.set()
            reminding.join()

    def _waiting(self, now_s: float, what: str) -> str:
        part = "" if self._part is None else f", {self._part:.0%} done"
        return f"waiting for {what}{part} ({now_s - self._since_s:.0f} s)"

    def _standing(self) -> Text | Spinner:
        if not self._awaited:
            return Text("")
        now_s, what = self._clock(), plain(self._awaited)
        room = self._width - _SPINNER_WIDTH - len(self._waiting(now_s, ""))
        if len(what) > room:
            what = f"{what[: max(room - 4, 0)]} ..."
        return Spinner("line", Text(self._waiting(now_s, what), "dim"))

    def _remind_until(self, over: threading.Event) -> None:
        while not over.wait(1 / _REFRESHES_PER_S):
            self.remind()


_shown: list[Progress] = []
"""Progresses that are shown at present, the innermost last."""


@contextmanager
def bar(what: str) -> Iterator[Callable[[float], None]]:
    """Show the progress of a task within the block; yield a function that gets the part that is done.

    It is a bar on standard error, if that is a terminal. If a `Progress` is shown, the task is awaited there.
    """
    if _shown:
        progress = _shown[-1]
        before = progress.awaited
        try:
            yield lambda part: progress.awaits(what, part)
        finally:
            progress.awaits(before)
        return
    stderr = Console(stderr=True)
    with Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=stderr,
        disable=not stderr.is_terminal,
        transient=True,
    ) as shown:
        task = shown.add_task(what, total=1.0)
        yield lambda part: shown.update(task, completed=part)
