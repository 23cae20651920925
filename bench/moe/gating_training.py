"""Table 5.3: small models trained to one loss by each scheme."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from bench.figures import Conditions, Measurement, Result, Table, Value
from bench.moe.tasks import LearningTask, ModelSize, generation, sentiment
from bench.moe.trained import ModelRun, Training, TrainingScheme
from executors.moe.gating import Gating
from executors.processes.threads import one_thread

DENSE, TOP_1, TOP_2 = TrainingScheme(None), TrainingScheme(Gating("top1")), TrainingScheme(Gating("top2"))
ADAPTIVE = TrainingScheme(Gating("adaptive", 0.1), curriculum=True)
ADAPTIVE_ON_ALL = TrainingScheme(Gating("adaptive", 0.1, threshold_on="all"), curriculum=True)
"""The other reading of section 5.4.3 (erratum G1)."""
_MOST_OF_TOP_2 = 1.6
"""Limit of a scheme's steps relative to top-2, after which it ends without the loss."""
TABLE_5_3: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "sentiment analysis": {
        "dense": (0.88, 2.18e9, 91.2),
        "top2": (1.0, 3.28e9, 91.8),
        "top1": (0.99, 2.18e9, 90.2),
        "adaptive 0.1": (0.77, 2.30e9, 91.9),
    },
    "text generation": {
        "dense": (0.84, 3.4e12, 16.3),
        "top2": (1.0, 4.9e12, 17.8),
        "top1": (1.14, 3.4e12, 16.5),
        "adaptive 0.1": (0.89, 3.73e12, 17.5),
    },
}
"""Training time relative to top-2, floating-point operations, and accuracy in per cent or perplexity, by task
and scheme. As printed, with text generation's perplexity best for the dense model and worst for top-2."""


@dataclass(frozen=True)
class TrainingExtent:
    """Amount of training."""

    sentiment: ModelSize
    generation: ModelSize
    samples: tuple[int, int]
    """Samples of each task."""
    batch_sizes: tuple[int, int]
    """Batch size of each task, in samples."""
    evaluations: int
    """Evaluations of top-2 gating, whose last loss is the target of all."""
    interval: int
    """Steps between two evaluations."""
    seeds: int

    @property
    def steps(self) -> int:
        """Steps of top-2 gating."""
        return self.evaluations * self.interval


FULL = TrainingExtent(
    sentiment=ModelSize(layers=2, hidden=128, heads=2, experts=16, vocabulary=2_048, length=20),
    generation=ModelSize(layers=2, hidden=128, heads=2, experts=16, vocabulary=128, length=64),
    samples=(24_000, 7_000),
    batch_sizes=(128, 32),
    evaluations=30,
    interval=8,
    seeds=3,
)
QUICK = TrainingExtent(
    sentiment=ModelSize(layers=2, hidden=64, heads=2, experts=16, vocabulary=2_048, length=20),
    generation=ModelSize(layers=2, hidden=64, heads=2, experts=16, vocabulary=128, length=64),
    samples=(6_000, 2_000),
    batch_sizes=(64, 16),
    evaluations=9,
    interval=8,
    seeds=1,
)

SchemeRuns = Mapping[TrainingScheme, ModelRun]
"""Runs of one task and seed, by scheme."""


def measure_gating_training(conditions: Conditions) -> Result:
    """Measure `gating_training_time_ratio`: processor time until adaptive gating with T = 0.1 and the
    curriculum reaches the final loss of top-2 gating, relative to top-2's time.
    """
    extent = QUICK if conditions.quick else FULL
    with one_thread():
        return gating_training(train_all(extent, conditions.seed, conditions.reviews), extent)


def train_all(
    extent: TrainingExtent, seed: int, reviews: Path
) -> dict[str, tuple[LearningTask, list[SchemeRuns]]]:
    """Return all runs, by task and then by seed."""
    of_sentiment, of_generation = zip(extent.samples, extent.batch_sizes, strict=True)
    tasks = (
        sentiment(extent.sentiment, *of_sentiment, reviews, seed),
        generation(extent.generation, *of_generation, seed),
    )
    schemes = (TOP_2, ADAPTIVE, ADAPTIVE_ON_ALL, TOP_1, DENSE)
    return {
        task.name: (
            task,
            [train_to_one_loss(task, schemes, seed + number, extent) for number in range(extent.seeds)],
        )
        for task in tasks
    }


