"""How long optimizer steps take: the lookup table, and the numbers of GPUs that are worth giving to a job."""

from collections.abc import Iterator
from typing import Any

from solvers.merging.lookup_table import LookupTable

from schemas.merging.problems import StepTime
from schemas.merging.reports import MeasuredStep
from schemas.merging.settings import STAGES_PER_PIPELINE, MergingPolicy
from streams.policies.merging.kind_of_jobs import KindOfJobs

_FEW = (1, 2, 3)
_UNKNOWN_STEP_S = 1.0


class Speeds:
    """Of one zone."""

    def __init__(self, policy: MergingPolicy) -> None:
        self._table = LookupTable(policy.speeds, policy.memory)
        self._cached: dict[tuple[str, int, int], tuple[StepTime, ...]] = {}

    def observe(self, kind: KindOfJobs, step: MeasuredStep) -> None:
        """A job of a kind has taken such steps."""
        self._table.observe(kind.batch_size, step)
        self._cached.clear()

    def steps(self, kind: KindOfJobs, gpus: int, per_node: int) -> tuple[StepTime, ...]:
        """How long a step takes with each number of GPUs that a job of this kind may have; those that are no
        faster than a smaller one are left out.

        Args:
            gpus: of the zone.
            per_node: of a node.
        """
        key = (kind.key, gpus, per_node)
        if key not in self._cached:
            best: list[StepTime] = []
            for size in allowed_sizes(gpus, kind.pipeline):
                step_s = self._table.step_s(kind.batch_size, size, -(-size // per_node)) or _UNKNOWN_STEP_S
                if not best or step_s < best[-1].step_s:
                    best.append(StepTime(gpus=size, step_s=step_s))
            self._cached[key] = tuple(best)
        return self._cached[key]

    def state(self) -> Any:
        """Of types that msgpack writes."""
        return self._table.state()

    def restore(self, state: Any) -> None:
        """Take a state."""
        self._table.restore(state)
        self._cached.clear()


def allowed_sizes(gpus: int, pipeline: bool) -> Iterator[int]:
    """{1, 2, 3, 4m}, or {4m} for a pipeline-parallel job (section 5.1, 5.2)."""
    if not pipeline:
        yield from (size for size in _FEW if size <= gpus)
    yield from range(STAGES_PER_PIPELINE, gpus + 1, STAGES_PER_PIPELINE)
