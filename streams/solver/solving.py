"""Solves in a child process, which may be slow, fail, exit or be aborted without stopping the service."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pkgutil import resolve_name

from schemas.installed import SOLVES
from schemas.kind import Problem, Solution
from streams.installation import install_policies

READY_S = 600.0
"""Timeout for a process to load and compile its solves."""

_ORDERLY_END_S = 2.0
_WARM_UP_LIMIT_S = 10.0

Solve = Callable[[Problem, float], Solution | None]
"""Function (problem, time_limit_s) -> solution."""


class SolverUnfitError(RuntimeError):
    """No process can solve: a fault of the installation, not of a request."""


@dataclass(frozen=True)
class SolveFailure:
    """Failure of a solve, with its reason in one line."""

    reason: str


@dataclass(frozen=True)
class _Ready:
    """Message that a process has loaded its solves."""


@dataclass(frozen=True)
class Solved:
    """Result of a solve."""

    solution: Solution | None
    """Solution; None if nothing was found."""
    solve_s: float


def installed_solves() -> Solve:
    """Load and compile the solves of all installed policies."""
    functions: dict[type[Problem], Solve] = {}
    for solve in SOLVES.values():
        function = functions[solve.problem] = resolve_name(solve.function)
        function(resolve_name(solve.smallest)(), _WARM_UP_LIMIT_S)
    return lambda problem, time_limit_s: functions[type(problem)](problem, time_limit_s)


class SolverProcess:
    """Process of one solve at a time: `begin` it, then call `outcome` until there is one."""

    def __init__(self, overrun_s: float, load: Callable[[], Solve] = installed_solves) -> None:
        """Start a process, which loads its solves before the first request.

        Args:
            overrun_s: time beyond its limit after which a solve is aborted.
            load: function that runs in the process, once, and returns the solver; importable by its name.
        """
        self._overrun_s = overrun_s
        self._load = load
        self._process, self._pipe = self._start()
        self.ready = False
        """Whether the process has loaded its solves; `outcome` updates it too."""
        self._asked: tuple[Problem, float] | None = None
        """Request that waits until the process is ready, which does not read before."""
        self._solving = False
        self._limit_s = 0.0
        self._until_s = time.monotonic() + READY_S

    def begin(self, problem: Problem, time_limit_s: float) -> None:
        """Send a problem; the previous one must have its outcome."""
        if not self._process.is_alive():
            self._renew()
        self._limit_s = time_limit_s + self._overrun_s
        self._until_s = time.monotonic() + READY_S
        self._asked = (problem, time_limit_s)
        if self.ready:
            self._send()

    def outcome(self, wait_s: float) -> Solved | SolveFailure | None:
        """Return the result or the failure of the solve; None if there is neither within `wait_s`.

        Raises:
            SolverUnfitError: the process cannot load its solves.
        """
        try:
            if self._pipe.poll(wait_s):
                return self._receive(self._pipe.recv())
        except (EOFError, ConnectionResetError):
            self._process.join()
            reason = f"the process that solved it ended with status {self._process.exitcode}"
            if not self.ready:
                raise SolverUnfitError(f"{reason} before it was ready") from None
            return SolveFailure(reason)
        if time.monotonic() < self._until_s:
            return None
        if not self.ready:
            raise SolverUnfitError(f"the process that solves was not ready within {READY_S:g} s")
        self.close()
        return SolveFailure(f"it was broken off after {self._limit_s:g} s")

    def close(self) -> None:
        """End the process: orderly if it only waits, else at once."""
        self._pipe.close()
        if self.ready and not self._solving:
            self._process.join(_ORDERLY_END_S)
        self._process.kill()
        self._process.join()

    def _receive(self, message: Solved | SolveFailure | _Ready) -> Solved | SolveFailure | None:
        if isinstance(message, _Ready):
            self.ready = True
            if self._asked is not None:
                self._send()
            return None
        self._solving = False
        return message

    def _send(self) -> None:
        self._until_s = time.monotonic() + self._limit_s
        # `outcome` detects a process that has just died.
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send(self._asked)
        self._asked = None
        self._solving = True

    def _renew(self) -> None:
        self._pipe.close()
        self._process, self._pipe = self._start()
        self.ready = self._solving = False

    def _start(self) -> tuple[SpawnProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._load), name="solve", daemon=True)
        process.start()
        # The process has the only other end, so that its exit closes the pipe.
        theirs.close()
        return process, ours


def _serve(pipe: Connection, load: Callable[[], Solve]) -> None:
    # Signals that stop the service may reach this process too; the service ends it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_service, daemon=True).start()
    install_policies()
    solve = load()
    pipe.send(_Ready())
    with contextlib.suppress(EOFError):
        while True:
            problem, time_limit_s = pipe.recv()
            began_s = time.perf_counter()
            try:
                solution = solve(problem, time_limit_s)
                outcome: Solved | SolveFailure = Solved(solution, time.perf_counter() - began_s)
            except Exception as error:
                outcome = SolveFailure(" ".join(f"{type(error).__name__}: {error}".split())[:1_000])
            pipe.send(outcome)


def _end_with_service() -> None:
    service = multiprocessing.parent_process()
    if service is not None:
        service.join()
        os._exit(1)
