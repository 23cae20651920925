"""Model of the time of one batch in an MoE layer, for a placement on devices with measured rates. Its results
are to be marked as those of a model.

A layer is its gating network, phase two of scheduling, an all-to-all to the experts, their computation, and
an all-to-all back (thesis, sections 4.2.1 and 4.7.3.1). Phase one and the weights that it swaps in are hidden
behind the computation of the layer before, as far as that lasts (section 4.6.2).
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from solvers.compiled import Ints
from solvers.experts.placement import ExpertPlacement
from solvers.experts.schemes import Settled


@dataclass(frozen=True)
class LayerCosts:
    """Costs measured on the modelled devices; none has a default."""

    token_bytes: float
    """Size of a token in an all-to-all: hidden features times bytes per number."""
    link_bytes_per_s: float
    """Rate at which each device sends, and receives at the same time."""
    all_to_all_s: float
    """Fixed time of an all-to-all, however little is sent."""
    expert_s: float
    """Fixed time of each expert with tokens on a device: experts run one after another (section 4.6.2, expert
    packing)."""
    token_s: float
    """Time of an expert per token."""
    swap_s: float
    """Time to load one expert's weights on a device; loads follow one another."""
    gate_s: float
    """Time of the gating network."""
    check_s: float
    """Time of phase two if the placement is kept: chosen experts are collected and compared."""
    plan_s: float
    """Time to make a placement and send it to all devices."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = "above 0" if field.name == "link_bytes_per_s" else "0 or more"
            if not 0 <= value < float("inf") or (value == 0 and least == "above 0"):
                raise ValueError(f"{field.name} is {value}, expected a finite number, {least}")


class LayerTime(NamedTuple):
    """Parts of the time of one batch in one layer."""

    gate_s: float
    scheduling_s: float
    """Scheduling on the critical path, with phase two."""
    swap_s: float
    """Swaps on the critical path."""
    all_to_all_s: float
    """Time of both all-to-alls."""
    experts_s: float
    """Computation of the slowest device."""

    @property
    def total_s(self) -> float:
        """Sum of all parts."""
        return self.gate_s + self.scheduling_s + self.swap_s + self.all_to_all_s + self.experts_s


def loads_to_swap_in(placement: ExpertPlacement, before: ExpertPlacement | None) -> Ints:
    """Return the number of experts that each device has to load, (devices,).

    Args:
        before: placement of the loaded experts; None if none is loaded.
    """
    has = placement.held()
    if before is not None:
        has &= ~before.held()
    loads: Ints = has.sum(axis=1)
    return loads


def layer_time(
    costs: LayerCosts,
    settled: Settled,
    sent: Ints,
    swapped_in: Ints,
    *,
    is_checked: bool,
    hidden_s: float,
) -> LayerTime:
    """Return the time of a batch in a layer.

    Args:
        settled: placement and split of its tokens.
        sent: (ranks, devices, slots) tokens that each rank sends to each slot; rank r is device r.
        swapped_in: (devices,) experts that each device loads for this batch.
        is_checked: whether phase two compares what was chosen with the estimate.
        hidden_s: computation of the layer before, behind which phase one and its swaps run.
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
    """Return the time of one all-to-all. The device that sends or receives the most decides; tokens that stay
    cost nothing.

    Args:
        sent: (ranks, devices, slots) or (ranks, devices) tokens; rank r is device r.
    """
    pairs = sent.reshape(sent.shape[0], sent.shape[1], -1).sum(axis=2)
    pairs = pairs - np.diag(np.diag(pairs))
    most = max(int(pairs.sum(axis=0).max()), int(pairs.sum(axis=1).max()))
    return costs.all_to_all_s + most * costs.token_bytes / costs.link_bytes_per_s
