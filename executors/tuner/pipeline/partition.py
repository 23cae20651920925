"""Partition of a model's layers into stages, and of stages to ranks; order of the micro-batches on a stage.

The order is one forward, one backward (1F1B): the schedule of PipeDream-Flush and Megatron-LM (Narayanan et
al. 2021, arXiv 2104.04473, section 2.2). A stage is idle for the same time as under GPipe. But GPipe keeps
the activations of all micro-batches, and this schedule at most one micro-batch per stage from this one to the
last. For LoRA they are most of the memory of a step.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, TypeVar

Item = TypeVar("Item")

Direction = Literal["forward", "reverse"]
"""`forward`: rank 0 runs the first stage. `reverse`: the last rank does (Ymir, section 6.2, Figure 9)."""


class PartitionError(ValueError):
    """A model that cannot be cut as requested."""


def cut(costs: Sequence[float], stages: int) -> tuple[range, ...]:
    """Cut layers into neighbouring stages with the least cost of the most expensive stage.

    A pipeline is as fast as its slowest stage. Exact, by dynamic programming in O(stages * layers^2). Of
    equally good cuts, the one with the fewest layers in the last stage, then in the one before, and so on.

    Args:
        costs: cost of each layer, in any unit; embeddings count with the first layer, the head with the last.
        stages: number of stages.

    Returns:
        the layers of each stage; every stage has at least one.

    Raises:
        PartitionError: there are more stages than layers, or fewer than one; a cost is negative or not a
            number.
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise PartitionError(f"{stages} stages for {layers} layers: between 1 and {layers} are possible")
    if not all(cost >= 0 for cost in costs):
        raise PartitionError("the cost of a layer is negative or not a number")
    up_to = [0.0, *accumulate(costs)]
    # worst[end]: cost of the most expensive stage in the best cut of the first `end` layers, for the present
    # number of stages.
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
    """Return the stage that a rank runs for tasks of a direction; also the rank that runs a stage."""
    return rank if direction == "forward" else stages - 1 - rank


class Action(NamedTuple):
    """Next action of a stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> Iterator[Action]:
    """Yield the actions of a stage in one step: each micro-batch once forwards and once backwards."""
    ahead = min(stages - 1 - stage, micro_batches)
    for number in range(ahead):
        yield Action("forward", number)
    for number in range(ahead, micro_batches):
        yield Action("forward", number)
        yield Action("backward", number - ahead)
    for number in range(micro_batches - ahead, micro_batches):
        yield Action("backward", number)


def split(sequences: Sequence[Item], micro_batches: int) -> list[Sequence[Item]]:
    """Cut a batch into parts of neighbours with nearly equal counts; into fewer parts if it has fewer
    sequences."""
    if not sequences:
        return []
    count = min(micro_batches, len(sequences))
    bounds = [len(sequences) * number // count for number in range(count + 1)]
    return [sequences[start:end] for start, end in pairwise(bounds)]
