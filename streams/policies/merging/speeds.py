"""Times of optimizer steps: the lookup table, and the numbers of GPUs that speed a job up."""

from collections.abc import Iterator, Sequence
from typing import Any

from schemas.cells import Zone
from schemas.merging.problems import StepTime
from schemas.merging.reports import MeasuredStep
from schemas.merging.settings import STAGES_PER_PIPELINE, MergingPolicy
from schemas.merging.workload import MAX_GPUS
from solvers.merging.lookup_table import Configuration, LookupTable, faster_only
from streams.policies.merging.kind_of_jobs import KindOfJobs

_OFFLINE = Configuration()
"""Offline rows, whose configuration is unknown."""
_FEW = (1, 2, 3)
_UNKNOWN_STEP_S = 1.0
"""Step time on one GPU before anything was measured."""
_MOST_CACHED = 4_096


class Speeds:
    """Step times of one zone."""

    def __init__(self, policy: MergingPolicy) -> None:
        self._table = LookupTable()
        for row in policy.speeds:
            self._table.observe(_OFFLINE, row)
        self._cached: dict[tuple[Configuration, int, float], tuple[StepTime, ...]] = {}
        """Step times by configuration, batch size and scale of a kind."""
        self._gpus = self._per_node = 0
        self._fitting: list[tuple[float, int]] = []
        self._memory_gib = 0.0

    def configure(self, zone: Zone, gpus: int, per_node: int, policy: MergingPolicy) -> None:
        """Set the number of GPUs of the zone, the most on one node, and the settings."""
        (gpu,) = zone.gpu_types
        self._gpus, self._per_node = gpus, per_node
        self._memory_gib = (gpu.memory_gib - zone.base_model_memory_gib) / gpu.gpus
        self._fitting = sorted((row.memory_gib, row.micro_batch_size) for row in policy.memory)
        self._cached.clear()

    def profiled(self, kind: KindOfJobs, steps: Sequence[MeasuredStep]) -> None:
        """Keep the steps of the profile run of a kind. Impossible steps are ignored."""
        kind.scale = self._table.scale_of(kind.configuration, steps)
        for step in steps:
            self.observe(kind, step)

    def observe(self, kind: KindOfJobs, step: MeasuredStep) -> None:
        """Keep a measured step of a job of a kind. An impossible step is ignored."""
        self._table.observe(kind.configuration, step, kind.scale)
        self._cached.clear()

    def steps(self, kind: KindOfJobs) -> tuple[StepTime, ...]:
        """Return the step time of a kind by number of GPUs, without numbers that are no faster than a smaller
        one."""
        key = kind.configuration, kind.batch_size, kind.scale
        if key not in self._cached:
            if len(self._cached) >= _MOST_CACHED:
                self._cached.clear()
            sizes = allowed_sizes(self._gpus, kind.pipeline)
            self._cached[key] = faster_only((size, self._step_s(kind, size)) for size in sizes)
        return self._cached[key]

    def state(self) -> list[Any]:
        """Return the state, in types that msgpack writes."""
        return self._table.state()

    def restore(self, state: list[Any]) -> None:
        """Set the state."""
        self._table.restore(state)
        self._cached.clear()

    def _step_s(self, kind: KindOfJobs, gpus: int) -> float:
        if not self._table.has(kind.configuration):
            return _UNKNOWN_STEP_S / gpus
        nodes = -(-gpus // self._per_node)
        micro_batch = self._most_micro_batch(kind.batch_size)
        return self._table.step(
            kind.configuration, gpus, nodes, kind.batch_size, micro_batch, kind.scale
        ).step_s

    def _most_micro_batch(self, batch_size: int) -> int:
        """Return the largest micro-batch that fits into a GPU, as measured offline."""
        fitting = [size for needed_gib, size in self._fitting if needed_gib <= self._memory_gib]
        return max(fitting, default=batch_size) if self._fitting else batch_size


def allowed_sizes(gpus: int, pipeline: bool) -> Iterator[int]:
    """Yield the numbers of GPUs of a job: {1, 2, 3, 4m}, or {4m} for a pipeline-parallel one (sections 5.1
    and 5.2), up to `MAX_GPUS`."""
    gpus = min(gpus, MAX_GPUS)
    if not pipeline:
        yield from (size for size in _FEW if size <= gpus)
    yield from range(STAGES_PER_PIPELINE, gpus + 1, STAGES_PER_PIPELINE)
