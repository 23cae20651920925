"""A model of one batch's way through an MoE layer: what a placement costs on devices of which the rates were
measured. What it tells is a model's, and is to be marked as such.

A layer is its gating network, phase two of scheduling, an all-to-all to the experts, their computation, and
an all-to-all back (thesis, sections 4.2.1 and 4.7.3.1). Phase one and the weights that it swaps in are hidden
behind the computation of the layer before, as far as that lasts (section 4.6.2).
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from solvers.compiled import Ints
from solvers.experts.schemes import Settled


@dataclass(frozen=True)
class LayerCosts:
    """Measured on the devices that are modelled; no figure has a default."""

    token_bytes: float
    """Of one token in an all-to-all: hidden features times bytes per number."""
    link_bytes_per_s: float
    """Each device sends so fast, and receives so fast at the same time."""
    all_to_all_s: float
    """What an all-to-all takes however little is sent."""
    expert_s: float
    """What an expert takes on a device for any tokens at all, and each expert again: they run one after
    another (section 4.6.2, expert packing)."""
    token_s: float
    """What an expert takes for each token."""
    swap_s: float
    """To load one expert's weights on a device, one after another."""
    gate_s: float
    """The gating network."""
    check_s: float
    """Phase two where the placement is kept: chosen experts are collected and compared."""
    plan_s: float
    """To make a placement and tell it to all devices."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = "above 0" if field.name == "link_bytes_per_s" else "0 or more"
            if not 0 <= value < float("inf") or (value == 0 and least == "above 0"):
                raise ValueError(f"{field.name} is {value}, expected a finite number, {least}")


class LayerTime(NamedTuple):
    """Where the time of one batch in one layer goes."""

    gate_s: float
    scheduling_s: float
    """That everything waits for, phase two included."""
    swap_s: float
    """That everything waits for."""
    all_to_all_s: float
    """Of both."""
    experts_s: float
    """Of the device that takes longest."""

    @property
    def total_s(self) -> float:
        """All of it, one after another."""
        return self.gate_s + self.scheduling_s + self.swap_s + self.all_to_all_s + self.experts_s


def layer_time(
    costs: LayerCosts,
    settled: Settled,
    sent: Ints,
    swapped_in: Ints,
    *,
    is_checked: bool,
    hidden_s: float,
) -> LayerTime:
    """How long a batch takes.

    Args:
        settled: how its tokens go.
        sent: (ranks, devices, slots) tokens that each rank sends to each slot; rank r is device r.
        swapped_in: (devices,) experts that each device loads for this batch.
        is_checked: whether phase two compares what was chosen with the estimate.
        hidden_s: of the layer before, behind which phase one and its swaps run.
    """
    hosted = (settled.split > 0).sum(axis=1)
    experts_s = hosted * costs.expert_s + settled.split.sum(axis=1) * costs.token_s
    scheduling_s = costs.check_s if is_checked else 0.0
    swap_s = int(swapped_in.max()) * costs.swap_s
    if settled.is_revised:
        scheduling_s += costs.plan_s
    else:
        late_s = max(0.0, costs.plan_s + swap_s - hidden_s)
        swap_s = min(swap_s, late_s)
        scheduling_s += late_s - swap_s
    return LayerTime(
        gate_s=costs.gate_s,
        scheduling_s=scheduling_s,
        swap_s=swap_s,
        all_to_all_s=2 * all_to_all_s(costs, sent),
        experts_s=float(experts_s.max()),
    )


def all_to_all_s(costs: LayerCosts, sent: Ints) -> float:
    """One of them: the device that sends or receives the most decides. What stays where it is costs nothing.

    Args:
        sent: (ranks, devices, slots) or (ranks, devices) tokens; rank r is device r.
    """
    pairs = sent.reshape(sent.shape[0], sent.shape[1], -1).sum(axis=2)
    pairs = pairs - np.diag(np.diag(pairs))
    most = max(int(pairs.sum(axis=0).max()), int(pairs.sum(axis=1).max()))
    return costs.all_to_all_s + most * costs.token_bytes / costs.link_bytes_per_s
