"""Model of the speed and the routing of a simulated job. Its constants are assumed, not measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from infra.simulation.experts.routed_tokens import SimulatedRouting
from schemas.experts.commands import MoeWorkload
from schemas.experts.reports import LayerRouting
from schemas.experts.workload import MoeServeWorkload
from solvers.experts.placement import ExpertPlacement
from solvers.experts.splitting import device_loads, even_split

LAYERS, EXPERTS = 4, 16
"""Size of every model."""
TRAINED_PER_S = 64.0
"""Samples that a rank trains in a second."""
BALANCED_BATCH_S = 0.25
"""Duration of a batch of requests if all devices have equal numbers of tokens."""
_PARTS = 10_000
"""Tokens from which a load is computed."""

Layers = Mapping[int, Sequence[Sequence[int]]]
"""Experts on each device, by layer; in other layers each expert is on one device, in turns."""


@dataclass(frozen=True)
class SimulatedModel:
    """Model of one job."""

    routed: SimulatedRouting
    devices: int
    batch_samples: int
    batch_tokens: int
    profile_batches: int = 0
    until_s: float = math.inf
    """Latest end."""
    most_per_s: float = math.inf
    """Rate of the requests."""
    is_served: bool = False

    @classmethod
    def of(cls, job_id: str, workload: MoeWorkload) -> "SimulatedModel":
        """Make the model of a job, with no more experts than a service has room for."""
        if not isinstance(workload, MoeServeWorkload):
            shape = workload.hyperparameters
            samples, tokens = shape.global_batch_size, shape.global_batch_size * shape.sequence_length
            return cls(SimulatedRouting(job_id, LAYERS, EXPERTS), workload.ranks, samples, tokens)
        experts = min(EXPERTS, workload.ranks * workload.most_experts_per_device)
        requests = workload.requests
        return cls(
            SimulatedRouting(job_id, LAYERS, experts),
            workload.ranks,
            workload.batch_size,
            workload.batch_size * workload.sequence_length,
            workload.profile_batches,
            math.inf if requests.until_s is None else requests.until_s,
            math.inf if requests.rate_per_s is None else requests.rate_per_s,
            is_served=True,
        )

    def samples_per_s(self, layers: Layers, time_s: float) -> float:
        """Return the speed at a time. A batch of requests takes as long as its busiest device, so a placement
        by popularity makes a service faster."""
        if not self.is_served:
            return TRAINED_PER_S * self.devices
        loads = [
            busiest_load(layers.get(layer), self.routed.popularity(layer, time_s), self.devices)
            for layer in range(self.routed.layers)
        ]
        batch_s = BALANCED_BATCH_S * math.fsum(loads) / len(loads)
        return min(self.batch_samples / batch_s, self.most_per_s)

    def routing(self, batches: int, time_s: float) -> tuple[LayerRouting, ...]:
        """Return the tokens of each expert for a number of batches at a time."""
        tokens = batches * self.batch_tokens
        return tuple(
            LayerRouting(tokens=self.routed.counts(layer, time_s, tokens))
            for layer in range(self.routed.layers)
        )


def busiest_load(experts: Sequence[Sequence[int]] | None, popularity: Sequence[float], devices: int) -> float:
    """Return the tokens of the busiest device over the mean, under the best split.

    Args:
        experts: Experts on each device; None where each is on one, in turns.
        popularity: Part of the tokens of each expert.
        devices: Number of devices.
    """
    count = len(popularity)
    rows = (
        [list(range(device, count, devices)) for device in range(devices)]
        if experts is None
        else [list(row) for row in experts]
    )
    tokens = np.array([round(part * _PARTS) for part in popularity], np.int64)
    split = even_split(ExpertPlacement.of_lists(rows, count), tokens)
    return int(device_loads(split).max()) * devices / int(tokens.sum())
