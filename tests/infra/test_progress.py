"""Lines of a command fit, and long waits name what is waited for."""

from io import StringIO

import pytest
from rich.console import Console

from infra.progress import REMINDER_S, SHORTEST_REPORTED_S, Progress, bar


class Screen:
    """A file, on a clock that is set by hand."""

    def __init__(self, width: int | None = None, timed: bool = False) -> None:
        self.now_s = 0.0
        self._file = StringIO()
        console = Console(file=self._file, width=width, force_terminal=width is not None, color_system=None)
        self.progress = Progress(console, timed=timed, clock=lambda: self.now_s)

    @property
    def lines(self) -> list[str]:
        return self._file.getvalue().splitlines()

    def at(self, now_s: float) -> None:
        self.now_s = now_s
        self.progress.remind()


@pytest.mark.parametrize(("width", "most"), [(80, 79), (None, 110)])
def test_no_line_is_wider_than_the_console(width: int | None, most: int) -> None:
    screen = Screen(width, timed=True)
    screen.progress.show("a node has trained " * 30)
    assert len(screen.lines) > 3
    assert max(map(len, screen.lines)) <= most


def test_a_path_is_not_broken() -> None:
    screen = Screen(40)
    path = "/home/ada/.local/share/millrace/demo/adapters"
    screen.progress.show(f"adapters are in {path}")
    assert any(path in line for line in screen.lines)


def test_text_of_others_is_escaped() -> None:
    screen = Screen()
    screen.progress.show("job [red]x\x1b[2J")
    assert screen.lines == ["job [red]x\\x1b[2J"]


def test_long_wait_is_reported_periodically() -> None:
    screen = Screen()
    screen.progress.awaits("the broker")
    screen.at(SHORTEST_REPORTED_S - 0.1)
    assert screen.lines == []
    screen.at(SHORTEST_REPORTED_S)
    screen.at(SHORTEST_REPORTED_S + 1)
    assert screen.lines == ["waiting for the broker (2 s)"]
    screen.at(SHORTEST_REPORTED_S + REMINDER_S)
    assert screen.lines[1:] == ["waiting for the broker (17 s)"]


def test_new_wait_restarts_and_no_wait_is_silent() -> None:
    screen = Screen()
    screen.progress.awaits("the broker")
    screen.at(1.0)
    screen.progress.awaits("node-a")
    screen.at(SHORTEST_REPORTED_S)
    assert screen.lines == []
    screen.progress.awaits()
    screen.at(100.0)
    assert screen.lines == []


def test_waits_are_reported_while_blocked() -> None:
    screen = Screen()
    with screen.progress.shown():
        screen.progress.awaits("the broker")
        screen.now_s = 60.0
        while not screen.lines:
            pass
    assert screen.lines == ["waiting for the broker (60 s)"]


def test_long_line_is_shortened_but_keeps_seconds() -> None:
    screen = Screen(80)
    screen.progress.awaits("a-job-of-a-long-name, " * 10)
    with screen.progress.shown():
        screen.now_s = 23.0
        while "(23 s)" not in screen.lines[-1]:
            pass
        assert " ... (23 s)" in screen.lines[-1]
        line = screen.lines[-1]
        assert len(line[line.rindex("waiting") :]) <= 77


def test_progress_of_step_joins_awaited_name() -> None:
    screen = Screen()
    screen.progress.awaits("the broker")
    with screen.progress.shown():
        with bar("jars to be fetched") as done:
            done(0.25)
            screen.at(SHORTEST_REPORTED_S)
        assert screen.progress.awaited == "the broker"
    assert screen.lines == [f"waiting for jars to be fetched, 25% done ({SHORTEST_REPORTED_S:.0f} s)"]


def test_without_a_terminal_a_bar_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with bar("jars to be fetched") as done:
        done(0.5)
    assert capfd.readouterr() == ("", "")
