"""The suite `merging`: the task merger and its rivals on measured fine-tuning. Parts that run alone come
first."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from bench.figures import Conditions, Measurement, Result, Table, Value
from bench.merging.estimates import measure_estimates, read_backbone
from bench.merging.forecast_gains import compare_estimators
from bench.merging.merger import measure_merger
from bench.merging.merging_trial import HALVES, Half, Knowledge, MergingSetting, MergingTrial, rival
from bench.merging.profile_error import measure_profiles
from bench.merging.simulated import OUTCOME, MergingRunOutcome, run
from bench.merging.trained import read_trained
from bench.merging.trained_estimates import compare_on_trained
from bench.runs import Experiment
from bench.suite import Suite, SuitePart, SuiteRun, by_size
from infra.errors import CommandError
from schemas.merging.settings import SchemeName
from solvers.merging.rivals import RIVALS

MODELS = ("roberta-base", "vit")
SCHEMES: tuple[SchemeName, ...] = ("srtf", "tiresias", "optimus", "pollux", "themis", "titan")
assert set(SCHEMES) == set(RIVALS)
QUICK_JOBS = {"roberta-base": 40, "vit": 15}

PUBLISHED_S: Mapping[str, Mapping[str, float]] = {
    "roberta-base": {
        "titan": 688.0,
        "optimus": 851.0,
        "srtf": 1_053.0,
        "tiresias": 1_078.0,
        "themis": 1_308.0,
    },
    "vit": {"optimus": 1_603.0, "srtf": 2_475.0, "tiresias": 3_956.0, "themis": 3_070.0},
}
"""Average completion times of workload FM-1 in the simulator of the measurements' source."""


@dataclass(frozen=True)
class MergingScope:
    """The settings and runs of each part.

    Attributes:
        settings: a workload of each model.
        rivals_of: models for which every rival is run.
        compared: settings in which merging is compared with no merging: models, halves of their tasks, jobs,
            loads, seeds.
    """

    settings: tuple[MergingSetting, ...]
    rivals_of: tuple[str, ...]
    compared: tuple[MergingSetting, ...]


def scope_of(conditions: Conditions) -> MergingScope:
    """Return the full form, with all measurements, or the quick form, with the first jobs of each workload.

    Raises:
        CommandError: the measurements are absent or invalid.
    """
    settings = tuple(
        MergingSetting(
            profiles=str(conditions.profiles),
            model=model,
            workload=str(conditions.profiles / "workloads" / f"FM-1-{model}.csv"),
            first=QUICK_JOBS[model] if conditions.quick else None,
            seed=conditions.seed,
        )
        for model in MODELS
    )
    for setting in settings:
        try:
            setting.read()
        except (FileNotFoundError, ValueError) as error:
            raise CommandError(f"{error}: give the folder of measurements with --profiles") from error
    return quick(settings) if conditions.quick else full(settings)


def full(settings: tuple[MergingSetting, ...]) -> MergingScope:
    """Return all rivals on each model, and 40 settings with and without merging."""
    compared = tuple(
        _drawn(setting, half, jobs, load, setting.seed + seed)
        for setting in settings
        for half in HALVES
        for jobs, seeds in ((30, 2), (60, 2), (240, 1))
        for load in (1.0, 2.0)
        for seed in range(seeds)
    )
    return MergingScope(settings, tuple(setting.model for setting in settings), compared)


def quick(settings: tuple[MergingSetting, ...]) -> MergingScope:
    """Return all rivals on the first model, and one setting of each half with and without merging."""
    compared = tuple(_drawn(setting, half, 30, 2.0, setting.seed) for setting in settings for half in HALVES)
    return MergingScope(settings, (settings[0].model,), compared)


def _drawn(setting: MergingSetting, half: Half, jobs: int, load: float, seed: int) -> MergingSetting:
    """Return a setting with jobs drawn from half of the tasks of a workload."""
    return replace(setting, first=None, half=half, drawn=jobs, load=load, seed=seed)


def all_rivals(setting: MergingSetting) -> tuple[MergingTrial, ...]:
    """Return each scheme at its published interval, and in the form that also decides when jobs arrive or
    end."""
    return tuple(rival(setting, scheme, decides) for scheme in SCHEMES for decides in ("interval", "eager"))


SIMULATED = Experiment[MergingTrial, MergingRunOutcome](
    run,
    OUTCOME,
    (
        "schemas",
        "solvers",
        "streams",
        "infra/figures",
        "infra/simulation",
        "infra/text.py",
        "infra/lender",
        "infra/log",
        "infra/views",
        "infra/workloads",
        *(
            f"bench/merging/{name}.py"
            for name in ("curves", "measured", "measured_truth", "merging_trial", "simulated")
        ),
        # Versions of all libraries.
        "requirements.lock",
    ),
)

