"""The pools and sizes of a zone's servers, and the jobs that are too large for them."""

import math
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple, cast

from schemas.cells import Node
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import ElasticWorkload
from schemas.facts import Facts
from solvers.elastic.demand import Pool
from streams.policies.policy import ZoneContext

_ROUNDING = 1e-9
"""Tolerance of ratios of speeds: three GPUs with a third of the speed count as one."""


class LeastDemand(NamedTuple):
    """Least demand of a job."""

    min_workers: int
    gpus_per_worker: int

    @classmethod
    def of(cls, workload: ElasticWorkload) -> "LeastDemand":
        return cls(workload.min_workers, workload.gpus_per_worker)


class ServerSizes:
    """Sizes of the servers of one zone, by its configuration."""

    def __init__(self, context: ZoneContext) -> None:
        zone, policy = context.zone, cast(ElasticPolicy, context.zone.policy)
        self._loans = context.loans
        types = {gpu.name: gpu for gpu in zone.gpu_types}
        reference = types[policy.reference_gpu_type]
        reference_per_gpu = reference.samples_per_s / reference.gpus
        self.by_gpu_type = {
            name: (
                gpu.gpus,
                max(math.ceil(reference_per_gpu * gpu.gpus / gpu.samples_per_s - _ROUNDING), 1),
            )
            for name, gpu in types.items()
        }
        """By GPU type: GPUs of a server, and the number of its workers that together are as fast as one
        reference worker."""
        self._nodes = zone.nodes
        self._rooms: dict[int, int] = {}
        """Cache of `_room`."""

    @cached_property
    def most_workers_per_reference(self) -> int:
        """Number of workers that are as fast as one reference worker, on the slowest server."""
        return max(self.by_gpu_type[name][1] for name in {node.gpu_type for node in self._nodes})

    @cached_property
    def least_per_loaned_worker(self) -> int:
        """Number of workers that are as fast as one reference worker, on the fastest server that is not a
        training server."""
        places = (self.place_of(node) for node in self._nodes)
        return min((factor for pool, _, factor in places if pool == "loaned"), default=1)

    @property
    def has_one_speed(self) -> bool:
        """Whether no server is slower than the reference."""
        return self.most_workers_per_reference == 1

    @cached_property
    def _training_gpus(self) -> dict[str, int]:
        """GPUs of each training server."""
        return {
            node.id: self.by_gpu_type[node.gpu_type][0]
            for node in self._nodes
            if self.place_of(node)[0] == "training"
        }

    def place_of(self, node: Node) -> tuple[Pool, int, int]:
        """Return the pool of a server, its GPUs, and the number of its workers that are as fast as one
        reference worker (erratum L4).

        Training servers are the zone's own servers that are at least as fast as the reference. Its own
        slower servers are in the pool of loaned servers.
        """
        gpus, workers_per_worker = self.by_gpu_type[node.gpu_type]
        is_training = node.id not in self._loans and workers_per_worker == 1
        return "training" if is_training else "loaned", gpus, workers_per_worker

    def fault(self, shape: LeastDemand, without: Collection[str] = ()) -> Facts | None:
        """Return why a job with a demand would not run alone on the zone's training servers; None if it
        would.

        Args:
            without: missing servers.
        """
        gpus_per_worker = shape.gpus_per_worker
        lacking = sum(self._training_gpus.get(server, 0) // gpus_per_worker for server in without)
        room = self._room(gpus_per_worker) - lacking
        if room >= shape.min_workers:
            return None
        return {
            "min_workers": shape.min_workers,
            "gpus_per_worker": gpus_per_worker,
            "room_workers": room,
        }

    def is_training(self, node: str) -> bool:
        """Return whether a node is a training server."""
        return node in self._training_gpus

    def needed(self, servers: Iterable[str], shapes: Iterable[LeastDemand]) -> Iterator[str]:
        """Yield those of some servers without which a job could never run. They are checked in the given
        order: a server that is not needed counts as gone for the next."""
        most_workers: dict[int, int] = {}
        for shape in shapes:
            most_workers[shape.gpus_per_worker] = max(
                shape.min_workers, most_workers.get(shape.gpus_per_worker, 0)
            )
        room_to_spare = {size: self._room(size) - workers for size, workers in most_workers.items()}
        for server in servers:
            gpus = self._training_gpus.get(server, 0)
            if any(0 < gpus // size > room for size, room in room_to_spare.items()):
                yield server
            else:
                for size in room_to_spare:
                    room_to_spare[size] -= gpus // size

    def _room(self, gpus_per_worker: int) -> int:
        """Return the number of workers with some GPUs each that the training servers have room for."""
        if gpus_per_worker not in self._rooms:
            self._rooms[gpus_per_worker] = sum(
                gpus // gpus_per_worker for gpus in self._training_gpus.values()
            )
        return self._rooms[gpus_per_worker]
