"""The suite `merging`: the task merger and its rivals on measured fine-tuning. Parts that run alone come
first."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figures import Conditions, Measurement, Result
from bench.merging import tables
from bench.merging.estimates import estimates
from bench.merging.simulated import OUTCOME, MergingRunOutcome, run
from bench.merging.slow_merges import measure_merger
from bench.merging.trial import HALVES, Half, MergingSetting, MergingTrial, rival
from bench.runs import Experiment
from bench.suite import Suite, SuitePart, SuiteRun, by_size
from infra.errors import CommandError
from schemas.merging.settings import SchemeName
from solvers.merging.schemes import RIVALS

MODELS = ("roberta-base", "vit")
SCHEMES: tuple[SchemeName, ...] = ("srtf", "tiresias", "optimus", "pollux", "themis", "titan")
assert set(SCHEMES) == set(RIVALS)
FAIR_SCHEMES: tuple[SchemeName, ...] = ("pollux", "themis", "tiresias")
"""Schemes of Figure 12."""
QUICK_JOBS = {"roberta-base": 40, "vit": 15}
_OTHER_QUICK_JOBS = 30

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
        warm_rivals: schemes that are run in them with warm and with cold switches.
    """

    settings: tuple[MergingSetting, ...]
    rivals_of: tuple[str, ...]
    compared: tuple[MergingSetting, ...]
    warm_rivals: tuple[SchemeName, ...]


def scope_of(conditions: Conditions) -> MergingScope:
    """Return the full form, with all measurements, or the quick form, with the first jobs of each workload.

    Raises:
        CommandError: the measurements are absent or invalid.
    """
    settings = tuple(
        _setting(conditions, model) for model in ((conditions.model,) if conditions.model else MODELS)
    )
    for setting in settings:
        try:
            setting.read()
        except (FileNotFoundError, ValueError) as error:
            raise CommandError(f"{error}: give the folder of measurements with --profiles") from error
    return quick(settings) if conditions.quick else full(settings)


def _setting(conditions: Conditions, model: str) -> MergingSetting:
    """Return the workload of a model: that of the source, unless the command line names another."""
    workload = conditions.workload or conditions.profiles / "workloads" / f"FM-1-{model}.csv"
    return MergingSetting(
        profiles=str(conditions.profiles),
        model=model,
        workload=str(workload),
        first=QUICK_JOBS.get(model, _OTHER_QUICK_JOBS) if conditions.quick else None,
        seed=conditions.seed,
    )


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
    return MergingScope(
        settings, tuple(setting.model for setting in settings), compared, ("optimus", "pollux")
    )


def quick(settings: tuple[MergingSetting, ...]) -> MergingScope:
    """Return all rivals on the first model, and one setting of each half with and without merging."""
    compared = tuple(_drawn(setting, half, 30, 2.0, setting.seed) for setting in settings for half in HALVES)
    return MergingScope(settings, (settings[0].model,), compared, ("pollux",))


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
            for name in ("curves", "known", "measured", "measured_truth", "simulated", "step_times", "trial")
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


def _estimates(bench: MergingBench) -> Result:
    try:
        return estimates(bench.conditions.profiles, [setting.model for setting in bench.scope.settings])
    except (FileNotFoundError, LookupError, ValueError) as error:
        raise CommandError(str(error)) from error


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
        tuple(
            tables.compared(f"schemes_{setting.model}", by_trial, _published(setting))
            for setting, by_trial in runs.items()
        ),
    )


def _against_rivals(
    setting: MergingSetting, runs: Mapping[MergingTrial, MergingRunOutcome]
) -> Iterator[Measurement]:
    ours, name = runs[MergingTrial(setting)], _figure_name(setting)
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
            f"simulated, {value:.0f} s over {least:.0f} s of {tables.label(trial)}, the best of "
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
    is_whole = setting.first is None and setting.drawn is None
    named = Path(setting.workload).name == f"FM-1-{setting.model}.csv"
    return PUBLISHED_S.get(setting.model, {}) if is_whole and named else {}


def _figure_name(setting: MergingSetting) -> str:
    """Return the part of the names of a setting's figures: the model, and its workload if that is not its
    own."""
    workload = Path(setting.workload).stem
    words = setting.model if workload == f"FM-1-{setting.model}" else f"{setting.model}_{workload}"
    return re.sub(r"[^A-Za-z0-9]+", "_", words)


def _over_none(bench: MergingBench) -> Result:
    """Compare merging with the same scheme without merging, and with rivals with the same warm switches."""
    runs = _run(
        bench,
        {
            setting: (
                MergingTrial(setting),
                MergingTrial(setting, modes=()),
                MergingTrial(setting, knowledge="half"),
                *(
                    rival(setting, scheme, "eager", warm)
                    for scheme in bench.scope.warm_rivals
                    for warm in (True, False)
                ),
            )
            for setting in bench.scope.compared
        },
    )
    return tables.over_none(runs)


def _fairness(bench: MergingBench) -> Result:
    """Measure Figure 12, on the unchanged workloads."""
    runs = _run(
        bench,
        {
            setting: (MergingTrial(setting), *(rival(setting, scheme, "interval") for scheme in FAIR_SCHEMES))
            for setting in bench.scope.settings
            if setting.model in bench.scope.rivals_of
        },
    )
    shares = "; ".join(
        f"{setting.model} {tables.label(trial)} {tables.unfair_pct(setting, run):.1f}"
        for setting, of in runs.items()
        for trial, run in of.items()
    )
    first = next(iter(runs))
    measured = Measurement(
        "unfair_pct",
        tables.unfair_pct(first, runs[first][MergingTrial(first)]),
        f"simulated, jobs of {first} with a finish-time fairness above 1; all, in percent: {shares}",
    )
    every = {trial: run for of in runs.values() for trial, run in of.items()}
    return Result((measured,), (tables.fairness("figure_12", every),))


SUITE: Suite[MergingScope, MergingTrial, MergingRunOutcome] = Suite(
    parts=(
        SuitePart("merger", _merger),
        SuitePart("estimates", _estimates),
        SuitePart("switching", _switching),
        SuitePart("transferability", by_size("bench.merging.transferability:measure_transferability")),
        SuitePart("schemes", _schemes),
        SuitePart("over none", _over_none),
        SuitePart("fairness", _fairness),
    ),
    scope=scope_of,
    experiment=SIMULATED,
)
