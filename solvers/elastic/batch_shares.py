"""Division of a batch among workers of different speed."""

import heapq
from collections.abc import Sequence

_ROUNDING = 1e-9


def batch_shares(sequences: int, costs: Sequence[float]) -> list[int]:
    """Return the number of sequences of each worker for which the slowest worker is done first.

    A worker of far higher cost gets none. Of equally good workers, the first gets more. The thesis requires
    such a division for workers on several GPU types (section 3.6, erratum L4) and states no rule for it.

    Args:
        sequences: number of sequences in the batch.
        costs: time of one sequence on each worker, above 0, in any unit.
    """
    fluid_time = sequences / sum(1 / cost for cost in costs)
    # No optimum gives a worker less than it does in the time that divisible sequences would take.
    counts = [int(fluid_time / cost * (1 - _ROUNDING)) for cost in costs]
    ends = [(cost * (count + 1), rank) for rank, (cost, count) in enumerate(zip(costs, counts, strict=True))]
    heapq.heapify(ends)
    for _ in range(sequences - sum(counts)):
        _, rank = ends[0]
        counts[rank] += 1
        heapq.heapreplace(ends, (costs[rank] * (counts[rank] + 1), rank))
    return counts


def step_time(counts: Sequence[int], costs: Sequence[float]) -> float:
    """Return the time of a step: that of its slowest worker, in the unit of the costs."""
    return max(count * cost for count, cost in zip(counts, costs, strict=True))


def with_each(counts: Sequence[int]) -> list[int]:
    """Return the shares with at least one sequence for each worker, taken from the largest shares, as far as
    there are enough sequences."""
    shares = list(counts)
    for rank, count in enumerate(shares):
        largest = max(range(len(shares)), key=shares.__getitem__)
        if count == 0 and shares[largest] > 1:
            shares[largest] -= 1
            shares[rank] = 1
    return shares
