"""The parts of `millrace bench elastic`: what each runs, and the figures that come of the results."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from bench.auction.comparison import slope
from bench.charts import Bars, Lines
from bench.cores import jobs_at_once
from bench.elastic import thesis
from bench.elastic.algorithms import measure_allocation, measure_reclaiming
from bench.elastic.runs import Outcomes, run_missing
from bench.elastic.scaling import measure_scaling
from bench.elastic.scope import (
    LABELS,
    WAYS,
    Scope,
    baseline,
    full,
    quick,
    scaling_trial,
)
from bench.elastic.simulated import Outcome
from bench.elastic.tables import (
    Line,
    comparable,
    on_loaned_servers,
    reclaiming,
    reductions,
    side_by_side,
)
from bench.elastic.trial import Trial
from bench.figures import Conditions, Measurement, Part, Result, Table
from infra.workloads.elastic.jobs import SCALING_RANGE
from schemas.elastic.settings import Scenario

_WRONG = "wrong_predictions_pct"
_ELASTIC = "elastic_jobs_pct"


def elastic_parts(conditions: Conditions) -> Iterator[tuple[str, Part]]:
    """The parts by name. What must run alone comes first."""
    scope = quick(conditions.seed) if conditions.quick else full(conditions.seed)
    yield from ElasticBench(conditions, scope).parts()


class ElasticBench:
    """The benchmark of one scope, whose parts share their simulated runs."""

    def __init__(self, conditions: Conditions, scope: Scope) -> None:
        self._conditions = conditions
        self._scope = scope
        self._jobs = jobs_at_once(conditions.jobs, conditions.console)
        self._outcomes: Outcomes | None = None

    def parts(self) -> Iterator[tuple[str, Part]]:
        """By name."""
        measured = (self._conditions.quick, self._conditions.seed)
        yield "allocation", partial(measure_allocation, *measured)
        yield "reclaiming", partial(measure_reclaiming, *measured)
        yield "scaling", partial(measure_scaling, *measured)
        yield "fifteen days", self._fifteen_days
        yield "schemes", self._schemes
        yield "loaning", self._loaning
        yield "scheduling", self._scheduling

    def _fifteen_days(self) -> Result:
        """Time, memory, and how the time grows with the jobs."""
        scope = self._scope
        timed = Trial(scope.timed, alone=True)
        growing = [Trial(setting, alone=True) for setting in scope.growth]
        outcomes = self._run([timed, *growing])
        whole = outcomes.of(timed)
        rows = []
        for trial in growing:
            outcome = outcomes.of(trial)
            per_job_ms = 1_000 * outcome["cpu_s"] / outcome["jobs"]
            rows.append(
                (
                    "basic",
                    outcome["jobs"],
                    trial.setting.days,
                    outcome["events"],
                    outcome["cpu_s"],
                    per_job_ms,
                    outcome["rss_mb"],
                )
            )
        exponent = slope([row[1] for row in rows], [row[4] for row in rows])
        note = (
            f"simulation of {whole['jobs']:,.0f} jobs, {whole['events']:,.0f} events, Basic with loans, "
            f"workload drawn, until the last job is over: {scope.timed}"
        )
        columns = ("scenario", "jobs", "days", "events", "cpu_s", "cpu_ms_per_job", "rss_mb")
        chart = Lines("scenario", "jobs", ("cpu_s",), "CPU time, s", "jobs")
        return Result(
            (
                Measurement("fifteen_days_s", whole["cpu_s"], f"CPU time on one core; {note}"),
                Measurement("fifteen_days_rss_mb", whole["rss_mb"], f"peak of the process; {note}"),
                Measurement(
                    "fifteen_days_growth_exponent",
                    exponent,
                    f"slope of log CPU time over log jobs, {rows[0][1]:,.0f} to {rows[-1][1]:,.0f} jobs on "
                    f"{scope.growth[0].cluster.training_gpus:,} training GPUs",
                    len(rows),
                ),
            ),
            (Table("growth", columns, rows, chart),),
        )

    def _schemes(self) -> Result:
        """Tables 3.5, 3.6 and 3.8, and the gains over the baseline and Pollux."""
        scope = self._scope
        rows = {number: scope.row(number) for number in scope.rows}
        ungrouped = {
            scenario: Trial(scope.setting, scenario=scenario, groups_elastic_jobs=False)
            for scenario in scope.ungrouped
        }
        lent_to_all = Trial(scope.setting, lends_to_all=True)
        untuned = {
            scheme: Trial(scope.setting, scheme=scheme, loans=False) for scheme in scope.untuned_schemes
        }
        others = [*ungrouped.values(), lent_to_all, *untuned.values()]
        outcomes = self._run([*rows.values(), *others])
        by_row = {number: outcomes.of(trial) for number, trial in rows.items()}
        comparable(*by_row.values(), *(outcomes.of(trial) for trial in others))
        fifo, lyra, pollux, without_loans = (by_row[row] for row in (1, 2, 12, 13))
        return Result(
            (
                self._gain("queue_vs_fifo", fifo, lyra, "queue"),
                self._gain("jct_vs_fifo", fifo, lyra, "jct", self._bound(fifo)),
                self._gain("jct_vs_pollux", pollux, lyra, "jct", self._without_loans(by_row)),
                self._gain("jct_vs_no_loans", without_loans, lyra, "jct"),
            ),
            (
                side_by_side(
                    "table_3_5",
                    [Line(LABELS[row], by_row[row].values, thesis.TABLE_3_5[row]) for row in by_row],
                    (*thesis.METRICS, "unfinished"),
                    "jct_mean_s",
                    "mean JCT, s",
                ),
                self._table_3_6(outcomes, ungrouped, fifo),
                _compared(
                    "placement_on_loans",
                    {
                        "no loans": without_loans,
                        "loans": lyra,
                        "loans, any work at risk": outcomes.of(lent_to_all),
                    },
                ),
                _compared(
                    "tuning",
                    {
                        **{scheme: outcomes.of(trial) for scheme, trial in untuned.items()},
                        "pollux, tuned jobs": pollux,
                        "lyra, tuned jobs": by_row[14],
                    },
                ),
                side_by_side(
                    "table_3_8",
                    [
                        Line(LABELS[row], by_row[row].values, thesis.TABLE_3_8[row])
                        for row in by_row
                        if row in thesis.TABLE_3_8
                    ],
                    thesis.QUANTILES,
                    "jct_p95_s",
                    "95th percentile of JCT, s",
                ),
            ),
        )

    def _gain(self, name: str, over: Outcome, ours: Outcome, kind: str, more: str = "") -> Measurement:
        comparable(over, ours)
        ratios = {
            which: over[f"{kind}_{which}_s"] / ours[f"{kind}_{which}_s"] for which in ("mean", "p50", "p95")
        }
        note = (
            f"means over all jobs, {over[f'{kind}_mean_s']:,.0f} s against {ours[f'{kind}_mean_s']:,.0f} s; "
            f"median {ratios['p50']:.3g}, 95th percentile {ratios['p95']:.3g}{more}; one simulated trace, "
            f"Basic with loans: {self._scope.setting}"
        )
        return Measurement(name, ratios["mean"], note)

    def _bound(self, fifo: Outcome) -> str:
        """What no schedule can exceed: every job at once, with all the workers that it may have."""
        requests = self._scope.setting.requests()
        least_s = math.fsum(
            request.duration_s / (SCALING_RANGE if request.scalable else 1) for request in requests
        )
        bound = fifo["jct_mean_s"] / (least_s / len(requests))
        return f"; no schedule is above {bound:.3g}, where no job waits and elastic ones have all workers"

    def _without_loans(self, by_row: dict[int, Outcome]) -> str:
        lyra, tuned = (by_row[12]["jct_mean_s"] / by_row[row]["jct_mean_s"] for row in (13, 14))
        return (
            f"; Pollux has no loans, without them Lyra's mean gives {lyra:.3g}, with tuned jobs {tuned:.3g}"
        )

    def _table_3_6(self, outcomes: Outcomes, ungrouped: Mapping[Scenario, Trial], fifo: Outcome) -> Table:
        """Its first line is the baseline, for the reductions; the thesis prints those only as times."""
        lines = [Line("1 baseline", fifo.values, thesis.TABLE_3_5[1])]
        lines += [
            Line(f"{scenario}, ungrouped", outcomes.of(trial).values, thesis.TABLE_3_6[scenario])
            for scenario, trial in ungrouped.items()
        ]
        metrics = ("queue_mean_s", "jct_mean_s", "preemption_ratio", "flexible_share")
        return side_by_side("table_3_6", lines, metrics, "jct_mean_s", "mean JCT without groups, s")

    def _loaning(self) -> Result:
        """Table 3.7 and Figure 3.12."""
        scope = self._scope
        by_way = {
            ("without scaling", way): Trial(scope.setting, elastic_share=0.0, reclaiming=way) for way in WAYS
        }
        if scope.ways_with_scaling:
            by_way |= {("with scaling", way): Trial(scope.setting, reclaiming=way) for way in WAYS}
        fifo, lent = scope.row(1), scope.row(9)
        outcomes = self._run([fifo, lent, *by_way.values()])
        return Result(
            (),
            (
                on_loaned_servers(outcomes.of(fifo), outcomes.of(lent)),
                reclaiming("figure_3_12", {key: outcomes.of(trial) for key, trial in by_way.items()}),
            ),
        )

    def _scheduling(self) -> Result:
        """Table 3.9 and Figures 3.14 to 3.16."""
        scope = self._scope
        wrong = {
            ("lyra", 100 * share): Trial(scope.setting, loans=False, wrong_prediction_share=share)
            for share in scope.wrong_shares
        }
        elastic = {
            (scheme, 100 * share): scaling_trial(scope.setting, scheme, share)
            for scheme in scope.elastic_schemes
            for share in scope.elastic_shares
        }
        lossy = {
            (scaling, 100 * share): Trial(scope.setting, loans=False, elastic_share=share, scaling=scaling)
            for scaling in ("linear", "lossy")
            for share in scope.lossy_shares
        }
        fifo = baseline(scope.setting)
        outcomes = self._run([fifo, *wrong.values(), *elastic.values(), *lossy.values()])
        results = {
            name: {key: outcomes.of(trial) for key, trial in trials.items()}
            for name, trials in (("wrong", wrong), ("elastic", elastic), ("lossy", lossy))
        }
        table = partial(reductions, baseline=outcomes.of(fifo))
        queue, jct = "queue_mean_s", "jct_mean_s"
        printed_queue, printed_jct = (
            {("lyra", 100 * share): both[place] for share, both in thesis.TABLE_3_9.items()}
            for place in (0, 1)
        )
        return Result(
            (),
            (
                table("table_3_9_queue", _WRONG, results["wrong"], metric=queue, printed=printed_queue),
                table("table_3_9_jct", _WRONG, results["wrong"], metric=jct, printed=printed_jct),
                table("figure_3_14", _ELASTIC, results["elastic"], metric=queue, printed={}),
                table("figure_3_15", _ELASTIC, results["elastic"], metric=jct, printed={}),
                table("figure_3_16_queue", _ELASTIC, results["lossy"], metric=queue, printed={}),
                table(
                    "figure_3_16_jct",
                    _ELASTIC,
                    results["lossy"],
                    metric=jct,
                    printed={("lossy", 100.0): thesis.LOSSY_JCT_REDUCTION},
                ),
            ),
        )

    def _run(self, trials: Sequence[Trial]) -> Outcomes:
        if self._outcomes is None:
            self._outcomes = Outcomes(self._conditions.folder)
        run_missing(trials, self._outcomes, self._jobs, self._conditions.console)
        return self._outcomes


def _compared(name: str, runs: Mapping[str, Outcome]) -> Table:
    """Runs that the thesis has no figures for."""
    metrics = ("queue_mean_s", "jct_mean_s", "preemption_ratio", "on_loan_usage")
    rows = [(label, *(run.values.get(metric) for metric in metrics)) for label, run in runs.items()]
    chart = Bars("run", "run", "jct_mean_s", None, "mean JCT, s")
    return Table(name, ("run", *metrics), rows, chart)
