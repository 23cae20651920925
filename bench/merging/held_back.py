"""Foretelling merges from others only: which outcomes an estimator may see for each that it is asked.

Three splits, each harder than the one before. None ever shows an outcome of the two tasks together, in either
direction or mode.

- `pair`: all outcomes of other pairs.
- `receiver`: of those, none with this receiver as receiver. What is known of it is how it did as a donor.
- `newcomer`: none with either of the two tasks.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from bench.merging.known import KnownMerge
from solvers.merging.gain import GainForecast, GainModel, GainOutcome
from solvers.merging.merged_target import MergeQuestion, MergeResult, TargetForecast, forecast_targets

Split = Literal["pair", "receiver", "newcomer"]
SPLITS: tuple[Split, ...] = ("pair", "receiver", "newcomer")

T = TypeVar("T")


def visible(merges: Sequence[KnownMerge], asked: KnownMerge, split: Split) -> list[KnownMerge]:
    """What may be seen of all merges of a base model when one of them is foretold."""
    donor, receiver = asked.candidate.donor, asked.candidate.receiver

    def seen(other: KnownMerge) -> bool:
        if other.tasks == asked.tasks:
            return False
        if split == "receiver":
            return other.candidate.receiver != receiver
        return split == "pair" or not other.tasks & {donor, receiver}

    return [other for other in merges if seen(other)]


def foretold_gains(merges: Sequence[KnownMerge], split: Split, model: GainModel) -> list[GainForecast]:
    """Of each merge, from what it may see."""
    return _each(
        merges,
        split,
        lambda seen, asked: model.forecast(
            [GainOutcome(merge.candidate, merge.gain) for merge in seen], [merge.candidate for merge in asked]
        ),
    )


def foretold_targets(merges: Sequence[KnownMerge], split: Split) -> list[TargetForecast]:
    """Of each merge, from what it may see; how long the receiver takes alone is known."""
    return _each(
        merges,
        split,
        lambda seen, asked: forecast_targets(
            [MergeResult(m.candidate, m.target, m.best, m.epochs, m.own_epochs) for m in seen],
            [MergeQuestion(merge.candidate, merge.own_epochs) for merge in asked],
        ),
    )


def _each(
    merges: Sequence[KnownMerge],
    split: Split,
    forecast: Callable[[list[KnownMerge], list[KnownMerge]], list[T]],
) -> list[T]:
    """Merges that may see the same are foretold with one fit."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, merge in enumerate(merges):
        seen = visible(merges, merge, split)
        groups.setdefault(tuple(map(id, seen)), []).append(index)
    found: dict[int, T] = {}
    for indices in groups.values():
        seen = visible(merges, merges[indices[0]], split)
        answers = forecast(seen, [merges[index] for index in indices])
        found |= dict(zip(indices, answers, strict=True))
    return [found[index] for index in range(len(merges))]
