"""Bases of the simulated runners of gangs: they send the same reports, but train nothing."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from infra.simulation.event_queue import Moments
from schemas.commands import Command
from schemas.fleet import RunProgressed


class VirtualReports(ABC):
    """See `VirtualRunner`. Nodes share checkpoints, so a job resumes on any node."""

    def __init__(self, cell: str, pace: float) -> None:
        self._cell = cell
        self._pace = pace

    def carry_out(self, command: Command, time_s: float, until_s: float = math.inf) -> Moments:
        """See `VirtualRunner`. The reports end with a moment at which the command is no longer current."""
        for report_s, report in self.reports(command, time_s):
            if report_s > until_s:
                return
            yield report_s, report
            if report is None and not self.is_current(command):
                return

    @abstractmethod
    def reports(self, command: Command, time_s: float) -> Moments:
        """Yield the reports of a node that is not lost, as if no other command followed."""

    @abstractmethod
    def is_current(self, command: Any) -> bool:
        """Return whether no other command has ended the work of this one."""

    def run_fields(self, node: str, run_id: str, job_id: str) -> dict[str, Any]:
        """Return the fields of every report of a run."""
        return {"cell": self._cell, "node": node, "run_id": run_id, "job_id": job_id}


@dataclass
class VirtualJob:
    """Progress of a job.

    Attributes:
        generation: generation of its running processes; 0 where none run.
        samples_done: samples done by `since_s`.
        samples_per_s: speed since `since_s`; 0 where `samples_done` is kept up to date.
    """

    generation: int = 0
    samples_done: float = 0.0
    since_s: float = 0.0
    samples_per_s: float = 0.0

    def samples_by(self, time_s: float) -> float:
        """Return the samples done by a time."""
        return self.samples_done + max(time_s - self.since_s, 0.0) * self.samples_per_s


J = TypeVar("J", bound=VirtualJob)


class VirtualGangs(VirtualReports, Generic[J]):
    """Simulated runner of jobs in generations. A subclass has their speeds."""

    def __init__(self, cell: str, pace: float) -> None:
        super().__init__(cell, pace)
        self._jobs: dict[str, J] = {}

    def is_current(self, command: Any) -> bool:
        return bool(self._jobs[command.job_id].generation == command.generation)

    def release(self, command: Any, time_s: float, *, continues: bool = False) -> Moments:
        """Report the end of a generation on a node; `continues` if the job continues on others."""
        samples_done, began_s = 0, time_s
        job = self._jobs.get(command.job_id)
        if job is not None:
            samples_done, began_s = int(job.samples_by(time_s)), job.since_s
            if not continues and job.generation == command.generation:
                job.samples_done, job.since_s = samples_done, time_s
                job.samples_per_s, job.generation = 0.0, 0
        fields = self.run_fields(command.node, f"{command.generation}/{command.job_id}", command.job_id)
        node_s = max(time_s - began_s, 0.0)
        yield time_s, RunProgressed(**fields, samples_done=samples_done, node_s=node_s, complete=True)
