"""Routes of rows: from a rank's rows by expert to rows by device and slot, and there by slot."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.compiled import Ints
from solvers.experts.placement import ExpertPlacement


@dataclass(frozen=True, eq=False)
class Route:
    """Route of a layer's rows, on one rank.

    Attributes:
        order: `(sent,)`, indices of the rank's rows, sorted by expert, in the order of sending: by device and
            then by slot.
        sent: rows to each rank.
        received: rows from each rank.
        arrangement: `(received,)`, the received rows sorted by slot of this rank's device.
        counts: `(slots,)`, received rows of each slot.
    """

    order: Ints
    sent: list[int]
    received: list[int]
    arrangement: Ints
    counts: Ints


def route_of(placement: ExpertPlacement, sends: Ints, rank: int, slots: Sequence[int], size: int) -> Route:
    """Return the route of one rank's rows.

    Args:
        sends: `(ranks, devices, slots)` rows from each rank to each slot of the placement.
        slots: slots of the device for its experts, in the order of the placement.
        size: slots of its device.
    """
    mine, theirs = sends[rank], sends[:, rank, :]
    # Rows are sorted by expert: in that order, and by device for each, slots have consecutive spans.
    by_expert = np.argsort(placement.experts.ravel(), kind="stable")
    lengths = mine.ravel()
    starts = np.empty_like(lengths)
    starts[by_expert] = _before(lengths[by_expert])
    # They arrive by rank, and for each in the order of the placement.
    arrives = _before(theirs.ravel()).reshape(theirs.shape)
    columns = np.argsort(slots, kind="stable")
    counts = np.zeros(size, np.int64)
    counts[list(slots)] = theirs.sum(axis=0)[: len(slots)]
    return Route(
        order=_spans(starts, lengths),
        sent=mine.sum(axis=1).tolist(),
        received=theirs.sum(axis=1).tolist(),
        arrangement=_spans(arrives.T[columns].ravel(), theirs.T[columns].ravel()),
        counts=counts,
    )


def spread_evenly(tokens: Ints) -> Ints:
    """Return counts (ranks, experts) with the same sum per rank, but spread evenly over the experts.

    Sums over the ranks differ by one at most, and the first experts have more: `Scheme.settle` splits these
    if a scheme balances gating.

    Args:
        tokens: (ranks, experts) counts.
    """
    experts = tokens.shape[1]
    ends = np.cumsum(tokens.sum(axis=1))[:, None]
    begins = ends - tokens.sum(axis=1)[:, None]
    # Token t of all goes to expert t modulo their number.
    numbers = np.arange(experts)
    until_end = (ends - numbers + experts - 1) // experts
    until_begin = (begins - numbers + experts - 1) // experts
    spread: Ints = until_end - until_begin
    return spread


def _before(lengths: Ints) -> Ints:
    before: Ints = np.cumsum(lengths) - lengths
    return before


def _spans(starts: Ints, lengths: Ints) -> Ints:
    """Return the indices of spans, one span after another."""
    return np.arange(int(lengths.sum())) + np.repeat(starts - _before(lengths), lengths)
