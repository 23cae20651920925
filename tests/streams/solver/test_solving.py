"""A solve in a process of its own: answered, failed, dead or broken off, there is an outcome in the end."""

import os
import time
from collections.abc import Callable

import psutil
import pytest

from schemas.auction.batches import BatchProblem, BatchSolution
from schemas.kind import Solution
from streams.solver import solving
from streams.solver.solving import Solve, Solved, SolveFailure, SolverProcess, SolverUnfitError

TIMEOUT_S = 60.0
OVERRUN_S = 0.5
DEEDS = ("one", "another", "raise", "die", "hang")


def problem(what: str) -> BatchProblem:
    """Return a problem whose first slot encodes the solver's behaviour."""
    return BatchProblem(relative_gap=0.01, first_slot=DEEDS.index(what), classes=(), bids=())


def as_asked(asked: BatchProblem, time_limit_s: float) -> BatchSolution:
    """Solve, or fail, as the problem encodes."""
    match DEEDS[asked.first_slot]:
        case "raise":
            raise ValueError("no room for\nthis")
        case "die":
            os._exit(3)
        case "hang":
            time.sleep(1_000)
    return BatchSolution(status="none", plans=(), bound_micros=asked.first_slot)


def obedient() -> Solve:
    return as_asked


def unloadable() -> Solve:
    raise ImportError("no solver here")


def hanging() -> Solve:
    time.sleep(1_000)
    return as_asked


@pytest.fixture
def started():
    """Starts processes, and ends them after the test."""
    processes: list[SolverProcess] = []

    def start(load: Callable[[], Solve]) -> SolverProcess:
        processes.append(SolverProcess(OVERRUN_S, load))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


def outcome_of(process: SolverProcess) -> Solved | SolveFailure:
    deadline_s = time.monotonic() + TIMEOUT_S
    while (come := process.outcome(0.05)) is None:
        assert time.monotonic() < deadline_s
    return come


def outcome(process: SolverProcess, what: str, time_limit_s: float = 100.0) -> Solved | SolveFailure:
    process.begin(problem(what), time_limit_s)
    return outcome_of(process)


def found(process: SolverProcess, what: str) -> Solution | None:
    solved = outcome(process, what)
    assert isinstance(solved, Solved)
    assert solved.solve_s >= 0
    return solved.solution


def test_requests_are_answered_one_after_another(started):
    process = started(obedient)
    for what in ("one", "another"):
        assert found(process, what) == as_asked(problem(what), 1.0)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "ValueError: no room for this"),
        ("die", "the process that solved it ended with status 3"),
        ("hang", "it was broken off after 0.6 s"),
    ],
)
def test_failed_request_has_reason_and_next_works(started, fault, reason):
    process = started(obedient)
    failure = outcome(process, fault, time_limit_s=0.1)
    assert isinstance(failure, SolveFailure)
    assert failure.reason.startswith(reason)
    assert found(process, "another") == as_asked(problem("another"), 1.0)


def test_unfit_installation_blames_no_request(started):
    with pytest.raises(SolverUnfitError, match="ended with status 1 before it was ready"):
        outcome(started(unloadable), "one")


def test_process_that_never_loads_is_given_up(started, monkeypatch):
    monkeypatch.setattr(solving, "READY_S", 0.2)
    with pytest.raises(SolverUnfitError, match="not ready within"):
        outcome(started(hanging), "one")


def test_closing_ends_a_solve_at_once(started):
    process = started(obedient)
    process.begin(problem("hang"), 100.0)
    while not process.ready:
        process.outcome(0.05)
    before_s = time.monotonic()
    process.close()
    assert time.monotonic() - before_s < 5.0
    assert not [child for child in psutil.Process().children() if _is_solving(child)]


def _is_solving(process: psutil.Process) -> bool:
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
