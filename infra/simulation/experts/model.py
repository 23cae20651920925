"""What a simulated job does in a second. Figures are of a model, not measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from infra.simulation.experts.routed_tokens import RoutedTokens
from schemas.experts.commands import MoeWorkload
from schemas.experts.reports import LayerRouting
from schemas.experts.workload import MoeServeWorkload
from solvers.experts.placement import Placement
from solvers.experts.splitting import device_loads, even_split

LAYERS, EXPERTS = 4, 16
"""Of every model."""
TRAINED_PER_S = 64.0
"""Samples that a rank trains in a second."""
BALANCED_BATCH_S = 0.25
"""A batch of requests takes so long if all devices have as many tokens."""
_PARTS = 10_000
"""Tokens by which a load is told."""

Layers = Mapping[int, Sequence[Sequence[int]]]
"""The experts on each device, by layer; of others each expert is on one device, in turns."""


@dataclass(frozen=True)
class SimulatedModel:
    """Of one job."""

    routed: RoutedTokens
    devices: int
    batch_samples: int
    batch_tokens: int
    profile_batches: int = 0
    until_s: float = math.inf
    """When it ends at the latest."""
    most_per_s: float = math.inf
    """Samples that there are in a second."""
    is_served: bool = False

    @classmethod
    def of(cls, job_id: str, workload: MoeWorkload) -> "SimulatedModel":
        """With no more experts than a service has room for."""
        if not isinstance(workload, MoeServeWorkload):
            shape = workload.hyperparameters
            samples, tokens = shape.global_batch_size, shape.global_batch_size * shape.sequence_length
            return cls(RoutedTokens(job_id, LAYERS, EXPERTS), workload.ranks, samples, tokens)
        experts = min(EXPERTS, workload.ranks * workload.most_experts_per_device)
        asked = workload.requests
        return cls(
            RoutedTokens(job_id, LAYERS, experts),
            workload.ranks,
            workload.batch_size,
            workload.batch_size * workload.sequence_length,
            workload.profile_batches,
            math.inf if asked.until_s is None else asked.until_s,
            math.inf if asked.rate_per_s is None else asked.rate_per_s,
            is_served=True,
        )

    def samples_per_s(self, layers: Layers, time_s: float) -> float:
        """What is done from this moment on, for a short while. A batch of requests takes as long as its
        busiest device, so that a placement that follows popularity makes a service faster."""
        if not self.is_served:
            return TRAINED_PER_S * self.devices
        loads = [
            busiest_load(layers.get(layer), self.routed.popularity(layer, time_s), self.devices)
            for layer in range(self.routed.layers)
        ]
        batch_s = BALANCED_BATCH_S * math.fsum(loads) / len(loads)
        return min(self.batch_samples / batch_s, self.most_per_s)

    def routing(self, batches: int, time_s: float) -> tuple[LayerRouting, ...]:
        """What so many batches at about this moment are routed to."""
        tokens = batches * self.batch_tokens
        return tuple(
            LayerRouting(tokens=self.routed.counts(layer, time_s, tokens))
            for layer in range(self.routed.layers)
        )


def busiest_load(experts: Sequence[Sequence[int]] | None, popularity: Sequence[float], devices: int) -> float:
    """Tokens of the busiest device over the mean, split as well as can be.

    Args:
        experts: those on each device; None where each is on one, in turns.
        popularity: the part of the tokens of each expert.
    """
    count = len(popularity)
    rows = (
        [list(range(device, count, devices)) for device in range(devices)]
        if experts is None
        else [list(row) for row in experts]
    )
    tokens = np.array([round(part * _PARTS) for part in popularity], np.int64)
    split = even_split(Placement.of_lists(rows, count), tokens)
    return int(device_loads(split).max()) * devices / int(tokens.sum())