MergingBench = SuiteRun[MergingScope, MergingTrial, MergingRunOutcome]
By = Mapping[MergingSetting, Mapping[MergingTrial, MergingRunOutcome]]


def _run(bench: MergingBench, trials: Mapping[MergingSetting, Sequence[MergingTrial]]) -> By:
    runs = bench.run([trial for some in trials.values() for trial in some])
    return {setting: {trial: runs.of(trial) for trial in some} for setting, some in trials.items()}


def _merger(bench: MergingBench) -> Result:
    return measure_merger(bench.conditions.quick, bench.conditions.seed, bench.scope.settings)


def _profiles(bench: MergingBench) -> Result:
    try:
        return measure_profiles(bench.conditions.profiles, MODELS, bench.conditions.seed)
    except (FileNotFoundError, ValueError) as error:
        raise CommandError(str(error)) from error


def _estimates(bench: MergingBench) -> Result:
    try:
        folder = bench.conditions.profiles
        found = measure_estimates(folder, MODELS)
        both = compare_estimators([read_backbone(folder, model) for model in MODELS])
        trained = compare_on_trained(read_trained())
    except (FileNotFoundError, LookupError, ValueError) as error:
        raise CommandError(str(error)) from error
    results = (found, both, trained)
    return Result(
        tuple(figure for result in results for figure in result.measurements),
        tuple(table for result in results for table in result.tables),
    )


def _switching(bench: MergingBench) -> Result:
    """Measure switches of a rank that is forked from a server with torch. The server loads torch in parallel
    with this process, on another core."""
    from executors.processes.forked_process import warm_up
    from executors.tuner import FineTuning

    with ThreadPoolExecutor(1) as executor:
        server = executor.submit(warm_up, *FineTuning.MODULES)
        from bench.merging.switching import measure_switching

        server.result()
    return measure_switching(bench.conditions.quick, bench.conditions.seed)


_CHARGED = (
    "each start of a task is charged 30 s and the measured cold start; ours, on a node that has run a task "
    "before, a tenth"
)


def _schemes(bench: MergingBench) -> Result:
    """Measure jobs' completion times, and compare them with those of all rivals and the published ones."""
    runs = _run(
        bench,
        {
            setting: (
                MergingTrial(setting),
                MergingTrial(setting, modes=()),
                *(all_rivals(setting) if setting.model in bench.scope.rivals_of else ()),
            )
            for setting in bench.scope.settings
        },
    )
    return Result(
        tuple(figure for setting, by_trial in runs.items() for figure in _against_rivals(setting, by_trial)),
        tuple(_compared(setting, by_trial) for setting, by_trial in runs.items()),
    )


def _against_rivals(
    setting: MergingSetting, runs: Mapping[MergingTrial, MergingRunOutcome]
) -> Iterator[Measurement]:
    ours, name = runs[MergingTrial(setting)], setting.model.replace("-", "_")
    published = _published(setting)
    best = f", the best published value is {min(published.values()):g} s" if published else ""
    without = runs[MergingTrial(setting, modes=())].average_s
    note = (
        f"simulated, mean of {len(ours.jobs)} jobs; without merging {without:.0f} s{best}; nothing known "
        f"of any merge beforehand; {_CHARGED}: {setting}"
    )
    yield Measurement(f"jct_{name}_s", ours.average_s, note, len(ours.jobs))
    yield Measurement(
        f"met_target_{name}_pct",
        100.0 * ours.met / len(ours.jobs),
        f"simulated, {ours.met} of {len(ours.jobs)} jobs met their accuracy target; {ours.merges} "
        f"merges, {ours.undone} jobs of them undone: {setting}",
        len(ours.jobs),
    )
    rivals = {trial: run for trial, run in runs.items() if trial.scheme != "ymir"}
    for figure, measure in _MEASURES.items() if rivals else ():
        trial = min(rivals, key=lambda one: measure(rivals[one]))
        value, least = measure(ours), measure(rivals[trial])
        yield Measurement(
            f"{figure}_{name}_vs_best_rival",
            value / least,
            f"simulated, {value:.0f} s over {least:.0f} s of {label(trial)}, the best of "
            f"{len(rivals)} runs of rivals; {_CHARGED}: {setting}",
            len(rivals),
        )


_MEASURES: Mapping[str, Callable[[MergingRunOutcome], float]] = {
    "jct": lambda run: run.average_s,
    "tail": lambda run: run.tail_s,
    "makespan": lambda run: run.makespan_s,
}


def _published(setting: MergingSetting) -> Mapping[str, float]:
    """Return the figures of the source's own simulator, if the jobs are the same."""
    return PUBLISHED_S[setting.model] if setting.first is None else {}


