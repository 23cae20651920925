"""The parts of `millrace bench auction`: what each runs, and the figures that it computes from the rows."""

from collections.abc import Iterator, Sequence
from functools import partial

from bench.auction import (
    ablations,
    comparison,
    competitive_ratio,
    everyday,
    growth,
    runtime,
    working_days,
)
from bench.auction.comparison import BASELINES, OURS, PUBLISHED_GAINS_PCT, gain_pct
from bench.auction.misreports.measure import measure as misreports
from bench.auction.runs.contenders import DEFAULT
from bench.auction.runs.measures import CLEARING_BOUND
from bench.auction.runs.pool import Rows, digest_of_sources, run_missing
from bench.auction.runs.trial import Trial
from bench.auction.scope import SENSITIVITY_AXIS, Scope, full, quick
from bench.cores import jobs_at_once
from bench.figures import Conditions, Measurement, Part, Result
from bench.workloads.arrivals import TraceArrivals
from bench.workloads.figures import Figure


def auction_parts(conditions: Conditions) -> Iterator[tuple[str, Part]]:
    """The parts by name. What must run alone comes first: its rows serve the others.

    Raises:
        TraceError: a trace cannot be read, or is too short.
    """
    if conditions.quick:
        scope = quick(conditions.seed, conditions.trace_files)
    else:
        scope = full(conditions.seed, conditions.traces, conditions.trace_files)
    # Hours may pass before it is drawn from.
    settings = [point.setting for figure in scope.comparisons for point in figure.points]
    settings += [load.setting for load in scope.everyday.loads]
    for trace in dict.fromkeys(setting.trace for setting in settings):
        if isinstance(trace, TraceArrivals):
            trace.check()
    yield from AuctionBench(conditions, scope).parts()


class AuctionBench:
    """The benchmark of one scope, whose parts share their rows."""

    def __init__(self, conditions: Conditions, scope: Scope) -> None:
        self._conditions = conditions
        self._scope = scope
        self._jobs = jobs_at_once(conditions.jobs, conditions.console)
        self._rows: Rows | None = None

    def parts(self) -> Iterator[tuple[str, Part]]:
        """By name."""
        yield "decision time", self._decision_time
        yield "growth", self._growth
        yield "ratio", partial(self._ratio, self._scope.small, "ratio")
        yield "ratio under load", partial(self._ratio, self._scope.small_loaded, "ratio_loaded")
        yield "figures", self._figures
        yield "ablations", self._ablations
        yield "sensitivity", self._sensitivity
        yield "misreports", self._misreports
        yield "everyday", self._everyday
        yield "working days", self._working_days

    def _decision_time(self) -> Result:
        scope, seed = self._scope, self._scope.seeds[0]
        rows = self._run(runtime.trials_of(scope.runtime, scope.high, seed))
        return runtime.runtime(scope.runtime, scope.high, seed, rows)

    def _growth(self) -> Result:
        axes, seed = self._scope.growth, self._scope.seeds[0]
        return Result((), (growth.growth_table(axes, seed, self._run(growth.trials_of(axes, seed))),))

    def _ratio(self, figure: Figure, name: str) -> Result:
        seeds = self._scope.seeds
        rows = self._run(competitive_ratio.trials_of(figure, seeds))
        return competitive_ratio.competitive_ratio(figure, seeds, rows, name)

    def _figures(self) -> Result:
        scope, seeds = self._scope, self._scope.seeds
        settings = dict.fromkeys(point.setting for figure in scope.comparisons for point in figure.points)
        proven = [Trial(scope.high, seed, name) for seed in seeds for name in (DEFAULT, CLEARING_BOUND)]
        rows = self._run([*comparison.trials_of(settings, seeds), *proven])
        for figure in scope.comparisons:
            for reason in figure.skipped:
                self._conditions.console.print(f"Figure {figure.number} lacks {reason}", markup=False)
        over_published = {s: gain_pct(rows, s, seeds, OURS, "published").mean for s in settings}
        worst = min(over_published, key=lambda setting: over_published[setting])
        days = f"{len(seeds)} days"
        return Result(
            (
                competitive_ratio.proven_ratio(scope.high, seeds, rows),
                Measurement(
                    "welfare_over_published_min_pct",
                    over_published[worst],
                    f"least of the means of {len(over_published)} settings, {days} each: "
                    f"{Trial(worst, seeds[0], OURS).setting_name}",
                    len(seeds) * len(over_published),
                ),
                *(self._over(rows, baseline) for baseline in BASELINES if baseline != "published"),
            ),
            tuple(
                comparison.comparison_table(
                    f"figure_{figure.number}",
                    figure.axis,
                    figure.points,
                    seeds,
                    rows,
                    PUBLISHED_GAINS_PCT.get(figure.number, {}),
                )
                for figure in scope.comparisons
                if figure.points
            ),
        )

    def _sensitivity(self) -> Result:
        points, seeds = self._scope.sensitivity, self._scope.seeds
        rows = self._run(comparison.trials_of((point.setting for point in points), seeds))
        table = comparison.comparison_table("sensitivity", SENSITIVITY_AXIS, points, seeds, rows, {})
        return Result((), (table,))

    def _ablations(self) -> Result:
        points, seeds = self._scope.ablations, self._scope.seeds
        rows = self._run(ablations.trials_of(points, seeds))
        return Result(
            (), tuple(ablations.ablation_table(each, points, seeds, rows) for each in ablations.ABLATIONS)
        )

    def _misreports(self) -> Result:
        conditions = self._conditions
        say = partial(conditions.console.print, markup=False)
        return misreports(conditions.quick, conditions.seed, self._jobs, say)

    def _everyday(self) -> Result:
        extent = self._scope.everyday
        for reason in extent.skipped:
            self._conditions.console.print(f"everyday lacks {reason}", markup=False)
        rows = self._run(everyday.trials_of(extent))
        return Result(everyday.measurements(extent, rows), everyday.tables(extent, rows))

    def _working_days(self) -> Result:
        days = self._scope.working_days
        return working_days.working_days(days, self._run(working_days.trials_of(days)))

    def _over(self, rows: Rows, baseline: str) -> Measurement:
        high, seeds = self._scope.high, self._scope.seeds
        gain = gain_pct(rows, high, seeds, OURS, baseline)
        days = "one day" if len(seeds) == 1 else f"mean of {len(seeds)} days"
        width = "" if gain.half_width is None else f", 95 % CI +- {gain.half_width:.3g}"
        note = f"{days}{width}; {high.nodes} nodes, high load"
        return Measurement(f"welfare_over_{baseline}_pct", gain.mean, note, len(seeds))

    def _run(self, trials: Sequence[Trial]) -> Rows:
        if self._rows is None:
            self._rows = Rows(self._conditions.folder, digest_of_sources())
        run_missing(trials, self._rows, self._jobs, self._conditions.console)
        return self._rows
