"""A task: one job, or two that are merged, and the GPUs that are reserved for it."""

from dataclasses import dataclass
from typing import Any

from schemas.merging.commands import TaskMember, TransferMode

_BYTES_PER_TASK = 256
_BYTES_PER_MEMBER = 16


@dataclass
class TuningTask:
    """A task that runs, or that begins after all earlier runs of its jobs have ended."""

    task_id: str
    mode: TransferMode
    """Mode at its begin: a temporal merge stays one when its donor is done."""
    job_ids: tuple[str, ...]
    """Its live jobs; the donor of a temporal merge is the first."""
    members: dict[str, int]
    """GPUs by node, in the order of the ranks."""
    generation: int = 0
    """Generation of its newest run; 0 before the first."""
    is_assigned: bool = False
    """Whether its nodes have been ordered to run it."""
    since_s: float = 0.0
    """Time since which its present jobs have its GPUs."""
    watched_epochs: int = 0
    """Watched epochs, see `TaskAssigned`."""

    @property
    def gpus(self) -> int:
        """Total number of GPUs."""
        return sum(self.members.values())

    @property
    def leader(self) -> str:
        """Node that reports for all."""
        return next(iter(self.members))

    @property
    def follower(self) -> str | None:
        """Job that waits for the end of its donor; None without one."""
        waits = self.mode == "temporal" and len(self.job_ids) == 2
        return self.job_ids[1] if waits else None

    @property
    def active_job_ids(self) -> tuple[str, ...]:
        """Jobs that are trained now."""
        return self.job_ids[:1] if self.mode == "temporal" else self.job_ids

    @property
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot, besides the ids of its jobs."""
        return _BYTES_PER_TASK + sum(_BYTES_PER_MEMBER + len(node) for node in self.members)

    def describe(self) -> dict[str, Any]:
        """Describe it for an operator, in values that JSON has."""
        return {
            "mode": self.mode,
            "jobs": list(self.job_ids),
            "follower": self.follower,
            "members": dict(self.members),
            "generation": self.generation,
            "is_assigned": self.is_assigned,
            "since_s": self.since_s,
        }

    def described_members(self) -> tuple[TaskMember, ...]:
        """Return its members for commands and decisions."""
        return tuple(TaskMember(node=node, gpus=gpus) for node, gpus in self.members.items())
