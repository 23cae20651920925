"""Where a zone's servers count, and which jobs are too large for them."""

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
"""Three GPUs of a third of the speed are one, whatever the last bit of the third is."""


class Shape(NamedTuple):
    """What a job needs at least."""

    min_workers: int
    gpus_per_worker: int

    @classmethod
    def of(cls, workload: ElasticWorkload) -> "Shape":
        """Of a job that runs this."""
        return cls(workload.min_workers, workload.gpus_per_worker)


class Sizes:
    """Of one zone as it is configured."""

    def __init__(self, context: ZoneContext) -> None:
        zone, policy = context.zone, cast(ElasticPolicy, context.zone.policy)
        self._loans = context.loans
        types = {gpu.name: gpu for gpu in zone.gpu_types}
        reference = types[policy.reference_gpu_type]
        reference_per_gpu = reference.samples_per_s / reference.gpus
        self.kinds = {
            name: (
                gpu.gpus,
                max(math.ceil(reference_per_gpu * gpu.gpus / gpu.samples_per_s - _ROUNDING), 1),
            )
            for name, gpu in types.items()
        }
        """GPUs of a server of each type, and how many of its workers do the work of one."""
        self._nodes = zone.nodes
        self._rooms: dict[int, int] = {}
        """See `_room`."""

    @cached_property
    def most_per_worker(self) -> int:
        """How many workers do the work of one, on the slowest of the servers."""
        return max(self.kinds[name][1] for name in {node.gpu_type for node in self._nodes})

    @cached_property
    def least_per_loaned_worker(self) -> int:
        """The same on the fastest of the servers that are no training servers."""
        loaned = (self.place_of(node) for node in self._nodes)
        return min((factor for pool, _, factor in loaned if pool == "loaned"), default=1)

    @property
    def has_one_speed(self) -> bool:
        """Whether every job may run on every server."""
        return self.most_per_worker == 1

    @cached_property
    def _own(self) -> dict[str, int]:
        """GPUs of each training server."""
        return {
            node.id: self.kinds[node.gpu_type][0]
            for node in self._nodes
            if self.place_of(node)[0] == "training"
        }

    def place_of(self, node: Node) -> tuple[Pool, int, int]:
        """The pool of a server, its GPUs, and how many of its workers do the work of one on the reference GPU
        (erratum L4).

        Training servers are those of the zone's own that are as fast as the reference; its own slower ones
        are for the same jobs as servers on loan.
        """
        gpus, workers_per_worker = self.kinds[node.gpu_type]
        is_own = node.id not in self._loans and workers_per_worker == 1
        return "training" if is_own else "loaned", gpus, workers_per_worker

    def fault(self, shape: Shape, without: Collection[str] = ()) -> Facts | None:
        """Why a job of this shape would not run even if it were alone, and all loans were given back; None if
        it would.

        Args:
            without: servers that are not there.
        """
        gpus_per_worker = shape.gpus_per_worker
        lacking = sum(self._own.get(server, 0) // gpus_per_worker for server in without)
        room = self._room(gpus_per_worker) - lacking
        if room >= shape.min_workers:
            return None
        return {
            "min_workers": shape.min_workers,
            "gpus_per_worker": gpus_per_worker,
            "room_workers": room,
        }

    def is_own(self, node: str) -> bool:
        """Whether it is a training server."""
        return node in self._own

    def needed(self, servers: Iterable[str], shapes: Iterable[Shape]) -> Iterator[str]:
        """Those of some servers without which a job of these shapes would never run. In this order: servers
        that are not needed are gone for those that come after them."""
        most_workers: dict[int, int] = {}
        for shape in shapes:
            most_workers[shape.gpus_per_worker] = max(
                shape.min_workers, most_workers.get(shape.gpus_per_worker, 0)
            )
        room_to_spare = {size: self._room(size) - workers for size, workers in most_workers.items()}
        for server in servers:
            gpus = self._own.get(server, 0)
            if any(0 < gpus // size > room for size, room in room_to_spare.items()):
                yield server
            else:
                for size in room_to_spare:
                    room_to_spare[size] -= gpus // size

    def _room(self, gpus_per_worker: int) -> int:
        """How many workers of so many GPUs each training servers have room for."""
        if gpus_per_worker not in self._rooms:
            self._rooms[gpus_per_worker] = sum(gpus // gpus_per_worker for gpus in self._own.values())
        return self._rooms[gpus_per_worker]
