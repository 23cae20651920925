"""The suite `elastic`: elastic scheduling, loans and their rivals. Parts that must run alone come first."""

import gc
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.elastic.forecast_skill import has_series
from bench.elastic.simulated import OUTCOME, ElasticRunOutcome, ElasticSetting, ElasticTrial, simulate
from bench.elastic.table_3_5 import BASIC_21, LABELS, check_comparable, table_3_5, trials_by_row
from bench.figures import Conditions, Measurement, Result, Table, slope
from bench.runs import Experiment
from bench.suite import Suite, SuitePart, SuiteRun, by_conditions, by_size
from infra.workloads.elastic.jobs import SCALING_RANGE

_BUSY_DAY = 4.0
"""A Monday."""
_QUICK_ROWS = (1, 2, 6, 7, 8, 9, 12, 13, 14, BASIC_21)


@dataclass(frozen=True)
class ElasticScope:
    """The settings and runs of each part.

    Attributes:
        setting: setting of all comparisons.
        timed: setting of the run whose time and memory are measured.
        growth: settings of growing length.
        rows: rows of Table 3.5.
    """

    setting: ElasticSetting
    timed: ElasticSetting
    growth: tuple[ElasticSetting, ...]
    rows: tuple[int, ...]


def scope_of(conditions: Conditions) -> ElasticScope:
    """Return the full form, fifteen days on the thesis' clusters, or the quick form.

    Quick form: one busy day, quarter-size clusters; the timed run uses full size."""
    if not conditions.quick:
        whole = ElasticSetting(conditions.seed)
        growth = tuple(replace(whole, days=days) for days in (2.0, 4.0, 8.0, 15.0))
        return ElasticScope(whole, whole, growth, tuple(LABELS))
    day = ElasticSetting(conditions.seed, first_day=_BUSY_DAY, days=1.0)
    quarter = replace(day, factor=0.25)
    growth = tuple(replace(quarter, first_day=0.0, days=days) for days in (1.0, 2.0))
    return ElasticScope(quarter, day, growth, _QUICK_ROWS)


_WARM_UP = ElasticSetting(factor=0.02, first_day=_BUSY_DAY, days=0.05)


def _warm_up() -> None:
    for trial in (ElasticTrial(_WARM_UP), ElasticTrial(_WARM_UP, "pollux", scaling="tuned", loans=False)):
        simulate(trial)


def _run(trial: ElasticTrial) -> ElasticRunOutcome:
    # As in `Simulation.pass_on`: jobs grow throughout the run and hold no cycles.
    gc.disable()
    try:
        return simulate(trial)
    finally:
        gc.enable()
        gc.collect()


SIMULATED = Experiment[ElasticTrial, ElasticRunOutcome](
    _run,
    OUTCOME,
    (
        "schemas",
        "solvers",
        "streams",
        "infra/figures",
        "infra/simulation",
        "infra/text.py",
        "infra/workloads",
        "infra/lender",
        "infra/log",
        "infra/views",
        "bench/elastic/goodput.py",
        "bench/elastic/simulated.py",
        # Versions of all libraries.
        "requirements.lock",
    ),
    _warm_up,
    own_process=True,
)

ElasticBench = SuiteRun[ElasticScope, ElasticTrial, ElasticRunOutcome]


def _fifteen_days(bench: ElasticBench) -> Result:
    """Measure the time and the memory of a simulation, and the growth of the time with the jobs."""
    timed = ElasticTrial(bench.scope.timed, alone=True)
    growing = [ElasticTrial(setting, alone=True) for setting in bench.scope.growth]
    runs = bench.run([timed, *growing])
    whole, growth = runs.of(timed), [runs.of(trial) for trial in growing]
    note = (
        f"simulation of {whole['jobs']:,.0f} jobs, {whole['events']:,.0f} events, Basic with loans, "
        f"workload drawn, until the last job is over: {bench.scope.timed}"
    )
    jobs = [outcome["jobs"] for outcome in growth]
    return Result(
        (
            Measurement("fifteen_days_s", whole["cpu_s"], f"CPU time on one core; {note}"),
            Measurement("fifteen_days_rss_mb", whole["rss_mb"], f"peak of the process; {note}"),
            Measurement(
                "fifteen_days_growth_exponent",
                slope(jobs, [outcome["cpu_s"] for outcome in growth]),
                f"slope of log CPU time over log jobs of simulations of {jobs[0]:,.0f} to {jobs[-1]:,.0f} "
                f"jobs on {bench.scope.growth[0].cluster.training_gpus:,} training GPUs",
                len(growth),
            ),
        ),
        (
            Table(
                "growth",
                [
                    {"days": trial.setting.days}
                    | {column: outcome[column] for column in ("jobs", "events", "cpu_s", "rss_mb")}
                    for trial, outcome in zip(growing, growth, strict=True)
                ],
            ),
        ),
    )