def train_to_one_loss(
    task: LearningTask, schemes: Sequence[TrainingScheme], seed: int, extent: TrainingExtent
) -> SchemeRuns:
    """Train with each scheme, top-2 gating among them, until it reaches the final loss of top-2.

    They alternate, from measurement to measurement, so that a slowdown of the machine affects all of them.
    """
    trainings = {scheme: Training(task, scheme, seed) for scheme in schemes}
    for _ in range(extent.evaluations):
        for training in trainings.values():
            training.advance(extent.interval)
    target = trainings[TOP_2].run.losses[-1]
    late = list(trainings.values())
    for _ in range(round((_MOST_OF_TOP_2 - 1) * extent.evaluations)):
        late = [training for training in late if not training.run.reaches(target)]
        for training in late:
            training.advance(extent.interval)
    return {scheme: training.finish() for scheme, training in trainings.items()}


def time_ratio(runs: SchemeRuns, scheme: TrainingScheme) -> float:
    """Return the time to a loss relative to top-2, as a mean over the losses of top-2's last third; NaN if
    its last loss was not reached.
    """
    return _ratio(runs, scheme, ModelRun.time_to)


def steps_ratio(runs: SchemeRuns, scheme: TrainingScheme) -> float:
    """Return the steps to a loss relative to top-2, as in `time_ratio`."""
    return _ratio(runs, scheme, ModelRun.steps_to)


def _ratio(runs: SchemeRuns, scheme: TrainingScheme, reach: Callable[[ModelRun, float], float]) -> float:
    top_2 = runs[TOP_2]
    targets = top_2.losses[-max(len(top_2.losses) // 3, 1) :]
    ratio = mean(reach(runs[scheme], target) / reach(top_2, target) for target in targets)
    return ratio if math.isfinite(ratio) else math.nan


def gating_training(
    seen: Mapping[str, tuple[LearningTask, list[SchemeRuns]]], extent: TrainingExtent
) -> Result:
    """Return the figure and tables of the training."""
    ratios = {name: [time_ratio(runs, ADAPTIVE) for runs in by_seed] for name, (_, by_seed) in seen.items()}
    each = "; ".join(
        f"{name} ({seen[name][0].data}) {', '.join(f'{ratio:.2f}' for ratio in of)}"
        for name, of in ratios.items()
    )
    ratio = Measurement(
        "gating_training_time_ratio",
        mean(median(of) for of in ratios.values()),
        f"mean of the tasks' medians: {each}; processor time of one thread to the losses of the last third "
        f"of {extent.steps} steps of top-2, T = 0.1 with curriculum; {extent.sentiment.layers} layers, "
        f"{extent.sentiment.experts} experts of {extent.sentiment.hidden} x {4 * extent.sentiment.hidden}; "
        "thesis 0.77 and 0.89",
        runs=sum(len(of) for of in ratios.values()),
    )
    return Result((ratio,), (table_5_3(seen),))


def table_5_3(seen: Mapping[str, tuple[LearningTask, list[SchemeRuns]]]) -> Table:
    """Return time to equal loss, computation and quality of the schemes."""
    rows: list[dict[str, Value]] = []
    for name, (task, by_seed) in seen.items():
        for scheme in (DENSE, TOP_2, TOP_1, ADAPTIVE, ADAPTIVE_ON_ALL):
            runs = [of[scheme] for of in by_seed]
            doubles = mean(mean(run.doubles) for run in runs)
            thesis = TABLE_5_3[name][str(scheme).removesuffix(" all")]
            rows.append(
                {
                    "task": name,
                    "scheme": str(scheme),
                    "time": median(time_ratio(of, scheme) for of in by_seed),
                    "steps": median(steps_ratio(of, scheme) for of in by_seed),
                    "flops": task.size.flops_per_token(task.outputs_per_token, 1 + doubles),
                    "quality": mean(run.quality for run in runs),
                    "quality_as_trained": mean(run.quality_as_trained for run in runs),
                    "doubles_pct": 100.0 * doubles,
                    "first_doubles_pct": 100.0 * mean(run.first_doubles for run in runs),
                    "thesis_time": thesis[0],
                    "thesis_flops": thesis[1],
                    "thesis_quality": thesis[2],
                }
            )
    return Table("table_5_3", rows)
