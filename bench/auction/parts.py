"""The suite `auction`: the auction and its baselines. Parts that must run alone come first: their outcomes
serve the other parts."""

from collections.abc import Callable, Mapping

from pydantic import FiniteFloat, TypeAdapter

from bench.auction import comparison, competitive_ratio, misreports
from bench.auction.comparison import BASELINES, OURS, AuctionRuns, gain_pct
from bench.auction.information import information_result, information_trials
from bench.auction.pdftsp_comparison import kinds_result, kinds_trials
from bench.auction.scope import AuctionScope, Figure, scope_of
from bench.auction.trials import CLEARING_BOUND, DEFAULT, AuctionTrial, run_trial, warm_up
from bench.figures import Measurement, Result
from bench.runs import Experiment, Runs
from bench.suite import Suite, SuitePart, SuiteRun, by_size
from bench.workloads.paper import PaperSetting

AuctionBench = SuiteRun[AuctionScope, AuctionTrial, Mapping[str, float]]

DAYS = Experiment[AuctionTrial, Mapping[str, float]](
    run_trial,
    TypeAdapter(Mapping[str, FiniteFloat]),
    (
        "schemas",
        "solvers",
        "streams",
        "infra/figures",
        "infra/simulation",
        "infra/text.py",
        # Files that determine the decisions of a simulation's lender.
        "infra/lender/forecast.py",
        "infra/lender/history.py",
        "infra/lender/lending.py",
        "infra/lender/loans.py",
        "infra/workloads",
        "bench/workloads",
        "bench/auction/clearing.py",
        "bench/auction/day.py",
        "bench/auction/trials.py",
        # Versions of all libraries: plans depend on the solver.
        "requirements.lock",
    ),
    warm_up,
)


def _decision_time(bench: AuctionBench) -> Result:
    scope, seed = bench.scope, bench.scope.seeds[0]
    runs = bench.run(competitive_ratio.runtime_trials(scope.runtime, scope.high, seed))
    return competitive_ratio.runtime(scope.runtime, scope.high, seed, runs)


def _ratio(name: str, figure_of: Callable[[AuctionScope], Figure]) -> Callable[[AuctionBench], Result]:
    def measure(bench: AuctionBench) -> Result:
        figure, seeds = figure_of(bench.scope), bench.scope.seeds
        runs = bench.run(competitive_ratio.trials_of(figure, seeds))
        return competitive_ratio.competitive_ratio(figure, seeds, runs, name)

    return measure


def _figures(bench: AuctionBench) -> Result:
    scope, seeds = bench.scope, bench.scope.seeds
    settings = dict.fromkeys(point.setting for figure in scope.comparisons for point in figure.points)
    proven = [AuctionTrial(scope.high, seed, name) for seed in seeds for name in (DEFAULT, CLEARING_BOUND)]
    runs = bench.run([*comparison.trials_of(settings, seeds), *proven])
    for figure in scope.comparisons:
        for reason in figure.skipped:
            bench.conditions.console.print(f"Figure {figure.number} lacks {reason}", markup=False)
    over_published = {each: gain_pct(runs, each, seeds, OURS, "published").mean for each in settings}
    worst = min(over_published, key=lambda setting: over_published[setting])
    return Result(
        (
            competitive_ratio.proven_ratio(scope.high, seeds, runs),
            Measurement(
                "welfare_over_published_min_pct",
                over_published[worst],
                f"least of the means of {len(over_published)} settings, {len(seeds)} days each: "
                f"{AuctionTrial(worst, seeds[0], OURS).setting_name}",
                len(seeds) * len(over_published),
            ),
            *(_over(bench, runs, baseline) for baseline in BASELINES if baseline != "published"),
        ),
        tuple(
            comparison.comparison_table(figure, seeds, runs) for figure in scope.comparisons if figure.points
        ),
    )


def _over(bench: AuctionBench, runs: AuctionRuns, baseline: str) -> Measurement:
    high, seeds = bench.scope.high, bench.scope.seeds
    gain = gain_pct(runs, high, seeds, OURS, baseline)
    days = "one day" if len(seeds) == 1 else f"mean of {len(seeds)} days"
    width = "" if gain.half_width is None else f", 95 % CI +- {gain.half_width:.3g}"
    note = f"{days}{width}; {high.nodes} nodes, high load"
    return Measurement(f"welfare_over_{baseline}_pct", gain.mean, note, len(seeds))


def _misreports(bench: AuctionBench) -> Result:
    conditions = bench.conditions
    runs = Runs(conditions.folder, misreports.PLAYED)
    trials = misreports.trials_of(conditions.quick, conditions.seed)
    runs.complete(trials, bench.jobs, conditions.console)
    return misreports.result_of(runs.of(trial) for trial in trials)


def _everyday(bench: AuctionBench) -> Result:
    days = bench.scope.everyday
    return comparison.everyday_result(days, bench.run(comparison.everyday_trials(days)))


def _kinds(bench: AuctionBench) -> Result:
    days = bench.scope.new_days
    trials = [*kinds_trials(days), *information_trials(tuple(days.settings.values()), days.seeds)]
    runs = bench.run(trials)
    return _joined(
        kinds_result(days, runs), information_result(days.settings, days.seeds, runs, "information")
    )


def _measured_speeds(bench: AuctionBench) -> Result:
    figures, seeds = bench.scope.measured, bench.scope.seeds
    labels: dict[PaperSetting, str] = {}
    for figure in figures:
        for point in figure.points:
            labels.setdefault(point.setting, f"{figure.axis} {point.label}")
    settings = {label: setting for setting, label in labels.items()}
    trials = [*comparison.trials_of(labels, seeds), *information_trials(tuple(labels), seeds)]
    runs = bench.run(trials)
    return _joined(
        comparison.measured_result(figures, seeds, runs),
        information_result(settings, seeds, runs, "measured_information"),
    )


def _joined(one: Result, other: Result) -> Result:
    return Result((*one.measurements, *other.measurements), (*one.tables, *other.tables))


SUITE: Suite[AuctionScope, AuctionTrial, Mapping[str, float]] = Suite(
    parts=(
        SuitePart("decision time", _decision_time),
        SuitePart("profiles", by_size("bench.auction.profile_error:measure")),
        SuitePart("ratio", _ratio("ratio", lambda scope: scope.small)),
        SuitePart("ratio under load", _ratio("ratio_loaded", lambda scope: scope.small_loaded)),
        SuitePart("figures", _figures),
        SuitePart("misreports", _misreports),
        SuitePart("everyday", _everyday),
        SuitePart("auction and pdftsp", _kinds),
        SuitePart("measured speeds", _measured_speeds),
    ),
    scope=scope_of,
    experiment=DAYS,
)
