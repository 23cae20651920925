"""A gang: a job's set of processes over nodes, in one generation.

All processes of a generation begin together. If one is lost, the others end, and the job waits until it is
resumed. A node obeys commands in their order and reports the end of a run: until then the cell keeps that the
node is to end it.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from schemas.fleet import RunReport
from streams.policies.gang.gang_job import GangJob


def generation_of(run_id: str) -> int | None:
    """Return the generation of a run; None if no zone has named a run so."""
    number = run_id.partition("/")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 16 else None


class Leaving(NamedTuple):
    """Processes that a node is to end, without a report of their end yet."""

    generation: int
    processes: int
    leads: bool
    """Whether it leads that generation."""


@dataclass
class Gang(GangJob):
    """A job and its processes."""

    ALL_TRACK_PROGRESS: ClassVar[bool] = True
    """Whether every member reports the progress of the job, or only the leader."""

    generation: int = 0
    """Generation of its newest processes; 0 before its first."""
    members: dict[str, int] = field(default_factory=dict)
    """Processes by node, in the order of the ranks. Empty while it waits."""
    leader: str = ""
    """The first member of the newest generation, which reports for all; empty before the first."""
    done: dict[str, None] = field(default_factory=dict)
    """Members whose processes have ended because the work is done; the leader has still to report it."""
    leaving: dict[str, Leaving] = field(default_factory=dict)
    """Processes that are to end, by node."""
    released_s: float = 0.0
    """Time of the last order to end processes (`OrderClock`)."""

    @property
    def run_id(self) -> str:
        """Id of the newest generation's run."""
        return self.run_of(self.generation)

    def run_of(self, generation: int) -> str:
        """Return the id of a generation's run, equal on all of its nodes: see `generation_of`."""
        return f"{generation}/{self.job.job_id}"

    @property
    def waits(self) -> bool:
        """Whether it can be assigned to nodes: it has no process left."""
        return not (self.members or self.leaving or self.is_ending)

    @property
    def working(self) -> list[str]:
        """Members whose processes have not ended."""
        return [node for node in self.members if node not in self.done]

    @property
    def keeps_progress(self) -> bool:
        """Whether it resumes from a checkpoint."""
        return True

    @property
    def phase(self) -> str:
        """Its state in an operator's word."""
        if self.is_ending:
            return "ending"
        if self.members:
            return "running"
        return "stopping" if self.leaving else "waiting"

    def describe(self, elapsed_s: float) -> dict[str, Any]:
        """Describe it for an operator, in values that JSON has.

        Args:
            elapsed_s: the time by the zone's `OrderClock`.
        """
        return {
            **self.job.describe(),
            "state": self.phase,
            "ends": self.end_reason,
            "generation": self.generation,
            "run_id": self.run_id,
            "leader": self.leader,
            "members": dict(self.members),
            "done": list(self.done),
            "leaving": {
                node: {**leaving._asdict(), "for_s": elapsed_s - self.released_s}
                for node, leaving in self.leaving.items()
            },
            "silent_s": elapsed_s - self.last_seen_s if self.members else None,
            "failures": self.failures,
            "retry_in_s": max(self.retry_s - elapsed_s, 0.0),
        }

    def is_all_done(self, report: RunReport) -> bool:
        """Return whether a member that does not lead ends its processes because all of the work is done."""
        total_samples = self.job.workload.total_samples
        return not self.ALL_TRACK_PROGRESS or total_samples is None or report.samples_done >= total_samples

    def tracks_progress(self, leads: bool) -> bool:
        """Return whether a member reports the progress of the job."""
        return leads or self.ALL_TRACK_PROGRESS
