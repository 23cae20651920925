"""Tables of simulated runs: comparisons with rivals and with no merging, and fairness."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench.charts import Bars, Curves
from bench.figures import Measurement, Result, Table, Value
from bench.merging.measured import MOST_EPOCHS, Profiles, WorkloadJob
from bench.merging.simulated import MergingRunOutcome
from bench.merging.step_times import PlacementStepTimes
from bench.merging.trial import MergingSetting, MergingTrial
from solvers.merging.fairness import Finished, finish_time_fairness
from streams.policies.merging.speeds import allowed_sizes

MEASURES = ("average_s", "tail_s", "makespan_s", "met_target_pct", "merges", "undone", "starts")


def measures(outcome: MergingRunOutcome) -> tuple[float, ...]:
    """Return the values of `MEASURES`, in its order."""
    return (
        outcome.average_s,
        outcome.tail_s,
        outcome.makespan_s,
        100.0 * outcome.met / len(outcome.jobs),
        float(outcome.merges),
        float(outcome.undone),
        float(outcome.starts),
    )


def compared(
    name: str, runs: Mapping[MergingTrial, MergingRunOutcome], published: Mapping[str, float]
) -> Table:
    """Return all runs of a workload, with the results of the measurements' source in its own simulator."""
    rows: list[tuple[Value, ...]] = []
    for trial, outcome in runs.items():
        # The source charges each of its schemes a cold switch, and decides at intervals.
        published_s = published.get(trial.scheme) if trial.decides == "interval" else None
        rows.append((label(trial), trial.setting.model, *measures(outcome), published_s))
    columns = ("run", "model", *MEASURES, "published_average_s")
    return Table(name, columns, rows, Bars("run", "model", "average_s", None, "average completion time, s"))


def label(trial: MergingTrial) -> str:
    """Return the differences of a run from others of its setting."""
    return str(trial).partition(":")[0]


def fairness(name: str, runs: Mapping[MergingTrial, MergingRunOutcome]) -> Table:
    """Return Figure 12: the distribution of finish-time fairness."""
    rows: list[tuple[Value, ...]] = []
    for trial, outcome in runs.items():
        rho = finish_time_fairness(finished(trial.setting, outcome), trial.setting.cluster.gpus)
        for value in sorted(set(rho.values())):
            rows.append((f"{trial.setting.model} {label(trial)}", value))
    return Table(name, ("run", "rho"), rows, Curves())


def unfair_pct(setting: MergingSetting, outcome: MergingRunOutcome) -> float:
    """Return the jobs that sharing has delayed: with a finish-time fairness above 1, in per cent."""
    rho = finish_time_fairness(finished(setting, outcome), setting.cluster.gpus).values()
    return 100.0 * sum(value > 1.0 for value in rho) / len(rho)


def finished(setting: MergingSetting, outcome: MergingRunOutcome) -> list[Finished]:
    """Return the jobs with their times alone, by the measured curves and steps."""
    profiles, jobs = setting.read()
    steps = _Steps(setting, profiles)
    return [
        Finished(f"{number}", result.submitted_s, result.ended_s, job.gpus, steps.total_s(job))
        for number, (job, result) in enumerate(zip(jobs, outcome.jobs, strict=True))
    ]


class _Steps:
    def __init__(self, setting: MergingSetting, profiles: Profiles) -> None:
        self._cluster = setting.cluster
        self._profiles = profiles
        self._times = PlacementStepTimes(profiles, setting.cluster)
        self._known: dict[tuple[str, int, float], dict[int, float]] = {}

    def total_s(self, job: WorkloadJob) -> dict[int, float]:
        """Return times by number of GPUs, each shorter than the one before."""
        key = (job.task, job.batch_size, job.target)
        if key not in self._known:
            curve = self._profiles.single(job.task, job.setting)
            epochs = curve.first_reaching(job.target) or MOST_EPOCHS
            iterations = epochs * -(-self._profiles.samples[job.task] // job.batch_size)
            found: dict[int, float] = {}
            for size in allowed_sizes(self._cluster.gpus, pipeline=False):
                step = self._times.fastest(job.batch_size, self._cluster.compact(size))
                total_s = iterations * step.step_s
                if total_s < min(found.values(), default=float("inf")):
                    found[size] = total_s
            self._known[key] = found
        return self._known[key]


_COLUMNS = (
    "model",
    "half",
    "jobs",
    "load",
    "seed",
    "average_s",
    "average_without_s",
    "gain_pct",
    "slowest_s",
    "slowest_without_s",
    "slowest_later_pct",
    "merges",
    "undone",
    "known_average_s",
    "known_gain_pct",
    "known_slowest_later_pct",
    "known_merges",
    "known_undone",
    "warm_rival_s",
    "cold_rival_s",
)


class _Difference(NamedTuple):
    """Difference of a run with merging from the one without."""

    gain_pct: float
    """Reduction of the mean completion time."""
    later_pct: float
    """Increase of the longest completion time."""


def over_none(runs: Mapping[MergingSetting, Mapping[MergingTrial, MergingRunOutcome]]) -> Result:
    """Return a row per setting, and figures of the worst of them.

    Args:
        runs: runs of each setting with merging and without, and optionally with outcomes of half of the pairs
            known, and of rivals with warm and with cold switches.
    """
    rows: list[tuple[Value, ...]] = []
    unknown: dict[MergingSetting, _Difference] = {}
    known: dict[MergingSetting, _Difference] = {}
    over_rivals: dict[MergingSetting, float] = {}
    for setting, of in runs.items():
        ours, without = of[MergingTrial(setting)], of[MergingTrial(setting, modes=())]
        informed = of.get(MergingTrial(setting, knowledge="half"))
        rivals = {trial: run.average_s for trial, run in of.items() if trial.scheme != "ymir"}
        warm = min((value for trial, value in rivals.items() if trial.warm_switches), default=None)
        cold = min((value for trial, value in rivals.items() if not trial.warm_switches), default=None)
        difference = unknown[setting] = _difference(ours, without)
        of_informed: tuple[Value, ...] = (None,) * 5
        if informed is not None:
            known[setting] = _difference(informed, without)
            of_informed = (
                informed.average_s,
                *known[setting],
                float(informed.merges),
                float(informed.undone),
            )
        if warm is not None:
            over_rivals[setting] = 100.0 * (1.0 - ours.average_s / warm)
        rows.append(
            (
                setting.model,
                setting.half,
                float(len(ours.jobs)),
                setting.load,
                float(setting.seed),
                ours.average_s,
                without.average_s,
                difference.gain_pct,
                ours.slowest_s,
                without.slowest_s,
                difference.later_pct,
                float(ours.merges),
                float(ours.undone),
                *of_informed,
                warm,
                cold,
            )
        )
    measured = [*_measured("merging", "nothing known of any merge", unknown)]
    if known:
        measured += _measured("merging_known", "outcomes of half of the pairs known", known)
    if over_rivals:
        worst = min(over_rivals, key=over_rivals.__getitem__)
        measured.append(
            Measurement(
                "merging_over_warm_rivals_min_pct",
                over_rivals[worst],
                "simulated, by how much the mean is shorter than that of the best rival with the same warm "
                f"switches, the least of {len(over_rivals)} settings: {worst}",
                len(over_rivals),
            )
        )
    return Result(tuple(measured), (Table("over_none", _COLUMNS, rows),))


def _difference(ours: MergingRunOutcome, without: MergingRunOutcome) -> _Difference:
    return _Difference(
        100.0 * (1.0 - ours.average_s / without.average_s),
        100.0 * (ours.slowest_s / without.slowest_s - 1.0),
    )


def _measured(
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
