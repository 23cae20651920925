"""The suite `testbed`: mean completion time, queuing and welfare of deployments next to their simulations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from bench.figures import Conditions, Measurement, Result, Table
from bench.suite import Suite, SuitePart, by_conditions
from bench.testbed.auction import AuctionTestbed
from bench.testbed.deployed import deployed
from bench.testbed.elastic import ElasticTestbed
from bench.testbed.fleet import SEQUENCE_S, Size, Testbed
from bench.testbed.merging import MergingTestbed
from bench.testbed.results import JobTimes, Results, read_steps, results_of, simulate
from infra.simulation.simulator import Step

TESTBEDS: dict[str, Testbed] = {
    each.policy: each for each in (AuctionTestbed(), ElasticTestbed(), MergingTestbed())
}
_SIZES = {"auction": Size(8, 64), "elastic": Size(8, 40), "merging": Size(8, 40)}
_QUICK = Size(4, 8, length=0.3)


@dataclass(frozen=True)
class SimulatorComparison:
    """Jobs that were completed by a deployment and by its simulations.

    Attributes:
        constants: measured constants of each simulation, by name.
    """

    measured: Results
    simulated: Results
    constants: tuple[Mapping[str, float], ...]

    @property
    def error_pct(self) -> float:
        """Difference of the mean completion times, over the measured one."""
        measured_s, simulated_s = self.measured.mean_jct_s, self.simulated.mean_jct_s
        return 100 * abs(simulated_s - measured_s) / measured_s

    @property
    def queuing_error_pct(self) -> float:
        """Difference of the mean queuing times, over the measured mean completion time, of which they are a
        part: queuing may be next to nothing."""
        difference_s = self.simulated.mean_queuing_s - self.measured.mean_queuing_s
        return 100 * abs(difference_s) / self.measured.mean_jct_s

    @property
    def welfare_error_pct(self) -> float:
        """Difference of the realised welfare, over the measured one."""
        measured, simulated = self.measured.welfare_micros, self.simulated.welfare_micros
        return 100 * abs(simulated - measured) / max(abs(measured), 1)

    @property
    def job_error_pct(self) -> float:
        """Median over the jobs of the difference of their completion times, over the measured one."""
        return median(
            100 * abs(self.simulated.jobs[job_id].jct_s - job.jct_s) / job.jct_s
            for job_id, job in self.measured.jobs.items()
        )


def measure_auction(conditions: Conditions) -> Result:
    """Measure `simulator_error_auction_pct`, `simulator_queuing_error_auction_pct` and
    `simulator_welfare_error_pct`, see `measure`."""
    return measure("auction", conditions)


def measure_elastic(conditions: Conditions) -> Result:
    """Measure `simulator_error_elastic_pct`, `simulator_queuing_error_elastic_pct` and
    `trained_running_time_error_pct`, see `measure`."""
    return measure("elastic", conditions)


def measure_merging(conditions: Conditions) -> Result:
    """Measure `simulator_error_merging_pct` and `simulator_queuing_error_merging_pct`, see `measure`."""
    return measure("merging", conditions)


def measure(policy: str, conditions: Conditions) -> Result:
    """Deploy the jobs of a seed, simulate them, and compare, see `compare_halves`."""
    testbed, size = TESTBEDS[policy], _QUICK if conditions.quick else _SIZES[policy]
    steps = read_steps(deployed(testbed, size, conditions.seed, conditions.folder / "logs"))
    return _result(policy, size, conditions.seed, compare_halves(testbed, steps))


def compare_halves(testbed: Testbed, steps: Sequence[Step]) -> SimulatorComparison:
    """Compare the jobs of a log with two simulations of all of it, each calibrated by every other completed
    job. Of each simulation, the jobs count that its constants do not rest on.

    Both halves were on the machine at the same time, so a machine that is busy now and then does not differ
    between them, as it would between runs.

    Raises:
        ValueError: too few jobs were completed.
        RuntimeError: some jobs of a simulation are never over.
    """
    measured = results_of(steps)
    completed = sorted(measured.jobs)
    jobs: dict[str, JobTimes] = {}
    welfare_micros, constants = [], []
    for known, others in ((completed[::2], completed[1::2]), (completed[1::2], completed[::2])):
        calibrated = testbed.calibrate(steps, frozenset(known))
        simulated = results_of(simulate(steps, calibrated))
        jobs |= simulated.among(others).jobs
        welfare_micros.append(simulated.welfare_micros)
        constants.append(calibrated.constants)
    mean_welfare_micros = round(fmean(welfare_micros))
    return SimulatorComparison(measured.among(jobs), Results(jobs, mean_welfare_micros), tuple(constants))


def _result(policy: str, size: Size, seed: int, found: SimulatorComparison) -> Result:
    rows = [
        _row("measured", found.measured, None),
        _row("simulated", found.simulated, found.job_error_pct),
    ]
    constants = ", ".join(
        f"{name} {' and '.join(f'{each[name]:.3g}' for each in found.constants)}"
        for name in found.constants[0]
    )
    note = (
        f"mean completion time of {len(found.measured.jobs)} jobs, {found.simulated.mean_jct_s:.1f} s "
        f"simulated and {found.measured.mean_jct_s:.1f} s measured; real training on {size.nodes} executors "
        f"of one machine, throttled to {SEQUENCE_S:g} s a sequence; {size.jobs} submitted, seed {seed}; "
        f"{constants}"
    )
    values = {
        f"simulator_error_{policy}_pct": found.error_pct,
        f"simulator_queuing_error_{policy}_pct": found.queuing_error_pct,
    }
    if policy == AuctionTestbed.policy:
        values["simulator_welfare_error_pct"] = found.welfare_error_pct
    if policy == ElasticTestbed.policy:
        values["trained_running_time_error_pct"] = found.measured.running_time_error_pct
    jobs = len(found.measured.jobs)
    return Result(
        tuple(Measurement(name, value, note, jobs) for name, value in values.items()),
        (Table(policy, rows),),
    )


def _row(name: str, results: Results, job_error_pct: float | None) -> dict[str, float | str | None]:
    return {
        "run": name,
        "jobs": len(results.jobs),
        "jct_mean_s": results.mean_jct_s,
        "jct_p95_s": results.p95_jct_s,
        "queuing_mean_s": results.mean_queuing_s,
        "welfare": results.welfare_micros / 1e6,
        "payments": results.payments_micros / 1e6,
        "running_time_error_pct": results.running_time_error_pct,
        "job_error_median_pct": job_error_pct,
    }


def _part(policy: str) -> SuitePart[None, Any, Any]:
    return SuitePart(policy, by_conditions(f"bench.testbed.parts:measure_{policy}"))


SUITE: Suite[None, Any, Any] = Suite(parts=tuple(map(_part, TESTBEDS)), scope=lambda _: None)