def _compared(setting: MergingSetting, runs: Mapping[MergingTrial, MergingRunOutcome]) -> Table:
    """Return all runs of a workload, with the results of the measurements' source in its own simulator, which
    charges each of its schemes a cold switch, and decides at intervals."""
    rows = [
        {
            "run": label(trial),
            "average_s": outcome.average_s,
            "tail_s": outcome.tail_s,
            "makespan_s": outcome.makespan_s,
            "met_target_pct": 100.0 * outcome.met / len(outcome.jobs),
            "merges": outcome.merges,
            "undone": outcome.undone,
            "starts": outcome.starts,
            "published_average_s": (
                _published(setting).get(trial.scheme) if trial.decides == "interval" else None
            ),
        }
        for trial, outcome in runs.items()
    ]
    return Table(f"schemes_{setting.model}", rows)


def label(trial: MergingTrial) -> str:
    """Return the differences of a run from others of its setting."""
    return str(trial).partition(":")[0]


def _over_none(bench: MergingBench) -> Result:
    """Compare merging with the same scheme without merging."""
    return over_none(
        _run(
            bench,
            {
                setting: (
                    MergingTrial(setting),
                    MergingTrial(setting, modes=()),
                    MergingTrial(setting, knowledge="half"),
                )
                for setting in bench.scope.compared
            },
        )
    )


@dataclass(frozen=True)
class _Difference:
    """Difference of a run with merging from the one without."""

    gain_pct: float
    """Reduction of the mean completion time."""
    later_pct: float
    """Increase of the longest completion time."""
    run: MergingRunOutcome


_KNOWLEDGE: tuple[tuple[str, str, Knowledge], ...] = (
    ("merging", "nothing known of any merge", "nothing"),
    ("merging_known", "outcomes of half of the pairs known", "half"),
)
"""Beginnings of figures, their conditions, and the knowledge of the zone."""


def over_none(runs: By) -> Result:
    """Return a row per setting and knowledge, and figures of the worst settings.

    Args:
        runs: runs of each setting with merging, without, and with outcomes of half of the pairs known.
    """
    rows: list[dict[str, Value]] = []
    measured: list[Measurement] = []
    for name, condition, knowledge in _KNOWLEDGE:
        differences = {
            setting: _difference(
                of[MergingTrial(setting, knowledge=knowledge)], of[MergingTrial(setting, modes=())]
            )
            for setting, of in runs.items()
        }
        measured += _worst_and_mean(name, condition, differences)
        rows += (
            {
                "known": knowledge,
                "model": setting.model,
                "half": setting.half,
                "jobs": len(each.run.jobs),
                "load": setting.load,
                "seed": setting.seed,
                "average_s": each.run.average_s,
                "gain_pct": each.gain_pct,
                "slowest_s": each.run.slowest_s,
                "slowest_later_pct": each.later_pct,
                "merges": each.run.merges,
                "undone": each.run.undone,
            }
            for setting, each in differences.items()
        )
    return Result(tuple(measured), (Table("over_none", rows),))


def _difference(ours: MergingRunOutcome, without: MergingRunOutcome) -> _Difference:
    return _Difference(
        100.0 * (1.0 - ours.average_s / without.average_s),
        100.0 * (ours.slowest_s / without.slowest_s - 1.0),
        ours,
    )


def _worst_and_mean(
    name: str, condition: str, differences: Mapping[MergingSetting, _Difference]
) -> Iterator[Measurement]:
    """Yield the worst and the mean of some settings."""
    count = len(differences)
    least = min(differences, key=lambda setting: differences[setting].gain_pct)
    most = max(differences, key=lambda setting: differences[setting].later_pct)
    held = [one.gain_pct for setting, one in differences.items() if setting.half == "held"]
    yield Measurement(
        f"{name}_over_none_min_pct",
        differences[least].gain_pct,
        f"simulated, {condition}, by how much merging shortens the mean completion time, the least of "
        f"{count} settings: {least}",
        count,
    )
    yield Measurement(
        f"{name}_over_none_mean_pct",
        sum(one.gain_pct for one in differences.values()) / count,
        f"the same, mean of all; of the held half of the tasks {sum(held) / max(len(held), 1):.2f}",
        count,
    )
    yield Measurement(
        f"{name}_tail_over_none_max_pct",
        differences[most].later_pct,
        f"simulated, {condition}, by how much the slowest job takes longer with merging, the most of {count} "
        f"settings: {most}",
        count,
    )


SUITE: Suite[MergingScope, MergingTrial, MergingRunOutcome] = Suite(
    parts=(
        SuitePart("merger", _merger),
        SuitePart("estimates", _estimates),
        SuitePart("profiles", _profiles),
        SuitePart("switching", _switching),
        SuitePart("transferability", by_size("bench.merging.transferability:measure_transferability")),
        SuitePart("schemes", _schemes),
        SuitePart("over none", _over_none),
    ),
    scope=scope_of,
    experiment=SIMULATED,
)
