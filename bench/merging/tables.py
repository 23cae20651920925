"""Tables of simulated runs, and the measured gains behind them."""

from collections.abc import Mapping

from bench.charts import Bars, Curves
from bench.figures import Table, Value
from bench.merging.measured import MOST_EPOCHS, Profiles, WorkloadJob
from bench.merging.simulated import Outcome
from bench.merging.step_times import StepTimes
from bench.merging.trial import Setting, Trial
from solvers.merging.fairness import Finished, cumulative_distribution, finish_time_fairness
from streams.policies.merging.speeds import allowed_sizes

MEASURES = ("average_s", "tail_s", "makespan_s", "met_target_pct", "merged_pct", "undone", "starts")


def measures(outcome: Outcome) -> tuple[float, ...]:
    """In the order of `MEASURES`."""
    return (
        outcome.average_s,
        outcome.tail_s,
        outcome.makespan_s,
        100.0 * outcome.met / len(outcome.jobs),
        outcome.share_pct("temporal") + outcome.share_pct("spatial"),
        float(outcome.undone),
        float(outcome.starts),
    )


def compared(name: str, runs: Mapping[Trial, Outcome], published: Mapping[str, float]) -> Table:
    """All runs of a workload, beside what the source of the measurements reaches in its own simulator."""
    rows: list[tuple[Value, ...]] = []
    for trial, outcome in runs.items():
        # The source charges each of its schemes a cold switch, and decides at intervals.
        beside = published.get(trial.scheme) if trial.decides == "interval" else None
        rows.append((label(trial), trial.setting.model, *measures(outcome), beside))
    columns = ("run", "model", *MEASURES, "published_average_s")
    return Table(name, columns, rows, Bars("run", "model", "average_s", None, "average completion time, s"))


def label(trial: Trial) -> str:
    """What sets a run apart from others of its setting."""
    return str(trial).partition(":")[0]


def fairness(name: str, runs: Mapping[Trial, Outcome]) -> Table:
    """Figure 12: the distribution of finish-time fairness."""
    rows: list[tuple[Value, ...]] = []
    for trial, outcome in runs.items():
        rho = finish_time_fairness(finished(trial.setting, outcome), trial.setting.cluster.gpus)
        for value, _ in cumulative_distribution(rho.values()):
            rows.append((f"{trial.setting.model} {label(trial)}", value))
    return Table(name, ("run", "rho"), rows, Curves())


def unfair_pct(setting: Setting, outcome: Outcome) -> float:
    """Jobs that sharing hurt: of a finish-time fairness above 1, in percent."""
    rho = finish_time_fairness(finished(setting, outcome), setting.cluster.gpus).values()
    return 100.0 * sum(value > 1.0 for value in rho) / len(rho)


def finished(setting: Setting, outcome: Outcome) -> list[Finished]:
    """Jobs with what they take alone, by the measured curves and steps."""
    profiles, jobs = setting.read()
    steps = _Steps(setting, profiles)
    return [
        Finished(f"{number}", fared.submitted_s, fared.ended_s, job.gpus, steps.total_s(job))
        for number, (job, fared) in enumerate(zip(jobs, outcome.jobs, strict=True))
    ]


class _Steps:
    def __init__(self, setting: Setting, profiles: Profiles) -> None:
        self._cluster = setting.cluster
        self._profiles = profiles
        self._times = StepTimes(profiles, setting.cluster)
        self._known: dict[tuple[str, int, float], dict[int, float]] = {}

    def total_s(self, job: WorkloadJob) -> dict[int, float]:
        """By number of GPUs, each faster than the one before."""
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
