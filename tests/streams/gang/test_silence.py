"""Silent runs, refused runs and the names of runs of gangs."""

import random
from typing import Any

import pytest

from schemas.fleet import RunFailed, RunProgressed, RunReport, RunStarted
from streams.policies.gang.generation import generation_of
from tests.streams.gang.test_model import PROGRESSED, TIMEOUT_S, CountedGang, History, PlainGangs

QUIET_S = 10 * TIMEOUT_S


class QuietGangs(PlainGangs):
    """Gangs that are quiet after their start."""

    def _quiet_after_start_s(self, job: CountedGang) -> float:
        return QUIET_S


@pytest.fixture
def history() -> History:
    """Return a job with a generation on node a."""
    history = History(random.Random(0), CountedGang, QuietGangs)
    history.job.generation, history.job.members, history.job.leader = 1, {"a": 1}, "a"
    history.job.mark_seen(0.0)
    return history


def report(of: type[RunReport], **fields: Any) -> Any:
    return of(cell="c", node="a", run_id="1/j", job_id="j", samples_done=0, **fields)


def pass_s(history: History, duration_s: float) -> None:
    """Let time pass, and give silent runs up."""
    step_s = TIMEOUT_S / 10
    for _ in range(int(duration_s / step_s)):
        history.time_s += step_s
        if history.orders.advance(history.time_s):
            history.gangs.give_up_silent()


def test_refused_run_backs_off(history: History) -> None:
    failed = report(RunFailed, error="no room", permanent=False)
    history.gangs.refuse(history.job, failed)
    assert history.job.retry_s > history.orders.elapsed_s


def test_failed_run_is_resumed_at_once(history: History) -> None:
    history.gangs.report(history.job, report(RunFailed, error="boom", permanent=False))
    assert history.job.retry_s <= history.orders.elapsed_s


def test_silent_run_backs_off(history: History) -> None:
    pass_s(history, 2 * TIMEOUT_S)
    assert not history.job.members
    assert history.job.retry_s > TIMEOUT_S


@pytest.mark.parametrize("reports", [[], [RunReport]])
def test_expected_silence_after_start(history: History, reports: list[type[RunReport]]) -> None:
    for of in [RunStarted, *reports]:
        history.gangs.report(history.job, report(of))
    pass_s(history, 3 * TIMEOUT_S)
    assert history.job.members
    history.gangs.report(history.job, report(RunProgressed, **PROGRESSED))
    pass_s(history, 3 * TIMEOUT_S)
    assert not history.job.members


@pytest.mark.parametrize(
    ("run_id", "generation"),
    [("12/j", 12), ("0/j", 0), ("x/j", None), ("/j", None), ("٣/j", None), (16 * "1" + "/j", None)],
)
def test_generation_of_run(run_id: str, generation: int | None) -> None:
    assert generation_of(run_id) == generation
