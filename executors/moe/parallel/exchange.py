"""Exchanges of ranks between steps: times, plans, and the parameters of repacked experts.

They use the default process group, while no other collective runs.
"""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from executors.gang.group import DisagreementError
from executors.gang.meeting import detecting_loss
from executors.moe.parallel.micro_ops import CollectiveKind
from executors.moe.parallel.packing import MicroOpTimes, Packing
from executors.moe.parallel.planning import StepPlan

_DIGITS = 15
"""Hexadecimal digits of a digest that fit an int64."""


def agreed_times(times: MicroOpTimes) -> MicroOpTimes:
    """Return the mean of all ranks' times. All ranks get the same value, and so decide the same packing."""
    sums = torch.tensor([times.all_to_all_s, times.feed_forward_s], dtype=torch.float64)
    with detecting_loss():
        dist.all_reduce(sums)
    all_to_all_s, feed_forward_s = (sums / dist.get_world_size()).tolist()
    return MicroOpTimes(all_to_all_s, feed_forward_s)


def agreed_plan(plan: StepPlan, all_to_alls: int) -> StepPlan:
    """Return rank 0's plan, the same on each rank (erratum I3).

    Args:
        all_to_alls: micro-ops in this rank's measured step.

    Raises:
        DisagreementError: a rank's plan has another number of micro-ops, so its step differs; or it has not
            received rank 0's plan.
    """
    everyones = _gathered([len(plan.all_to_alls_before), all_to_alls])
    for rank, counts in enumerate(everyones):
        for kind, mine, first in zip(
            (CollectiveKind.ALLREDUCE, CollectiveKind.ALL_TO_ALL), counts, everyones[0], strict=True
        ):
            if mine != first:
                raise DisagreementError(
                    f"ranks disagree: rank {rank} has {mine} {kind} micro-ops in a step, rank 0 has {first}"
                )
    before = torch.tensor(plan.all_to_alls_before, dtype=torch.int64)
    if plan.all_to_alls_before:
        with detecting_loss():
            dist.broadcast(before, 0)
    agreed = StepPlan(tuple(before.tolist()))
    digests = _gathered([int(agreed.digest[:_DIGITS], 16)])
    if other := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
        raise DisagreementError(f"ranks disagree: ranks {other} have not received the plan of rank 0")
    return agreed


def _gathered(numbers: Sequence[int]) -> list[list[int]]:
    mine = torch.tensor(numbers)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    with detecting_loss():
        dist.all_gather(everyones, mine)
    return [each.tolist() for each in everyones]


def agreed_budget(budget_bytes: int | None) -> int | None:
    """Return the least budget of all ranks, or None if no rank has a budget. All ranks get the same value,
    and so keep the same number of experts on a device; their collectives depend on that number.
    """
    unlimited = torch.iinfo(torch.int64).max
    least = min(budget for (budget,) in _gathered([unlimited if budget_bytes is None else budget_bytes]))
    return None if least == unlimited else least


def exchange_experts(tensors: Sequence[Tensor], old: Packing, new: Packing, rank: int) -> list[Tensor]:
    """Send each rank the experts that it hosts from now on: their parameters and optimizer states, by one
    all-to-all for each tensor (section 4.6.1). All ranks must do so at the same time, with the same number of
    tensors.

    Args:
        tensors: each `(hosted before, ...)`.

    Returns:
        each `(hosted from now on, ...)`; experts come from a rank of the same group.
    """
    sent = [_given(old, new, rank, to) for to in range(new.world)]
    received = [len(_given(old, new, of, rank)) for of in range(new.world)]
    first = old.hosted(rank).start
    chosen = torch.tensor([expert - first for experts in sent for expert in experts], dtype=torch.int64)
    exchanged = []
    for tensor in tensors:
        shape = tensor.shape[1:]
        flat = tensor.detach().reshape(len(tensor), math.prod(shape))
        arrived = flat.new_empty(sum(received), flat.shape[1])
        outgoing = flat.index_select(0, chosen.to(flat.device))
        with detecting_loss():
            dist.all_to_all_single(arrived, outgoing, received, [len(experts) for experts in sent])
        # Ranks of a group host ascending experts, so experts that come from them are in order.
        exchanged.append(arrived.view(len(arrived), *shape))
    return exchanged


def _given(old: Packing, new: Packing, of: int, to: int) -> list[int]:
    """Return the experts that one rank sends another."""
    return [expert for expert in new.hosted(to) if old.holder(expert, to) == of]
