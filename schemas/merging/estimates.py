"""Questions of a merging zone to a solver about its jobs' progress and gains, and the answers."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import PositiveSamples, Record
from schemas.fleet import Loss
from schemas.kind import Problem, Solution
from schemas.merging.reports import MAX_TRACE
from schemas.merging.workload import LEAST_ACCURACY, MAX_ITERATIONS, Accuracy

MAX_KINDS = 32
"""Most kinds of jobs that share which are considered together, those with the most jobs. The others run
unmerged."""
MAX_OUTCOMES = 512
MAX_FINISHED = 256
MAX_SCORE = 1e6
MAX_GAIN = 1_000.0
MAX_RATIO = 1_000.0
Ratio = Annotated[float, Field(ge=1 / MAX_RATIO, le=MAX_RATIO)]
"""Ratio of the iterations that a job needs merged to those that it needs alone."""
Epochs = Annotated[float, Field(ge=1e-12, le=MAX_ITERATIONS)]
"""From one iteration on the largest data to as many as there may be on data of one batch."""
MergeMode = Literal["temporal", "spatial"]
MERGE_MODES: tuple[MergeMode, ...] = ("temporal", "spatial")
TaskName = Annotated[str, Field(min_length=1, max_length=64)]
"""Digest of what makes a task: its training and validation data."""


class KindFacts(Record):
    """Measurements of jobs of equal data and hyperparameters."""

    task: TaskName
    dataset_samples: Annotated[int, Field(ge=1)]
    losses: Annotated[tuple[Loss, ...], Field(max_length=MAX_TRACE)]
    """Losses of the profile run, one for each iteration."""
    iterations_per_epoch: Annotated[int, Field(ge=1)]
    most_iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]
    accuracy_before: Accuracy | None
    """Before the first iteration."""
    accuracy_after_epoch: Accuracy | None = None
    """After the first epoch; None where the profile run was over before."""
    target_accuracy: Accuracy | None
    finished_iterations: float | None
    """Mean of its jobs that ran alone to their target; None before the first."""
    finished_accuracy: Accuracy | None
    """The best that they reached, in the mean."""


class FinishedKind(Record):
    """Epochs and results of jobs of a kind that ran alone."""

    task: TaskName
    share: Annotated[float, Field(gt=0, le=1)]
    """The part of the iterations that they were allowed, in the mean."""


class PairScore(Record):
    """Similarity of two kinds, from their embeddings."""

    donor: Annotated[int, Field(ge=0)]
    """Index into `EstimateProblem.kinds`."""
    receiver: Annotated[int, Field(ge=0)]
    score: float
    """S(A, B)."""


class PastMerge(Record):
    """Result of a merge for one of its jobs."""

    mode: MergeMode
    donor: TaskName
    donor_samples: PositiveSamples
    receiver: TaskName
    """Task whose result it is. A spatial merge has two entries, one for each of its jobs."""
    receiver_samples: PositiveSamples
    score: Annotated[float, Field(ge=-MAX_SCORE, le=MAX_SCORE)] | None
    """S(A, B); None where it was not measured."""
    gain: Annotated[float, Field(gt=-1, le=MAX_GAIN)] | None
    """Gain of its accuracy (G, Eq. 1); None if it is not known what it would have reached alone."""
    target: Annotated[float, Field(ge=LEAST_ACCURACY, le=1)] | None
    """The accuracy that it was to reach; None if only iterations counted."""
    best: Accuracy
    """The accuracy that it reached."""
    epochs: Epochs | None
    """In which it met its target; None if it did not."""
    own_epochs: Epochs
    """That it would have needed alone."""
    lost_epochs: Annotated[float, Field(ge=0, le=MAX_ITERATIONS)] | None = None
    """Epochs of a merge that was undone, whose result was discarded; None where that is not known."""


class EstimateProblem(Problem):
    """Question for the iterations that jobs need alone and merged."""

    kind: Literal["estimate"] = "estimate"
    modes: tuple[MergeMode, ...]
    kinds: Annotated[tuple[KindFacts, ...], Field(min_length=1, max_length=MAX_KINDS)]
    finished: Annotated[tuple[FinishedKind, ...], Field(max_length=MAX_FINISHED)]
    """Kinds of which jobs have run alone to their end."""
    scores: Annotated[tuple[PairScore, ...], Field(max_length=MAX_KINDS**2)]
    outcomes: Annotated[tuple[PastMerge, ...], Field(max_length=MAX_OUTCOMES)]
    watched_epochs: Annotated[int, Field(ge=1, le=100)] = 2
    """After so many epochs without a gain a merge is undone."""

    @property
    def counts(self) -> Mapping[str, int]:
        """See `Problem`."""
        return {"kinds": len(self.kinds), "merges": len(self.outcomes)}


LossFault = Literal[
    "too_few_losses",
    "loss_not_finite",
    "loss_negative",
    "losses_all_zero",
    "losses_scatter",
    "flat_loss_curve",
]
"""`losses_scatter`: no fall of the loss stands out from the scatter of single batches. `flat_loss_curve`: the
curve that fits best does not fall."""


class KindEstimate(Record):
    """Forecast for jobs of a kind that run alone."""

    iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)]
    """Until the target (K_i, Eq. 2)."""
    fault: LossFault | None = None
    """Why its loss trace is of no use; None where it is of use."""
    task: TaskName | None = None
    """Task of the kind, from the question: the log has the answer, and not the question."""


Evidence = Literal["none", "trial", "shown"]
"""Why a merge may be made. `shown`: past merges show that it saves iterations, even at the lower confidence
bound. `trial`: they do not show it yet, and a single merge may be made to learn more. `none`: it is not to be
made."""


class TransferEstimate(Record):
    """Forecast for a merge of two kinds of jobs."""

    mode: MergeMode
    donor: Annotated[int, Field(ge=0, le=MAX_KINDS - 1)]
    """Index into the kinds. Of a spatial merge, the smaller one of both."""
    receiver: Annotated[int, Field(ge=0, le=MAX_KINDS - 1)]
    receiver_gain: Annotated[float, Field(ge=-MAX_GAIN, le=MAX_GAIN)]
    receiver_ratio: Ratio
    """Iterations that it needs over those alone."""
    donor_gain: Annotated[float, Field(ge=-MAX_GAIN, le=MAX_GAIN)] = 0.0
    """Gain of the other job of a spatial merge."""
    donor_ratio: Ratio = 1.0
    evidence: Evidence = "shown"
    receiver_bound: Ratio | None = None
    """The upper confidence bound of `receiver_ratio` that past merges leave. A plan counts on it, or on
    `receiver_ratio` where it is None."""
    donor_bound: Ratio | None = None


class EstimateSolution(Solution):
    """Answers in the order of the kinds. Pairs that are missing are not to be merged."""

    kind: Literal["estimate"] = "estimate"
    kinds: Annotated[tuple[KindEstimate, ...], Field(min_length=1, max_length=MAX_KINDS)]
    transfers: Annotated[tuple[TransferEstimate, ...], Field(max_length=2 * MAX_KINDS**2)]
