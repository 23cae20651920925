"""Parts of a shared adapter by job: the low-rank matrices, and the job's own head.

The flat vector of a shared run has the matrices, then the head of each job in the order of the command. For a
language model, heads are empty and each job uses the whole vector.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from executors.lora.adapter import AdapterLayout
from executors.lora.task import AdapterState

_Change = Callable[[Tensor], Tensor]


def own_state(layout: AdapterLayout, state: AdapterState, head: int) -> AdapterState:
    """Return the state of one job.

    Args:
        layout: layout of one job alone.
        state: state of the shared adapter.
        head: number of the job's head.
    """
    start = layout.shared_size + head * layout.head_size

    def cut(flat: Tensor) -> Tensor:
        return torch.cat([flat[: layout.shared_size], flat[start : start + layout.head_size]])

    return _changed(state, cut, cut, cut)


def head_of(layout: AdapterLayout, state: AdapterState, head: int) -> Tensor:
    """Return one head of an adapter: its parameters and both moments, float32 ``[3, head size]``."""
    start = layout.shared_size + head * layout.head_size
    vectors = state.parameters, state.first_moment, state.second_moment
    return torch.stack([flat[start : start + layout.head_size] for flat in vectors])


def shared_state(layout: AdapterLayout, own: AdapterState, head: int, other: Tensor) -> AdapterState:
    """Return the state of the adapter of a shared run, from one job's own and the other's head: the inverse
    of `own_state` and `head_of`.

    Args:
        layout: layout of one job alone.
        own: state of one job.
        head: place of the job in the command.
        other: head of the other job, float32 ``[3, head size]``.
    """

    def with_other(row: int) -> _Change:
        def joined(flat: Tensor) -> Tensor:
            shared, mine = flat[: layout.shared_size], flat[layout.shared_size :]
            heads = [mine, other[row]] if head == 0 else [other[row], mine]
            return torch.cat([shared, *heads])

        return joined

    return _changed(own, with_other(0), with_other(1), with_other(2))


def fresh_from(donor: AdapterState, layout: AdapterLayout) -> AdapterState:
    """Return the first state of the receiver of a temporal merge: the donor's low-rank matrices, the head of
    a new job, and a new optimizer.

    Args:
        layout: layout of either job alone.
    """
    return AdapterState(
        parameters=layout.reset_heads(donor.parameters),
        first_moment=torch.zeros_like(donor.first_moment),
        second_moment=torch.zeros_like(donor.second_moment),
        optimizer_steps=0,
    )


def _changed(state: AdapterState, parameters: _Change, first: _Change, second: _Change) -> AdapterState:
    return AdapterState(
        parameters=parameters(state.parameters),
        first_moment=first(state.first_moment),
        second_moment=second(state.second_moment),
        optimizer_steps=state.optimizer_steps,
    )
