"""Evidence from past merges that a merge pays: targets forecast, savings, and permission for trials.

The gain G is the final quality of a merge; a schedule gets shorter only if the target is met *sooner*. Two
regressions (`pairs`) on past merges forecast that. One is on the margin of the best accuracy above the
target, for the probability that the target is met. The other, over the merges that met it, is on the ratio of
the epochs needed to those needed alone. The value of a merge, in epochs of the receiver, is its saving if the
target is met, less the loss until the safety net undoes it if not (section 4.3: two epochs).

The saving of a merge is counted in parts of the epochs that its receiver needs alone. A merge that was undone
counts with the epochs trained in vain, so the mean of past savings contains the expected loss. A merge is
`shown` to pay if the lower confidence bound of that mean is at least `LEAST_SAVING`, and most similar merges
have paid. While it cannot be predicted which merges pay, none is made.

Without such evidence, single merges may be made as trials. Trials of a receiving task in a mode end with the
first that does not pay, or after `MOST_TRIALS` that paid. All trials of a mode end when two more have failed
than paid. The zone bounds the cost of all trials (`Knowledge.may_try`).

Both require that a job of the receiving kind has ended alone. Otherwise the saving is unknown, and there is
no reference for the accuracy after the watched epochs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from schemas.merging.estimates import Evidence, MergeMode
from solvers.merging.pairs import SCALE, Candidate, regress

WATCHED_EPOCHS: Final = 2.0
"""Epochs without a gain after which a merge is undone."""
_LARGEST_LOG: Final = 20.0
"""Largest logarithm of epochs merged over those alone; beyond it, extrapolated effects are meaningless."""

CONFIDENCE: Final = 1.0
"""Standard deviations from the mean to the bound: five of six means are above the bound."""
LEAST_SAVING: Final = 0.05
"""Least saving, as a part of a receiver's epochs, that outweighs the delay of a merge."""
MOST_LOST: Final = 2.0
"""Largest counted loss, as a part of a receiver's epochs: a larger one, of a short job, adds no evidence."""
MOST_TRIALS: Final = 3
"""Most trials of a receiving task in a mode: after so many that all paid, the bound decides."""
_FAILURES_AHEAD: Final = 1
"""Largest excess of failed over paid trials of a mode with which trials go on."""
_LEAST_OF_A_TASK: Final = 3
"""Least merges of a receiving task that count instead of all merges of the mode."""
_SIGN_CONFIDENCE: Final = 0.84
"""Confidence of Wilson's bound, in standard deviations."""


class MergeResult(NamedTuple):
    """Finished merge, from the view of its receiver."""

    merge: Candidate
    target: float
    """Accuracy that the receiver was to reach, above 0."""
    best: float
    """Best accuracy that it reached."""
    epochs: float | None
    """Epochs in which it met the target; None if it never did."""
    own_epochs: float
    """Epochs that it needed alone, or was forecast to need."""
    lost_epochs: float | None = None
    """Epochs trained in vain in a merge that was undone; None if unknown."""


class MergeQuestion(NamedTuple):
    merge: Candidate
    own_epochs: float
    """Epochs that the receiver is forecast to need alone."""


class TargetForecast(NamedTuple):
    probability: float
    """Probability that the target is met."""
    epochs: float
    """Median forecast of the epochs, if it is met."""
    own_epochs: float

    @property
    def saved_epochs(self) -> float:
        """Expected saving of the receiver's own epochs; negative for a merge that should not be made."""
        saved = self.own_epochs - self.epochs
        return self.probability * saved - (1.0 - self.probability) * WATCHED_EPOCHS


def forecast_targets(results: Sequence[MergeResult], asked: Sequence[MergeQuestion]) -> list[TargetForecast]:
    """Forecast merges, each for its receiver.

    For a temporal merge, ask only for the receiver: its donor trains as without the merge. For a spatial one,
    ask for both directions: it ends when both have met their targets.

    Args:
        results: oldest first.
        asked: in any order.

    Returns:
        One forecast per question. Without results: even chances of needing as many epochs as alone.

    Raises:
        ValueError: a target or a number of epochs is not above 0; the message names the pair.
    """
    if not asked:
        return []
    for result in results:
        epochs = result.own_epochs if result.epochs is None else min(result.epochs, result.own_epochs)
        if not min(result.target, epochs) > 0:
            raise ValueError(f"target and epochs must be above 0: {result}")
    merges = [question.merge for question in asked]
    margins = [(r.merge, math.asinh((r.best - r.target) / r.target / SCALE)) for r in results]
    ratios = [(r.merge, math.log(r.epochs / r.own_epochs)) for r in results if r.epochs is not None]
    return [
        TargetForecast(
            margin.positive,
            question.own_epochs * math.exp(min(max(ratio.mean, -_LARGEST_LOG), _LARGEST_LOG)),
            question.own_epochs,
        )
        for margin, ratio, question in zip(
            regress(margins, merges), regress(ratios, merges), asked, strict=True
        )
    ]