def _schemes(bench: ElasticBench) -> Result:
    """Measure Table 3.5, and the gains over the baseline and Pollux."""
    setting = bench.scope.setting
    trials = {number: trials_by_row(setting)[number] for number in bench.scope.rows}
    runs = bench.run(list(trials.values()))
    by_row = {number: runs.of(trial) for number, trial in trials.items()}
    check_comparable(*by_row.values())
    fifo, lyra, pollux, without_loans = (by_row[row] for row in (1, 2, 12, 13))
    return Result(
        (
            _gain(setting, "queue_vs_fifo", fifo, lyra, "queue"),
            _gain(setting, "jct_vs_fifo", fifo, lyra, "jct", _bound(setting, fifo)),
            _gain(setting, "jct_vs_pollux", pollux, lyra, "jct", _without_loans(by_row)),
            _gain(setting, "jct_vs_no_loans", without_loans, lyra, "jct"),
        ),
        (table_3_5(by_row),),
    )


def _gain(
    setting: ElasticSetting,
    name: str,
    over: ElasticRunOutcome,
    ours: ElasticRunOutcome,
    kind: str,
    more: str = "",
) -> Measurement:
    check_comparable(over, ours)
    ratios = {
        which: over[f"{kind}_{which}_s"] / ours[f"{kind}_{which}_s"] for which in ("mean", "p50", "p95")
    }
    note = (
        f"means over all jobs, {over[f'{kind}_mean_s']:,.0f} s against {ours[f'{kind}_mean_s']:,.0f} s; "
        f"median {ratios['p50']:.3g}, 95th percentile {ratios['p95']:.3g}{more}; one simulated trace, "
        f"Basic with loans: {setting}"
    )
    return Measurement(name, ratios["mean"], note)


def _bound(setting: ElasticSetting, fifo: ElasticRunOutcome) -> str:
    """Return an upper bound on the gain of all schedules: every job at once, with its most workers."""
    requests = setting.requests()
    least_s = math.fsum(
        request.duration_s / (SCALING_RANGE if request.scalable else 1) for request in requests
    )
    bound = fifo["jct_mean_s"] / (least_s / len(requests))
    return f"; no schedule is above {bound:.3g}, where no job waits and elastic ones have all workers"


def _without_loans(by_row: Mapping[int, ElasticRunOutcome]) -> str:
    lyra, tuned = (by_row[12]["jct_mean_s"] / by_row[row]["jct_mean_s"] for row in (13, 14))
    return f". Without loans, as Pollux: {lyra:.3g}. With tuned jobs: {tuned:.3g}"


SUITE: Suite[ElasticScope, ElasticTrial, ElasticRunOutcome] = Suite(
    parts=(
        SuitePart("allocation", by_size("bench.elastic.algorithms:measure_allocation")),
        SuitePart("reclaiming", by_size("bench.elastic.algorithms:measure_reclaiming")),
        SuitePart("claims", by_size("bench.elastic.claims:measure_claims")),
        SuitePart("knowledge", by_size("bench.elastic.knowledge:measure_knowledge")),
        SuitePart("mixed", by_size("bench.elastic.mixed:measure_mixed")),
        SuitePart("fifteen days", _fifteen_days),
        SuitePart("schemes", _schemes),
        SuitePart("forecasts", by_conditions("bench.elastic.forecast_skill:measure_forecasts"), has_series),
    ),
    scope=scope_of,
    experiment=SIMULATED,
)
