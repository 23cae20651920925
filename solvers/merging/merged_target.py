"""Forecast whether a merged job reaches its accuracy target, and in how many epochs, from other pairs.

The gain G is the final quality of a merge; a schedule gets shorter only if the target is met *sooner*. The
forecast uses two regressions (`pairs`) on past merges. One is on the margin of the best accuracy above the
target, for the probability that the target is met. The other, over the merges that met it, is on the ratio of
the epochs needed to those needed alone.

The value of a merge, in epochs of the receiver, is its saving if the target is met, less the loss until the
safety net undoes it if not (section 4.3: two epochs).
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from solvers.merging.gain import SCALE
from solvers.merging.pairs import Candidate, regress

WATCHED_EPOCHS: Final = 2.0
"""Epochs without a gain after which a merge is undone."""
_LARGEST_LOG: Final = 20.0
"""Largest logarithm of epochs merged over those alone; beyond it, extrapolated effects are meaningless."""


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
