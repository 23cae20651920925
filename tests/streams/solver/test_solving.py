"""A solve in a process of its own: answered, failed, dead or broken off, there is an outcome in the end."""

import os
import time
from collections.abc import Callable

import psutil
import pytest

from schemas.solves import SolveFinished, SolveRequested
from streams.solver import solving
from streams.solver.solving import Solve, SolveFailure, SolverProcess, SolverUnfitError
from tests.support.cells import solved

PATIENCE_S = 60.0
OVERRUN_S = 0.5


def request(request_id: str, time_limit_s: float = 100.0) -> SolveRequested:
    return SolveRequested(
        zone="z",
        request_id=request_id,
        reason="batch_due",
        time_limit_s=time_limit_s,
        relative_gap=0.01,
        first_slot=1,
        classes=(),
        bids=(),
    )


def as_asked(cell: str, asked: SolveRequested) -> SolveFinished:
    """Does what the request's id says."""
    match asked.request_id:
        case "raise":
            raise ValueError("no room for\nthis")
        case "die":
            os._exit(3)
        case "hang":
            time.sleep(1_000)
    return solved(asked)


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


def outcome_of(process: SolverProcess) -> SolveFinished | SolveFailure:
    deadline_s = time.monotonic() + PATIENCE_S
    while (outcome := process.outcome(0.05)) is None:
        assert time.monotonic() < deadline_s
    return outcome


def answered(process: SolverProcess, asked: SolveRequested) -> SolveFinished | SolveFailure:
    process.begin("c", asked)
    return outcome_of(process)


def test_requests_are_answered_one_after_another(started):
    process = started(obedient)
    for asked in (request("batch-1"), request("batch-2")):
        assert answered(process, asked) == solved(asked)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "ValueError: no room for this"),
        ("die", "the process that solved it ended with status 3"),
        ("hang", "it was broken off after 0.6 s"),
    ],
)
def test_a_request_without_answer_has_a_reason_and_the_next_one_its_answer(started, fault, reason):
    process = started(obedient)
    failure = answered(process, request(fault, time_limit_s=0.1))
    assert isinstance(failure, SolveFailure)
    assert failure.reason.startswith(reason)
    assert answered(process, request("batch-2")) == solved(request("batch-2"))


def test_where_nothing_can_be_solved_no_request_is_to_blame(started):
    with pytest.raises(SolverUnfitError, match="ended with status 1 before it was ready"):
        answered(started(unloadable), request("batch-1"))


def test_a_process_that_never_gets_ready_is_not_waited_for(started, monkeypatch):
    monkeypatch.setattr(solving, "READY_S", 0.2)
    with pytest.raises(SolverUnfitError, match="not ready within"):
        answered(started(hanging), request("batch-1"))


def test_closing_ends_a_solve_at_once(started):
    process = started(obedient)
    process.begin("c", request("hang"))
    while not process.ready:
        process.outcome(0.05)
    before_s = time.monotonic()
    process.close()
    assert time.monotonic() - before_s < 5.0
    assert not [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]