class Saving(NamedTuple):
    """Estimated saving of a merge's receiver, as a part of the epochs that it needs alone."""

    mean: float
    least: float
    """Lower confidence bound."""


class _Count(NamedTuple):
    paid: int = 0
    failed: int = 0

    def with_one(self, paid: bool) -> "_Count":
        return _Count(self.paid + paid, self.failed + (not paid))

    @property
    def mostly_pays(self) -> bool:
        """Whether the lower bound of the share that has paid is above one half (Wilson 1927)."""
        count = self.paid + self.failed
        if not count:
            return False
        share, z2 = self.paid / count, _SIGN_CONFIDENCE**2
        margin = _SIGN_CONFIDENCE * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
        return (share + z2 / (2 * count) - margin) / (1 + z2 / count) > 0.5


class PastMerges:
    """Results of merges so far."""

    def __init__(self, results: Sequence[MergeResult], watched_epochs: float) -> None:
        """
        Args:
            results: oldest first.
            watched_epochs: assumed cost of an undone merge whose cost is unknown.
        """
        self._watched_epochs = watched_epochs
        self._savings = [(result.merge, self._saved(result)) for result in results]
        self._of_task: dict[tuple[MergeMode, str, bool], _Count] = {}
        self._of_mode: dict[tuple[MergeMode, bool], _Count] = {}
        for merge, saved in self._savings:
            key = _group(merge)
            self._of_task[key] = self._of_task.get(key, _Count()).with_one(saved > 0)
            like = _mode(merge)
            self._of_mode[like] = self._of_mode.get(like, _Count()).with_one(saved > 0)

    def savings(self, asked: Sequence[Candidate]) -> list[Saving]:
        """Return the saving of each candidate for its receiver."""
        if not asked:
            return []
        return [
            Saving(prediction.mean, prediction.mean - CONFIDENCE * prediction.doubt)
            for prediction in regress(self._savings, asked)
        ]

    def evidence(self, learners: Mapping[Candidate, Saving], ratios: Sequence[float]) -> Evidence:
        """Return the evidence that decides whether a merge may be made.

        Args:
            learners: the merge from the view of each job that learns from the other. A job of each of their
                kinds has ended alone.
            ratios: part of its iterations that each of them is expected to need.
        """
        if all(
            saving.least >= LEAST_SAVING and self._like(learner).mostly_pays
            for learner, saving in learners.items()
        ):
            return "shown"
        is_promising = min(ratios) < 1.0 and all(map(self._may_be_tried, learners))
        return "trial" if is_promising else "none"

    def _like(self, learner: Candidate) -> _Count:
        of_task = self._of_task.get(_group(learner), _Count())
        return of_task if sum(of_task) >= _LEAST_OF_A_TASK else self._of_mode.get(_mode(learner), _Count())

    def _may_be_tried(self, learner: Candidate) -> bool:
        of_task = self._of_task.get(_group(learner), _Count())
        of_mode = self._of_mode.get(_mode(learner), _Count())
        if of_task.failed or of_task.paid >= MOST_TRIALS:
            return False
        if learner.donor == learner.receiver:  # only in a mode that has paid for different tasks
            others = self._of_mode.get((learner.mode, False), _Count())
            return of_mode.failed <= of_mode.paid and others.failed < others.paid
        return of_mode.failed <= of_mode.paid + _FAILURES_AHEAD

    def _saved(self, result: MergeResult) -> float:
        if result.epochs is not None:
            epochs = result.epochs
        else:
            lost = self._watched_epochs if result.lost_epochs is None else result.lost_epochs
            epochs = result.own_epochs + lost
        return max(1.0 - epochs / result.own_epochs, -MOST_LOST)


def _group(merge: Candidate) -> tuple[MergeMode, str, bool]:
    """Return the key of merges of a receiving task; merges with jobs of the same task have their own."""
    return merge.mode, merge.receiver, merge.donor == merge.receiver


def _mode(merge: Candidate) -> tuple[MergeMode, bool]:
    """Return the key of merges of a mode; merges of jobs of the same task have their own."""
    return merge.mode, merge.donor == merge.receiver
