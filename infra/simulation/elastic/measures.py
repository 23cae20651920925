"""What elastic scheduling is measured by (thesis, section 3.7): queuing time, JCT, usage, preemptions."""

from dataclasses import dataclass
from typing import Any

from infra.simulation.simulator import Step
from schemas.base import Outcome
from schemas.cells import CellConfigured
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobWithdrawn, NodeMoved
from schemas.elastic.outcomes import JobResized, ServersCleared
from schemas.elastic.workload import ElasticWorkload
from schemas.fleet import RunFinished
from schemas.inference import InferenceLoadReported
from schemas.jobs import JobSubmitted
from schemas.loans import ReclaimPlanned


@dataclass
class JobLine:
    """One job from its submission to its end."""

    job_id: str
    user: str
    submitted_s: float
    gpus_per_worker: int
    min_workers: int
    max_workers: int
    started_s: float | None = None
    """When it was first given workers."""
    ended_s: float | None = None
    queuing_s: float = 0.0
    """How long it had no workers, after preemptions too."""
    preemptions: int = 0
    resizes: int = 0
    """How often its workers changed while it ran."""
    was_on_loaned: bool = False
    state: str = "waiting"
    _waits_since_s: float | None = None

    @property
    def jct_s(self) -> float | None:
        """Job completion time: from submission to end."""
        return None if self.ended_s is None else self.ended_s - self.submitted_s

    def as_row(self) -> dict[str, Any]:
        """Plain values, for a file."""
        fields = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**fields, "jct_s": self.jct_s}


@dataclass
class Usage:
    """A sum over time of something that stays the same between changes."""

    amount: float = 0.0
    integral: float = 0.0
    since_s: float = 0.0

    def change(self, time_s: float, difference: float) -> None:
        """It is more by so much from this moment on."""
        self.integral += self.amount * (time_s - self.since_s)
        self.amount += difference
        self.since_s = time_s

    def until(self, time_s: float) -> float:
        """The integral up to a moment that is no earlier than the last change."""
        return self.integral + self.amount * (time_s - self.since_s)


class Measures:
    """Takes the steps of a simulation of one cell with a zone of elastic jobs, and perhaps one that lends.

    Times are those of the events, not of the cell's clock, which stands still between two ticks.
    """

    def __init__(self, cell: CellConfigured, zone: str) -> None:
        """
        Args:
            zone: of elastic jobs.
        """
        zones = {each.id: each for each in cell.zones}
        gpus = {each.id: {gpu.name: gpu.gpus for gpu in each.gpu_types} for each in cell.zones}
        self._gpus_of = {node.id: gpus[each.id][node.gpu_type] for each in cell.zones for node in each.nodes}
        self._own = {node.id for node in zones[zone].nodes}
        self.own_gpus = sum(self._gpus_of[node] for node in self._own)
        self.other_gpus = sum(self._gpus_of.values()) - self.own_gpus
        self._zone = zone
        self._start_s = self._end_s = cell.epoch_s
        self.jobs: dict[str, JobLine] = {}
        """By id."""
        self.used_own, self.used_loaned, self.loaned, self.inference = (
            Usage(since_s=cell.epoch_s) for _ in range(4)
        )
        """GPUs: of jobs on own servers and on loaned ones, on loan, and serving inference."""
        self.reclaims = self.reclaimed_servers = self.reclaimed_gpus = 0
        """How often servers were wanted back, how many, and their GPUs."""
        self.preempting_servers = self.collateral_gpus = 0
        """How many of those servers cost jobs their base demand, and GPUs that these jobs left elsewhere."""
        self._placed: dict[str, list[tuple[Usage, int]]] = {}
        """What each running job uses."""

    def take(self, step: Step) -> None:
        """Take the next step."""
        time_s, event = step.time_s, step.entry.envelope.event
        self._end_s = time_s
        match event:
            case JobSubmitted(workload=ElasticWorkload() as workload):
                self.jobs.setdefault(
                    event.job_id,
                    JobLine(
                        event.job_id,
                        event.user,
                        time_s,
                        workload.gpus_per_worker,
                        workload.min_workers,
                        workload.max_workers,
                    ),
                )
            case InferenceLoadReported():
                self.inference.change(time_s, event.load * self.other_gpus - self.inference.amount)
            case RunFinished() if event.job_id in self.jobs:
                self.jobs[event.job_id].ended_s = time_s
        for decision in step.decisions:
            self._decide(time_s, decision.outcome)

    def _decide(self, time_s: float, outcome: Outcome) -> None:
        match outcome:
            case JobAdmitted():
                self.jobs[outcome.job_id]._waits_since_s = time_s
            case JobResized():
                self._resize(time_s, outcome)
            case JobCompleted() | JobRefunded() | JobWithdrawn():
                job = self.jobs[outcome.job_id]
                job.state = outcome.STATE
                job.ended_s = time_s if job.ended_s is None else job.ended_s
                self._use(time_s, outcome.job_id, [])
            case NodeMoved() if outcome.node not in self._own:
                gpus = self._gpus_of[outcome.node]
                self.loaned.change(time_s, gpus if outcome.to_zone == self._zone else -gpus)
            case ReclaimPlanned():
                self.reclaims += 1
                self.reclaimed_servers += len(outcome.servers)
                self.reclaimed_gpus += sum(self._gpus_of[server] for server in outcome.servers)
            case ServersCleared():
                self.preempting_servers += outcome.preempting_servers
                self.collateral_gpus += outcome.collateral_gpus

    def _resize(self, time_s: float, outcome: JobResized) -> None:
        job = self.jobs[outcome.job_id]
        if outcome.workers_before == 0 and job._waits_since_s is not None:
            job.queuing_s += time_s - job._waits_since_s
            job._waits_since_s = None
            job.started_s = time_s if job.started_s is None else job.started_s
        elif outcome.workers > 0:
            job.resizes += 1
        if outcome.workers == 0 and outcome.reason != "stopped":
            job._waits_since_s = time_s
            job.preemptions += outcome.reason == "preempted"
        servers = [(each.node, each.workers * job.gpus_per_worker) for each in outcome.servers]
        job.was_on_loaned |= any(server not in self._own for server, _ in servers)
        self._use(
            time_s,
            outcome.job_id,
            [(self.used_own if server in self._own else self.used_loaned, gpus) for server, gpus in servers],
        )

    def _use(self, time_s: float, job_id: str, uses: list[tuple[Usage, int]]) -> None:
        for usage, gpus in self._placed.pop(job_id, []):
            usage.change(time_s, -gpus)
        for usage, gpus in uses:
            usage.change(time_s, gpus)
        if uses:
            self._placed[job_id] = uses
