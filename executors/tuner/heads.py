"""What a job has of an adapter that it shares: the low-rank matrices, and a head of its own.

The flat vector of a shared run has the matrices, then the head of each job in the order of the command. Under
a language model heads are empty, and the whole vector is each job's own.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from executors.lora.adapter import AdapterLayout
from executors.lora.task import AdapterState

_Change = Callable[[Tensor], Tensor]


def own_state(layout: AdapterLayout, state: AdapterState, head: int) -> AdapterState:
    """The state of one job.

    Args:
        layout: of a job alone.
        state: of the adapter that the job is trained in.
        head: which of its heads is the job's own.
    """
    start = layout.shared_size + head * layout.head_size

    def cut(flat: Tensor) -> Tensor:
        return torch.cat([flat[: layout.shared_size], flat[start : start + layout.head_size]])

    return _changed(state, cut, cut, cut)


def head_of(layout: AdapterLayout, state: AdapterState, head: int) -> Tensor:
    """One of the heads of an adapter: its parameters and both moments, float32 ``[3, head size]``."""
    start = layout.shared_size + head * layout.head_size
    vectors = state.parameters, state.first_moment, state.second_moment
    return torch.stack([flat[start : start + layout.head_size] for flat in vectors])


def shared_state(layout: AdapterLayout, own: AdapterState, head: int, other: Tensor) -> AdapterState:
    """The state of the adapter of a shared run, from one job's own and the other's head: the inverse of
    `own_state` and `head_of`.

    Args:
        layout: of a job alone.
        own: the state of one job.
        head: its place in the order of the command.
        other: the head of the other job, float32 ``[3, head size]``.
    """

    def with_other(row: int) -> _Change:
        def joined(flat: Tensor) -> Tensor:
            shared, mine = flat[: layout.shared_size], flat[layout.shared_size :]
            heads = [mine, other[row]] if head == 0 else [other[row], mine]
            return torch.cat([shared, *heads])

        return joined

    return _changed(own, with_other(0), with_other(1), with_other(2))


def fresh_from(donor: AdapterState, layout: AdapterLayout) -> AdapterState:
    """What the receiver of a temporal merge starts from: the donor's low-rank matrices, a head as of a new
    job, and an optimizer that has seen nothing.

    Args:
        layout: of either job alone.
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
