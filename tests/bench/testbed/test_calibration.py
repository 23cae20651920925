"""Constants of a log of known ones, and a simulation that repeats the log."""

from collections.abc import Callable, Mapping

import pytest

from bench.testbed import fleet
from bench.testbed.fleet import CELL, Size, cell_of
from bench.testbed.parts import TESTBEDS, compare_halves
from bench.testbed.results import results_of
from infra.simulation.elastic.workers import VirtualWorkers, WorkerPauses
from infra.simulation.lora.slots import VirtualSlots
from infra.simulation.merging.truth import SyntheticTruth
from infra.simulation.merging.tuner import VirtualTuner
from infra.simulation.simulator import Simulation, Step
from infra.simulation.virtual_fleet import VirtualRunner
from schemas.elastic.commands import WorkersAssigned
from schemas.fleet import RunReport
from schemas.lora_commands import SlotAssigned
from schemas.merging.commands import TaskAssigned

SIZE = Size(nodes=4, jobs=24)
START_S = 60.0

RUNNERS: Mapping[str, tuple[str, Callable[[], VirtualRunner]]] = {
    "auction": (SlotAssigned.RUNNER, lambda: VirtualSlots(CELL, 1.25)),
    "elastic": (
        WorkersAssigned.RUNNER,
        lambda: VirtualWorkers(CELL, 1.0, WorkerPauses(start_s=6.0, resize_s=3.0)),
    ),
    "merging": (
        TaskAssigned.RUNNER,
        lambda: VirtualTuner(CELL, 1.0, SyntheticTruth(step_one_s=2.0, cold_s=9.0, warm_s=1.0)),
    ),
}


def logged(testbed: fleet.Testbed, seed: int = 0) -> list[Step]:
    """A log as of a deployment: of a simulation with constants of its own."""
    cell = cell_of(testbed, SIZE.nodes, epoch_s=0.0)
    name, make = RUNNERS[testbed.policy]
    jobs = testbed.jobs(cell, SIZE, seed, START_S)
    steps: list[Step] = []
    Simulation(cell, jobs, runners={name: make()}, solve_s=0.5).pass_on(steps.append)
    return steps


def calibrated(steps: list[Step], testbed: fleet.Testbed) -> Mapping[str, float]:
    return testbed.calibrate(steps, frozenset(results_of(steps).jobs)).constants


def test_auction_pace_is_that_of_its_runs() -> None:
    testbed = TESTBEDS["auction"]
    assert calibrated(logged(testbed), testbed)["pace"] == pytest.approx(1.25, rel=0.02)


def test_elastic_pauses_are_found_by_durations() -> None:
    testbed = TESTBEDS["elastic"]
    constants = calibrated(logged(testbed), testbed)
    assert constants["start_s"] == pytest.approx(6.0, abs=0.2)
    assert constants["resize_s"] == pytest.approx(3.0, abs=0.5)


def test_tuning_times_are_those_of_tasks() -> None:
    testbed = TESTBEDS["merging"]
    constants = calibrated(logged(testbed), testbed)
    assert constants["step_fixed_s"] + constants["step_shared_s"] == pytest.approx(1.0, rel=0.1)
    assert constants["solve_s"] == pytest.approx(0.5)


@pytest.mark.parametrize("policy", list(TESTBEDS))
def test_calibrated_simulations_repeat_the_log(policy: str) -> None:
    steps = logged(TESTBEDS[policy])
    found = compare_halves(TESTBEDS[policy], steps)
    assert found.measured == results_of(steps), "each job counts once"
    assert found.simulated.jobs.keys() == found.measured.jobs.keys()
    assert len(found.constants) == 2
    assert found.error_pct < 10
    assert found.simulated.payments_micros == found.measured.payments_micros


@pytest.mark.parametrize("policy", list(TESTBEDS))
def test_calibration_ignores_other_jobs(policy: str) -> None:
    testbed = TESTBEDS[policy]
    steps = logged(testbed)
    kept_aside = sorted(results_of(steps).jobs)[1::2]
    known = frozenset(results_of(steps).jobs) - set(kept_aside)
    without = [step for step in steps if not is_report_of(step, kept_aside)]
    assert testbed.calibrate(steps, known).constants == testbed.calibrate(without, known).constants


def is_report_of(step: Step, job_ids: list[str]) -> bool:
    event = step.entry.envelope.event
    return isinstance(event, RunReport) and event.job_id in job_ids


@pytest.mark.parametrize("policy", list(TESTBEDS))
def test_without_completed_jobs_nothing_is_calibrated(policy: str) -> None:
    testbed = TESTBEDS[policy]
    with pytest.raises(ValueError, match="nothing to calibrate by"):
        testbed.calibrate(logged(testbed), frozenset())
