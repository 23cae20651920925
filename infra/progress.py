"""Lines about what a command does, one for each thing that happens, and about what it is waiting for."""

import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from schemas.text import plain

UNSAID_S = 2.0
"""A shorter wait is not worth a line."""
REMINDER_S = 15.0
_FILE_WIDTH = 110
_REFRESHES_PER_S = 4


class Progress:
    """Lines on a console. What is awaited stands below them on a terminal, and in a file is a line of its own
    now and then. Text from other users is escaped (see `plain`)."""

    def __init__(
        self, console: Console, *, timed: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Show nothing yet; `timed` puts the seconds since now before each line."""
        self._console = console
        self._clock = clock
        self._start_s = clock()
        self._timed = timed
        self._awaited = ""
        self._since_s = self._said_s = self._start_s
        self._width = (console.width - 1) if console.is_terminal else _FILE_WIDTH

    def say(self, line: str) -> None:
        """Show a line, broken where it is wider than the console."""
        prefix = f"{self._clock() - self._start_s:6.1f} s  " if self._timed else ""
        lines = textwrap.wrap(
            prefix + plain(line),
            max(self._width, len(prefix) + 20),
            subsequent_indent=" " * max(len(prefix), 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        self._console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    def awaits(self, what: str = "") -> None:
        """Say what is waited for from now on, nothing by default."""
        if what != self._awaited:
            self._awaited = what
            self._since_s = self._said_s = self._clock()

    def remind(self) -> None:
        """Show a line about a wait that is long, if there was none of late."""
        now_s = self._clock()
        first = self._said_s == self._since_s
        if self._awaited and now_s - self._said_s >= (UNSAID_S if first else REMINDER_S):
            self._said_s = now_s
            self.say(self._waiting(now_s))

    @contextmanager
    def shown(self) -> Iterator[Self]:
        """Show what is awaited for the length of the block."""
        if self._console.is_terminal:
            with Live(
                console=self._console,
                get_renderable=self._standing,
                refresh_per_second=_REFRESHES_PER_S,
                transient=True,
            ):
                yield self
            return
        over = threading.Event()
        reminding = threading.Thread(target=self._remind_until, args=(over,), daemon=True)
        reminding.start()
        try:
            yield self
        finally:
            over.set()
            reminding.join()

    def _waiting(self, now_s: float) -> str:
        return f"waiting for {self._awaited} ({now_s - self._since_s:.0f} s)"

    def _standing(self) -> Text | Spinner:
        if not self._awaited:
            return Text("")
        line = textwrap.shorten(plain(self._waiting(self._clock())), self._width - 2, placeholder=" ...")
        return Spinner("line", Text(line, "dim"))

    def _remind_until(self, over: threading.Event) -> None:
        while not over.wait(1 / _REFRESHES_PER_S):
            self.remind()
