"""A job of an elastic zone: its workers, its progress and its place in the queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Self, cast

from schemas.elastic.outcomes import ServerPool
from schemas.elastic.workload import ElasticWorkload
from solvers.elastic.demand import linear_speedup
from streams.policies.gang.gang import Gang

_BYTES_PER_JOB = 344
"""Packed numbers of a job and its user's last turn, besides its nodes and its end."""
_BYTES_PER_NODE = 16
"""Packed number of a node, besides its id."""


@dataclass
class ElasticJob(Gang):
    """A job whose processes are workers, see `Gang`."""

    workers: int = 0
    """Number of its workers, counted as on training servers."""
    pool: ServerPool | None = None
    flexible_pool: ServerPool | None = None
    since_s: float | None = None
    """Time of its leader's last report of progress; None until the start of this generation is reported.
    Until then the job makes no progress."""
    due_s: float | None = None
    """Time by which it should be over with its base demand, as declared; None while it waits."""
    waits_since_s: float = 0.0
    """Time at which it was last queued; meaningless while it has workers."""

    def __post_init__(self) -> None:
        self.workload = cast(ElasticWorkload, self.job.workload)
        """Workload of the job."""
        self.speedup = speedup_of(self.workload)
        """Speed by number of workers over that of one, from 0 workers on."""

    @property
    def is_formed(self) -> bool:
        """Whether all of its workers run."""
        return self.since_s is not None

    @property
    def keeps_progress(self) -> bool:
        return self.workload.keeps_checkpoints

    @property
    def is_elastic(self) -> bool:
        """Whether it has flexible demand."""
        return self.workload.max_workers > self.workload.min_workers

    @property
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot."""
        # A member is among the servers of the cluster too, with base workers and with flexible ones.
        nodes = (*self.members, *self.members, *self.members, *self.done, *self.leaving, self.leader)
        return _BYTES_PER_JOB + self.ending_bytes + sum(_BYTES_PER_NODE + len(node) for node in nodes)

    def describe(self, elapsed_s: float) -> dict[str, Any]:
        return {
            **super().describe(elapsed_s),
            "workers": self.workers,
            "pool": self.pool,
            "flexible_pool": self.flexible_pool,
            "is_formed": self.is_formed,
            "due_s": self.due_s,
            "waits_since_s": None if self.members else self.waits_since_s,
        }

    def work_left_s(self, time_s: float | None, speed: float) -> float:
        """Return the remaining work by now, in seconds of one worker on a training server.

        Args:
            speed: work of its workers per second since `since_s`, in the same unit.
        """
        samples_per_s = self.workload.samples_per_s
        work_s = (self.workload.work_samples - self.job.samples_done) / samples_per_s
        if self.since_s is not None and time_s is not None:
            work_s -= (time_s - self.since_s) * speed
        # Even if its end is late, one sample is left.
        return max(work_s, 1 / samples_per_s)


_linear = lru_cache(maxsize=4_096)(linear_speedup)


def speedup_of(workload: ElasticWorkload) -> Sequence[float]:
    """Return the speed by number of workers over that of one, from 0 workers on; linear without a profile."""
    return (0.0, *workload.speedup) if workload.speedup else _linear(workload.max_workers)


class QueueEntry(NamedTuple):
    """A job without workers: its base demand and the time of its remaining work, which change only with the
    samples done."""

    job: ElasticJob
    gpus: int
    """GPUs of its base demand."""
    shortest_s: float
    """Time of the remaining work with its most workers (s)."""
    base_s: float
    """Time of the remaining work with its base demand (s)."""

    @classmethod
    def of(cls, job: ElasticJob) -> Self:
        """Compute the entry of a job without workers."""
        workload, speedup = job.workload, job.speedup
        # Without a run, neither the time nor the speed matters.
        work_s = job.work_left_s(None, 0.0)
        return cls(
            job,
            workload.min_workers * workload.gpus_per_worker,
            work_s / speedup[workload.max_workers],
            work_s / speedup[workload.min_workers],
        )
