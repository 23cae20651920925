"""Constants of a log of known ones, and a simulation that repeats the log."""

from collections.abc import Callable, Mapping
from statistics import median

import pytest

from bench.testbed import fleet
from bench.testbed.fleet import CELL, Size, cell_of
from bench.testbed.parts import TESTBEDS, compare_halves
from bench.testbed.results import results_of
from bench.testbed.tuning_times import TuningConstants
from bench.testbed.tuning_truth import ObservedTruth
from bench.testbed.worker_times import ObservedWorkers, WorkerSpeeds
from infra.simulation.elastic.virtual_workers import WorkerPauses
from infra.simulation.lora.slots import VirtualSlots
from infra.simulation.merging.truth import SyntheticTruth
from infra.simulation.merging.tuner import VirtualTuner
from infra.simulation.simulator import Simulation, Step
from infra.simulation.virtual_fleet import VirtualRunner
from schemas.elastic.commands import WorkersAssigned
from schemas.fleet import RunReport
from schemas.lora_commands import SlotAssigned
from schemas.merging.commands import TaskAssigned
from schemas.merging.workload import TuningWorkload

SIZE = Size(nodes=4, jobs=24)
START_S = 60.0

RUNNERS: Mapping[str, tuple[str, Callable[[], VirtualRunner]]] = {
    "auction": (SlotAssigned.RUNNER, lambda: VirtualSlots(CELL, 1.25)),
    "elastic": (
        WorkersAssigned.RUNNER,
        lambda: ObservedWorkers(CELL, WorkerSpeeds(), WorkerPauses(start_s=6.0, resize_s=3.0)),
    ),
    "merging": (
        TaskAssigned.RUNNER,
        lambda: VirtualTuner(CELL, 1.0, SyntheticTruth(step_one_s=2.0, cold_s=9.0, warm_s=1.0)),
    ),
}


def logged(testbed: fleet.Testbed, seed: int = 0, runner: VirtualRunner | None = None) -> list[Step]:
    """A log as of a deployment: of a simulation with constants of its own."""
    cell = cell_of(testbed, SIZE.nodes, epoch_s=0.0)
    name, make = RUNNERS[testbed.policy]
    jobs = testbed.jobs(cell, SIZE, seed, START_S)
    steps: list[Step] = []
    Simulation(cell, jobs, runners={name: runner or make()}, solve_s=0.5).pass_on(steps.append)
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
    assert constants["step_fixed_s"] + 4 * constants["sequence_s"] == pytest.approx(1.0, rel=0.1)
    assert constants["solve_s"] == pytest.approx(0.5)


def test_machine_that_becomes_slow_is_simulated() -> None:
    testbed = TESTBEDS["merging"]
    truth = SyntheticTruth(step_one_s=2.0, cold_s=9.0, warm_s=1.0)
    errors_pct = []
    for slowness in (1.5, 2.0, 2.5):
        slower = VirtualTuner(
            CELL,
            1.0,
            truth,
            slowness_at=lambda time_s, slow=slowness: 1.0 if time_s < START_S + 300 else slow,
        )
        found = compare_halves(testbed, logged(testbed, runner=slower))
        assert found.measured.mean_jct_s > 1.2 * results_of(logged(testbed)).mean_jct_s
        errors_pct.append(max(found.error_pct, found.queuing_error_pct))
    # One run proves little: a step that differs by some per cent can change a plan, and all that follows.
    assert median(errors_pct) < 5


def test_step_follows_most_sequences_of_a_gpu() -> None:
    constants = TuningConstants(0.1, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    cell = cell_of(TESTBEDS["merging"], SIZE.nodes, epoch_s=0.0)
    workload = TESTBEDS["merging"].jobs(cell, SIZE, 0, START_S)[0].event.workload
    assert isinstance(workload, TuningWorkload)
    truth = ObservedTruth(constants, {}, {})
    steps_s = [truth.step(workload, (1,) * gpus).step_s for gpus in (1, 2, 3, 4, 8)]
    assert steps_s == pytest.approx([4.1, 2.1, 2.1, 1.1, 1.1])


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
    without = [
        Step(step.time_s, steps[0].entry, step.decisions) if is_report_of(step, kept_aside) else step
        for step in steps
    ]
    assert testbed.calibrate(steps, known).constants == testbed.calibrate(without, known).constants


def is_report_of(step: Step, job_ids: list[str]) -> bool:
    event = step.entry.envelope.event
    return isinstance(event, RunReport) and event.job_id in job_ids


@pytest.mark.parametrize("policy", list(TESTBEDS))
def test_without_completed_jobs_nothing_is_calibrated(policy: str) -> None:
    testbed = TESTBEDS[policy]
    with pytest.raises(ValueError, match="nothing to calibrate by"):
        testbed.calibrate(logged(testbed), frozenset())
