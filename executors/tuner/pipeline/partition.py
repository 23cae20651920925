"""How a model's layers are cut into stages, and which rank runs which stage."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal

Direction = Literal["forward", "reverse"]
"""`forward`: rank 0 runs the first stage. `reverse`: the last rank does (Ymir, section 6.2, Figure 9)."""


class PartitionError(ValueError):
    """A model that cannot be cut as asked."""


def cut(costs: Sequence[float], stages: int) -> tuple[range, ...]:
    """Cut layers into neighbouring stages so that the most expensive stage is as cheap as can be.

    A pipeline is as fast as its slowest stage. Exact, by dynamic programming in O(stages * layers^2). Of
    equally good cuts, the one with the fewest layers in the last stage, then in the one before, and so on.

    Args:
        costs: of each layer, in any unit; embeddings count with the first layer, the head with the last.
        stages: how many.

    Returns:
        the layers of each stage; every stage has at least one.

    Raises:
        PartitionError: there are more stages than layers, or fewer than one; a cost is negative or no number.
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise PartitionError(f"{stages} stages for {layers} layers: between 1 and {layers} are possible")
    if not all(cost >= 0 for cost in costs):
        raise PartitionError("the cost of a layer is negative or not a number")
    up_to = [0.0, *accumulate(costs)]
    # worst[end]: the most expensive stage of the best cut of the first `end` layers into so many stages.
    worst = up_to[:]
    starts: list[list[int]] = []
    for stage in range(1, stages):
        best = [float("inf")] * (layers + 1)
        chosen = [0] * (layers + 1)
        for end in range(stage + 1, layers + 1):
            for start in range(stage, end):
                cost = max(worst[start], up_to[end] - up_to[start])
                if cost <= best[end]:
                    best[end], chosen[end] = cost, start
        worst = best
        starts.append(chosen)
    ends = [layers]
    for chosen in reversed(starts):
        ends.append(chosen[ends[-1]])
    bounds = [0, *reversed(ends)]
    return tuple(range(start, end) for start, end in pairwise(bounds))


def stage_of(rank: int, stages: int, direction: Direction) -> int:
    """The stage that a rank runs for tasks of a direction; likewise the rank that runs a stage."""
    return rank if direction == "forward" else stages - 1 - rank
