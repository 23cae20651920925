"""Seconds of a training step on each placement of a cluster, from the measured placements."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from bench.merging.measured import Profiles
from schemas.merging.reports import MeasuredStep

Placement = tuple[int, ...]
"""GPUs per node, ascending, on the nodes that have any."""

_Rows = Mapping[int, tuple[float, float]]
"""Seconds of a step, and those of synchronisation in it, by batch per GPU."""


class GpuCluster(NamedTuple):
    """A cluster of equal nodes."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    def compact(self, gpus: int) -> Placement:
        """Place GPUs on as few empty nodes as possible."""
        whole, rest = divmod(gpus, self.gpus_per_node)
        return ((rest,) if rest else ()) + (self.gpus_per_node,) * whole


class PlacementStepTimes:
    """The fastest step of a batch on each placement."""

    def __init__(self, profiles: Profiles, cluster: GpuCluster) -> None:
        self._exact: dict[Placement, dict[int, tuple[float, float]]] = defaultdict(dict)
        for row in profiles.placements:
            self._exact[tuple(sorted(row.gpus_per_node))][row.micro_batch_size] = row.step_s, row.exchange_s
        self._by_shape: dict[tuple[int, int], dict[int, tuple[float, float]]] = defaultdict(dict)
        for row in profiles.large_placements:
            shape = sum(row.gpus_per_node), len(row.gpus_per_node)
            self._by_shape[shape][row.micro_batch_size] = row.step_s, row.exchange_s
        self._cluster = cluster

    def fastest(self, batch: int, placement: Placement) -> MeasuredStep:
        """Return the fastest step of a batch, over all numbers of accumulated parts. GPUs among which the
        batch cannot be split are idle."""
        gpus = sum(placement)
        while (way := _fastest_accumulation(self._measured(placement), batch, gpus)) is None:
            gpus -= 1
            placement = self._cluster.compact(gpus)
        step_s, exchange_s, micro_batch_size, accumulated = way
        return MeasuredStep(
            gpus=gpus,
            nodes=len(placement),
            micro_batch_size=micro_batch_size,
            accumulation_steps=accumulated,
            step_s=step_s,
            exchange_s=min(exchange_s, step_s),
        )

    def _measured(self, placement: Placement) -> _Rows:
        """Return the steps measured on a placement, or else on the most similar number of nodes:
        synchronisation between nodes was found to depend on the number of GPUs alone."""
        if placement in self._exact:
            return self._exact[placement]
        gpus, nodes = sum(placement), len(placement)
        shapes = [shape for shape in self._by_shape if shape[0] == gpus]
        if not shapes:
            return {}
        return self._by_shape[min(shapes, key=lambda shape: (abs(shape[1] - nodes), shape[1]))]


def _fastest_accumulation(rows: _Rows, batch: int, gpus: int) -> tuple[float, float, int, int] | None:
    """Return the fastest way to accumulate a batch: seconds of a step, seconds of synchronisation, batch per
    GPU, and number of parts. None if the batch cannot be split into measured parts."""
    ways = []
    for local, (step_s, sync_s) in rows.items():
        accumulated, rest = divmod(batch, local * gpus)
        if accumulated > 0 and rest == 0:
            ways.append(((accumulated - 1) * (step_s - sync_s) + step_s, sync_s, local, accumulated))
    return min(ways, default=None)
