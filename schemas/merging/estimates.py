"""Problems of a merging zone for a solver: forecasts of its jobs' iterations and gains, with the
solutions."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import PositiveSamples, Record
from schemas.fleet import Loss
from schemas.kind import Problem, Solution
from schemas.merging.reports import MAX_TRACE
from schemas.merging.workload import LEAST_ACCURACY, MAX_ITERATIONS, Accuracy

MAX_KINDS = 32
"""Most kinds of sharing jobs in one problem, those with the most jobs. Jobs of other kinds run unmerged."""
MAX_OUTCOMES = 512
MAX_FINISHED = 256
MAX_SCORE = 1e6
MAX_GAIN = 1_000.0
MAX_RATIO = 1_000.0
Ratio = Annotated[float, Field(ge=1 / MAX_RATIO, le=MAX_RATIO)]
"""Ratio of the iterations that a job needs merged to those that it needs alone."""
Epochs = Annotated[float, Field(ge=1e-12, le=MAX_ITERATIONS)]
"""Epochs of a run, at most `MAX_ITERATIONS`."""
EstimatorName = Literal["published", "learned"]
"""Estimator of iterations and gains. `published`: the printed one, of Eqs. 1 to 4. `learned`: by the results
of the zone's jobs and merges."""
MergeMode = Literal["temporal", "spatial"]
MERGE_MODES: tuple[MergeMode, ...] = ("temporal", "spatial")
TaskName = Annotated[str, Field(min_length=1, max_length=64)]
"""Digest of a task: of its training and validation data."""


class KindFacts(Record):
    """Measurements of jobs of equal data and hyperparameters."""

    task: TaskName
    dataset_samples: Annotated[int, Field(ge=1)]
    losses: Annotated[tuple[Loss, ...], Field(max_length=MAX_TRACE)]
    """Losses of the profile run, one per iteration."""
    iterations_per_epoch: Annotated[int, Field(ge=1)]
    most_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]
    accuracy_before: Accuracy | None
    """Accuracy before the first iteration."""
    accuracy_after_epoch: Accuracy | None = None
    """Accuracy after the first epoch; None if the profile run ended before."""
    target_accuracy: Accuracy | None
    finished_iterations: float | None
    """Mean iterations of jobs that ran alone to their targets; None before the first."""
    finished_accuracy: Accuracy | None
    """Mean of their best accuracies."""


class FinishedKind(Record):
    """Epochs and results of jobs of a kind that ran alone."""

    task: TaskName
    share: Annotated[float, Field(gt=0, le=1)]
    """Mean part of the allowed iterations that they needed."""


class PairScore(Record):
    """Similarity of two kinds, from their embeddings."""

    donor: Annotated[int, Field(ge=0)]
    """Index into `EstimateProblem.kinds`."""
    receiver: Annotated[int, Field(ge=0)]
    score: float
    """Similarity S(A, B)."""


class PastMerge(Record):
    """Result of a merge for one of its jobs."""

    mode: MergeMode
    donor: TaskName
    donor_samples: PositiveSamples
    receiver: TaskName
    """Task of the result. A spatial merge has two entries, one for each of its jobs."""
    receiver_samples: PositiveSamples
    score: Annotated[float, Field(ge=-MAX_SCORE, le=MAX_SCORE)] | None
    """Similarity S(A, B); None if not measured."""
    gain: Annotated[float, Field(gt=-1, le=MAX_GAIN)] | None
    """Gain of its accuracy (G, Eq. 1); None if its accuracy alone after as many epochs is unknown."""
    target: Annotated[float, Field(ge=LEAST_ACCURACY, le=1)] | None
    """Target accuracy, or the mean that jobs of its kind reached alone; None without both."""
    best: Accuracy
    """Best accuracy that it reached."""
    epochs: Epochs | None
    """Epochs until it met that accuracy; None if it did not."""
    own_epochs: Epochs
    """Epochs that it would have needed alone."""
    lost_epochs: Annotated[float, Field(ge=0, le=MAX_ITERATIONS)] | None = None
    """Epochs of a merge that was undone, whose result was discarded; None if unknown."""


class EstimateProblem(Problem):
    """Problem of the iterations that jobs need alone and merged."""

    kind: Literal["estimate"] = "estimate"
    estimator: EstimatorName = "learned"
    modes: tuple[MergeMode, ...]
    kinds: Annotated[tuple[KindFacts, ...], Field(min_length=1, max_length=MAX_KINDS)]
    finished: Annotated[tuple[FinishedKind, ...], Field(max_length=MAX_FINISHED)]
    """Kinds with jobs that ran alone to their end."""
    scores: Annotated[tuple[PairScore, ...], Field(max_length=MAX_KINDS**2)]
    outcomes: Annotated[tuple[PastMerge, ...], Field(max_length=MAX_OUTCOMES)]
    watched_epochs: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of epochs without a gain after which a merge is undone."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Sizes of the problem, see `Problem`."""
        return {"kinds": len(self.kinds), "merges": len(self.outcomes)}


LossFault = Literal[
    "too_few_losses",
    "loss_not_finite",
    "loss_negative",
    "losses_all_zero",
    "losses_scatter",
    "flat_loss_curve",
]
"""Fault of a loss trace. `losses_scatter`: no fall of the loss exceeds the scatter of single batches.
`flat_loss_curve`: the best fitting curve does not fall."""


class KindEstimate(Record):
    """Forecast for jobs of a kind that run alone."""

    iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]
    """Iterations of the job: until its loss is flat (K_i, Eq. 2) by the published estimator, until its target
    by the learned one."""
    fault: LossFault | None = None
    """Fault of its loss trace; None without one."""
    task: TaskName | None = None
    """Task; repeated because the problem is not logged."""


Evidence = Literal["none", "trial", "shown"]
"""Evidence for a merge. `shown`: past merges show that it saves iterations, even at the lower confidence
bound. `trial`: they do not show it yet, and a single merge may be made as a trial. `none`: it is not to be
made."""


class TransferEstimate(Record):
    """Forecast for a merge of two kinds of jobs."""

    mode: MergeMode
    donor: Annotated[int, Field(ge=0, le=MAX_KINDS - 1)]
    """Index into the kinds. For a spatial merge, the smaller one of both."""
    receiver: Annotated[int, Field(ge=0, le=MAX_KINDS - 1)]
    receiver_gain: Annotated[float, Field(ge=-MAX_GAIN, le=MAX_GAIN)]
    receiver_ratio: Ratio
    """Iterations that the receiver needs, over those alone. A job without a target has all of its iterations:
    the ratio is that of the iterations until it is as good as jobs of its kind at their ends."""
    donor_gain: Annotated[float, Field(ge=-MAX_GAIN, le=MAX_GAIN)] = 0.0
    """Gain of the other job of a spatial merge."""
    donor_ratio: Ratio = 1.0
    evidence: Evidence = "shown"
    receiver_bound: Ratio | None = None
    """Upper confidence bound of `receiver_ratio` by past merges. A plan assumes it, or `receiver_ratio`
    without it."""
    donor_bound: Ratio | None = None


class EstimateSolution(Solution):
    """Estimates in the order of the kinds. Missing pairs are not to be merged."""

    kind: Literal["estimate"] = "estimate"
    kinds: Annotated[tuple[KindEstimate, ...], Field(min_length=1, max_length=MAX_KINDS)]
    transfers: Annotated[tuple[TransferEstimate, ...], Field(max_length=2 * MAX_KINDS**2)]
