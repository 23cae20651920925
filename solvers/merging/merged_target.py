"""Whether a merged job reaches its accuracy target, and in how many epochs, from what came of other pairs.

The gain G says how good a merge is in the end; a schedule gets shorter only if the target is met *sooner*.
Two regressions (`pairs`) on past merges answer: one on the margin by which the best accuracy was above or
below the target, for the probability that it is met at all; and one, over the merges that met it, on the
ratio of the epochs needed to those needed alone.

What a merge is worth, in epochs of the receiver, is what it saves if the target is met, against what is lost
until the safety net undoes it (section 4.3: two epochs) if not.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from solvers.merging.gain import SCALE
from solvers.merging.pairs import Candidate, regress

WATCHED_EPOCHS: Final = 2.0
"""After so many without a gain a merge is undone."""
_LARGEST_LOG: Final = 20.0
"""Logarithm of epochs merged over those alone, beyond which extrapolated effects mean nothing."""


class MergeResult(NamedTuple):
    """A merge that was made, seen from its receiver."""

    merge: Candidate
    target: float
    """Above 0: the accuracy that the receiver was to reach."""
    best: float
    """Best value that it reached."""
    epochs: float | None
    """In how many epochs it met the target; None if it never did."""
    own_epochs: float
    """Number that it needed alone, or was forecast to need."""
    lost_epochs: float | None = None
    """In which it was trained in vain, of a merge that was undone; None where that is not known."""


class MergeQuestion(NamedTuple):
    merge: Candidate
    own_epochs: float
    """Number that the receiver is forecast to need alone."""


class ForetoldTarget(NamedTuple):
    probability: float
    """That the target is met at all."""
    epochs: float
    """In how many, if it is; the median of what is believed."""
    own_epochs: float

    @property
    def saved_epochs(self) -> float:
        """Expected, of the receiver's own epochs: below zero for a merge that is better not made."""
        saved = self.own_epochs - self.epochs
        return self.probability * saved - (1.0 - self.probability) * WATCHED_EPOCHS


def foretell_targets(results: Sequence[MergeResult], asked: Sequence[MergeQuestion]) -> list[ForetoldTarget]:
    """Foretell merges, each from its receiver's side.

    Of a temporal merge ask for the receiver alone: its donor trains as it would without. Of a spatial one ask
    for both directions: it ends when both have met their targets.

    Args:
        results: oldest first.
        asked: in any order.

    Returns:
        one per question. Without results: even chances of needing as many epochs as alone.

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
        ForetoldTarget(
            margin.positive,
            question.own_epochs * math.exp(min(max(ratio.mean, -_LARGEST_LOG), _LARGEST_LOG)),
            question.own_epochs,
        )
        for margin, ratio, question in zip(
            regress(margins, merges), regress(ratios, merges), asked, strict=True
        )
    ]
