"""Forecasts of a zone for jobs alone, queried and simulated."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.merging.estimates import JobForecast, QueriedZone
from bench.merging.measured import Profiles, WorkloadJob, read_profiles, read_workload
from bench.merging.measured_truth import GpuCluster, MeasuredTruth, PlacementStepTimes, Switching
from bench.merging.simulated import CELL, configuration, submissions
from infra.simulation.merging.tuner import VirtualTuner
from infra.simulation.simulator import Simulation, Step
from schemas.merging.commands import TaskAssigned
from schemas.merging.outcomes import JobForetold
from schemas.merging.settings import MergingPolicy
from tests.support.profiles import FILES, write_profiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write curves: red has 50, 70, 80 % after its epochs, blue 60, 80 %; an epoch of either has 13 steps."""
    write_profiles(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name.replace("X1", "V100")).write_text(text)
    return tmp_path


def read(folder: Path) -> tuple[Profiles, WorkloadJob, WorkloadJob]:
    red, blue = read_workload(folder / "workload.csv")
    return read_profiles(folder, "tiny"), red, blue


def zone_of(folder: Path) -> tuple[QueriedZone, WorkloadJob, WorkloadJob]:
    profiles, red, blue = read(folder)
    return QueriedZone(profiles, [red, blue]), red, blue


def test_without_ended_jobs_the_limit_is_forecast(folder: Path):
    zone, red, _ = zone_of(folder)
    assert zone.forecast(red, []) == JobForecast(10.0, 0.5)


def test_target_met_in_the_first_epoch(folder: Path):
    zone, red, blue = zone_of(folder)
    assert zone.forecast(replace(red, target=0.5), [blue]) == JobForecast(1.0, 0.5)


def test_epoch_longer_than_a_profile_run(folder: Path):
    longest = 8 * MergingPolicy().profile_iterations
    (folder / "samples.csv").write_text(f"task,samples\nred,{longest}\nblue,200\n")
    zone, red, blue = zone_of(folder)
    assert zone.forecast(replace(red, target=0.5), [blue]) == JobForecast(1.0, 0.5)
    (folder / "samples.csv").write_text(f"task,samples\nred,{longest + 1}\nblue,200\n")
    zone, red, blue = zone_of(folder)
    assert zone.forecast(replace(red, target=0.5), [blue]) == JobForecast(pytest.approx(2.0, abs=0.02), None)


def test_ended_jobs_of_the_same_kind_come_first(folder: Path):
    zone, red, blue = zone_of(folder)
    assert zone.forecast(red, [blue]).epochs == pytest.approx(2.0, abs=0.05)
    assert zone.forecast(red, [blue, red]).epochs == 3.0


def test_simulated_zone_has_the_same_forecasts(folder: Path):
    profiles, red, blue = read(folder)
    short = replace(red, name="short", target=0.5, submitted_s=20_000.0)
    jobs = [blue, replace(red, submitted_s=10_000.0), short]
    truth = MeasuredTruth(profiles, jobs, PlacementStepTimes(profiles, GpuCluster(1, 4)), Switching(0.0, 0.0))
    forecasts: dict[str, int] = {}

    def fold(step: Step):
        for decision in step.decisions:
            if isinstance(decision.outcome, JobForetold) and decision.outcome.reason == "estimated":
                forecasts[decision.outcome.job_id] = decision.outcome.iterations

    Simulation(
        configuration(profiles, GpuCluster(1, 4), MergingPolicy()),
        submissions(jobs, profiles),
        runners={TaskAssigned.RUNNER: VirtualTuner(CELL, 1.0, truth)},
    ).pass_on(fold)
    zone = QueriedZone(profiles, jobs)
    assert forecasts == {
        "j0": round(13 * zone.forecast(blue, []).epochs),
        "j1": round(13 * zone.forecast(red, [blue]).epochs),
        "j2": 13,
    }
    assert zone.forecast(short, [blue, red]).epochs == 1.0
