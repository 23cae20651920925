"""Silent runs, refused runs and the names of runs of gangs."""

import random
from typing import Any

import pytest

from schemas.fleet import RunFailed, RunProgressed, RunReport, RunStarted
from streams.policies.gang.generation import generation_of
from streams.policies.policy import ZoneContext
from tests.streams.gang.policies import PROGRESSED, TIMEOUT_S, CountedGang, Plain, PlainGangs

QUIET_S = 10 * TIMEOUT_S


class QuietGangs(PlainGangs):
    """Gangs that are quiet after their start."""

    def _quiet_after_start_s(self, job: CountedGang) -> float:
        return QUIET_S


class Quiet(Plain):
    """A policy of quiet gangs, with a job that has a generation on node s0."""

    def __init__(self) -> None:
        super().__init__()
        self.time_s = 0.0
        self.job: Any = self.submit(random.Random(0), "j")
        self.gangs.begin(self.job, ["s0"])

    def gangs_of(self, context: ZoneContext) -> QuietGangs:
        return QuietGangs(context)

    def pass_s(self, duration_s: float) -> None:
        """Let time pass, and give silent runs up."""
        step_s = TIMEOUT_S / 10
        for _ in range(int(duration_s / step_s)):
            self.time_s += step_s
            self.tick(self.time_s)


@pytest.fixture
def quiet() -> Quiet:
    return Quiet()


def report(of: type[RunReport], **fields: Any) -> Any:
    return of(cell="c", node="s0", run_id="1/j", job_id="j", samples_done=0, **fields)


def test_refused_run_backs_off(quiet: Quiet) -> None:
    failed = report(RunFailed, error="no room", permanent=False)
    quiet.gangs.refuse(quiet.job, failed)
    assert quiet.job.retry_s > quiet.gangs.orders.elapsed_s


def test_failed_run_is_resumed_at_once(quiet: Quiet) -> None:
    quiet.gangs.report(quiet.job, report(RunFailed, error="boom", permanent=False))
    assert quiet.job.retry_s <= quiet.gangs.orders.elapsed_s


def test_silent_run_backs_off(quiet: Quiet) -> None:
    quiet.pass_s(2 * TIMEOUT_S)
    assert not quiet.job.members
    assert quiet.job.retry_s > TIMEOUT_S


@pytest.mark.parametrize("reports", [[], [RunReport]])
def test_expected_silence_after_start(quiet: Quiet, reports: list[type[RunReport]]) -> None:
    for of in [RunStarted, *reports]:
        quiet.gangs.report(quiet.job, report(of))
    quiet.pass_s(3 * TIMEOUT_S)
    assert quiet.job.members
    quiet.gangs.report(quiet.job, report(RunProgressed, **PROGRESSED))
    quiet.pass_s(3 * TIMEOUT_S)
    assert not quiet.job.members


@pytest.mark.parametrize(
    ("run_id", "generation"),
    [("12/j", 12), ("0/j", 0), ("x/j", None), ("/j", None), ("٣/j", None), (16 * "1" + "/j", None)],
)
def test_generation_of_run(run_id: str, generation: int | None) -> None:
    assert generation_of(run_id) == generation
