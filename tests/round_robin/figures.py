"""Figures of a round-robin zone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.figures.jobs import Jobs, JobTimeline
from infra.figures.nodes import Nodes
from infra.figures.zone import Table, ZoneFigures
from schemas.base import Outcome
from schemas.cells import CellConfigured
from tests.support.counting_commands import CountOrdered


@dataclass(eq=False)
class CountingJob(JobTimeline):
    """A job and its turns."""

    turns: int = 0


class RoundRobinFigures(ZoneFigures[CountingJob]):
    """Turns, in all and of each job, and the waits for them."""

    JOB = CountingJob

    def __init__(self, cell: CellConfigured, zone: str, jobs: Jobs, nodes: Nodes) -> None:
        super().__init__(cell, zone, jobs, nodes)
        self.turns = 0
        self.longest_wait_s = 0.0

    def fold_outcome(self, time_s: float, outcome: Outcome) -> None:
        match outcome:
            case CountOrdered(zone=self._zone, job_id=job_id):
                self.turns += 1
                if (job := self._job(job_id)) is not None:
                    job.turns += 1
                    if job.started_s is None:
                        job.started_s = time_s
                        self.longest_wait_s = max(self.longest_wait_s, time_s - job.submitted_s)

    def as_json(self) -> dict[str, Any]:
        return {"turns": self.turns, "longest_wait_s": self.longest_wait_s}

    def tables(self) -> Mapping[str, Table]:
        return {
            "waits": [
                {"job_id": job.job_id, "waited_s": job.started_s - job.submitted_s}
                for job in self.kept()
                if job.started_s is not None
            ]
        }
