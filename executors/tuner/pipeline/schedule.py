"""Order of the micro-batches of a step on a stage: one forward, one backward (1F1B).

The schedule of PipeDream-Flush and Megatron-LM (Narayanan et al. 2021, arXiv 2104.04473, section 2.2). A
stage idles as long as under GPipe, but keeps the activations of at most as many micro-batches as there are
stages from it to the last, where GPipe keeps those of all. For LoRA they are most of the memory of a step.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

Item = TypeVar("Item")


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
