"""Figures of an elastic zone: workers, reclaims, and the measures of the thesis (section 3.7)."""

from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any

from infra.figures.distribution import Distribution
from infra.figures.elastic.jobs import ElasticTimeline
from infra.figures.elastic.results import ElasticResults
from infra.figures.elastic.usage import GpuSeconds, GpuUsage, Integral
from infra.figures.jobs import Jobs
from infra.figures.nodes import Nodes
from infra.figures.zone import Table, ZoneFigures
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.changes import NodeRegistered
from schemas.decisions import JobOutcome, NodeMoved
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.outcomes import JobProfiled, JobResized, ServersCleared
from schemas.elastic.staffing import ZoneStaffed
from schemas.elastic.workload import ElasticWorkload
from schemas.fleet import RunFinished, RunStarted
from schemas.inference import InferenceLoadReported
from schemas.jobs import JobSubmitted
from schemas.loans import LoanChanged, ReclaimEnded, ReclaimPlanned

_HOURS_KEPT = 24 * 366
"""Number of the latest hours of usage that are kept where jobs leave the figures."""


class ElasticFigures(ZoneFigures[ElasticTimeline]):
    """Figures of one elastic zone.

    Servers count as in the configuration at the start; the load of inference is what lending zones report.
    Counts are of all jobs, distributions of those that are kept.
    """

    JOB = ElasticTimeline

    def __init__(self, cell: CellConfigured, zone: str, jobs: Jobs, nodes: Nodes) -> None:
        super().__init__(cell, zone, jobs, nodes)
        self._gpus_of_type = {each.id: {gpu.name: gpu.gpus for gpu in each.gpu_types} for each in cell.zones}
        self._gpus_of: dict[str, int] = {}
        gpus: dict[str, int] = {}
        for each in cell.zones:
            for node in each.nodes:
                self._gpus_of[node.id] = self._gpus_of_type[each.id][node.gpu_type]
            gpus[each.id] = sum(self._gpus_of[node.id] for node in each.nodes)
        self._own = {node.id for each in cell.zones if each.id == zone for node in each.nodes}
        self._own_gpus = gpus[zone]
        self._lent_gpus = {
            each.id: gpus[each.id] for each in cell.zones if each.lending is not None and each.id != zone
        }
        """All GPUs of each zone that lends."""
        self._serving = dict.fromkeys(self._lent_gpus, 0.0)
        self._start_s = self.now_s = cell.epoch_s
        self._usage = GpuUsage(cell.epoch_s, most_hours=None if jobs.kept is None else _HOURS_KEPT)
        self._until_last_input = (cell.epoch_s, GpuSeconds())
        self._placed: dict[str, list[tuple[Integral, int]]] = {}
        """Uses of GPUs by each running job."""
        self.workers_on: Counter[str] = Counter()
        """Number of workers by node."""
        self._borrowed: set[str] = set()
        """Servers of the cell that were ever on loan to the zone."""
        self._reclaims = self._reclaimed_servers = self._reclaimed_gpus = self._overdue = 0
        self._preempting_servers = self._collateral_gpus = 0
        self._profiled = 0
        """Number of jobs that were measured."""
        self._profile_gpu_s = 0.0
        """GPU time of the runs that measured them."""
        self.staffed: ZoneStaffed | None = None
        """Latest report of the zone."""

    @property
    def running(self) -> int:
        """Number of jobs with workers."""
        return sum(job.waits_since_s is None for job in self.admitted())

    @property
    def waiting(self) -> int:
        """Number of admitted jobs without workers."""
        return sum(job.waits_since_s is not None for job in self.admitted())

    @property
    def workers(self) -> int:
        """Number of workers of all jobs, each counted as one on a training server."""
        return sum(job.size.workers for job in self.admitted() if job.size is not None)

    @property
    def gpus(self) -> int:
        """Number of GPUs of the zone's present nodes."""
        return self._nodes.gpus(self._zone)

    @property
    def used_gpus(self) -> int:
        """Number of GPUs in use."""
        return round(self._usage.own.amount + self._usage.on_loaned.amount)

    def fold_event(self, time_s: float, event: Event) -> None:
        """Fold an event of the cell."""
        self.now_s = time_s
        self._usage.pass_time(time_s)
        match event:
            case JobSubmitted(zone=self._zone, workload=ElasticWorkload()):
                self._until_last_input = (time_s, self._usage.until(time_s))
            case InferenceLoadReported() if event.zone in self._lent_gpus:
                serving = event.load * self._lent_gpus[event.zone]
                self._usage.serving.change(time_s, serving - self._serving[event.zone])
                self._serving[event.zone] = serving
                self._until_last_input = (time_s, self._usage.until(time_s))
            case RunStarted() | RunFinished() if (job := self._job(event.job_id)) is not None:
                if job.leads(event.node) and isinstance(event, RunStarted):
                    job.begin(time_s, event.samples_done)
                elif job.leads(event.node):
                    job.reach(time_s, event.samples_done)
            case NodeRegistered() if event.gpu_type in self._gpus_of_type.get(event.zone, {}):
                self._gpus_of.setdefault(event.node, self._gpus_of_type[event.zone][event.gpu_type])

    def fold_outcome(self, time_s: float, outcome: Outcome) -> None:
        """Fold a decision of the cell."""
        self.now_s = max(self.now_s, time_s)
        match outcome:
            case JobResized(zone=self._zone):
                self._resize(time_s, outcome)
            case WorkersAssigned(zone=self._zone) if outcome.node == outcome.members[0].node:
                if (job := self._job(outcome.job_id)) is not None:
                    job.ordered_per_s = outcome.expected_samples_per_s
            case JobProfiled(zone=self._zone) if outcome.expected_from == "assumed":
                self._profiled += 1
                self._profile_gpu_s += outcome.profile_gpu_s
                if (job := self._job(outcome.job_id)) is not None:
                    job.expected_per_s = outcome.samples_per_s
            case JobOutcome(zone=self._zone, is_of_another_job=False):
                if (job := self._job(outcome.job_id)) is not None and job.is_over:
                    self._use(time_s, job, None)
            case LoanChanged(borrower=self._zone):
                self._borrowed.add(outcome.server)
            case NodeMoved() if outcome.node not in self._own and outcome.node in self._gpus_of:
                gpus = self._gpus_of[outcome.node]
                arrives, leaves = outcome.to_zone == self._zone, outcome.from_zone == self._zone
                self._usage.loaned.change(time_s, gpus * (arrives - leaves))
                if outcome.to_zone is None:
                    del self._gpus_of[outcome.node]
                    self._borrowed.discard(outcome.node)
            case ReclaimPlanned():
                servers = [server for server in outcome.servers if server in self._borrowed]
                self._reclaims += bool(servers)
                self._reclaimed_servers += len(servers)
                self._reclaimed_gpus += sum(self._gpus_of[server] for server in servers)
            case ReclaimEnded(status="overdue") if self._borrowed.intersection(outcome.missing):
                self._overdue += 1
            case ServersCleared(zone=self._zone):
                self._preempting_servers += outcome.preempting_servers
                self._collateral_gpus += outcome.collateral_gpus
            case ZoneStaffed(zone=self._zone):
                self.staffed = outcome

    def results(self) -> ElasticResults:
        """Return the results so far."""
        done = [job for job in self.kept() if job.state == "completed"]
        measured_s, used = self._until_last_input
        span_s = measured_s - self._start_s
        own, lent = self._own_gpus * span_s, sum(self._lent_gpus.values()) * span_s
        counts = self.totals()
        errors_pct = [error for job in done if (error := job.running_time_error_pct) is not None]
        gpu_s = self._usage.until(self.now_s)
        return ElasticResults(
            jobs=self.submitted,
            completed=self.completed,
            queuing=Distribution.of([job.queuing_s for job in done]),
            jct=Distribution.of([job.jct_s for job in done if job.jct_s is not None]),
            span_s=span_s,
            training_usage=_part(used.own, own),
            overall_usage=_part(used.own + used.on_loaned + used.serving, own + lent),
            on_loan_usage=_part(used.on_loaned, used.loaned),
            preemptions=counts["preemptions"],
            preemption_ratio=_part(counts["preemptions"], self.submitted),
            resizes=counts["resizes"],
            reclaims=self._reclaims,
            reclaimed_servers=self._reclaimed_servers,
            flexible_servers=self._reclaimed_servers - self._preempting_servers,
            collateral_damage=_part(self._collateral_gpus, self._reclaimed_gpus),
            overdue_reclaims=self._overdue,
            running_time_error_pct=median(errors_pct) if errors_pct else 0.0,
            profiled=self._profiled,
            profile_cost_pct=100
            * _part(
                self._profile_gpu_s / max(self._profiled, 1),
                (gpu_s.own + gpu_s.on_loaned) / max(self.submitted, 1),
            ),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the state and the results."""
        return {
            "jobs_running": self.running,
            "jobs_waiting": self.waiting,
            "workers": self.workers,
            "used_gpus": self.used_gpus,
            "gpus": self.gpus,
            **self.results().as_json(),
        }

    def tables(self) -> Mapping[str, Table]:
        """Return `jobs`, a row per job in the order of submission, and `usage`, mean GPUs by the hour."""
        lent_gpus = sum(self._lent_gpus.values())
        usage = [
            {
                "start_s": start_s,
                "length_s": length_s,
                "own_gpus": self._own_gpus,
                "used_own_gpus": used.own / length_s,
                "loaned_gpus": used.loaned / length_s,
                "used_loaned_gpus": used.on_loaned / length_s,
                "inference_gpus": lent_gpus,
                "serving_gpus": used.serving / length_s,
            }
            for start_s, length_s, used in self._usage.by_hour(self.now_s)
        ]
        return {
            "jobs": [job.as_row(job.workload) for job in self.kept() if job.workload is not None],
            "usage": usage,
        }

    def _resize(self, time_s: float, size: JobResized) -> None:
        if (job := self._job(size.job_id)) is not None:
            self._use(time_s, job, size)
            job.resize(time_s, size)

    def _use(self, time_s: float, job: ElasticTimeline, size: JobResized | None) -> None:
        """Change the workers of a job; None for one that is over."""
        for integral, gpus in self._placed.pop(job.job_id, []):
            integral.change(time_s, -gpus)
        for member in () if job.size is None else job.size.servers:
            self.workers_on[member.node] -= member.workers
        job.size = size
        if size is None or not size.servers or job.workload is None:
            return
        gpus_per_worker = job.workload.gpus_per_worker
        uses = self._placed[job.job_id] = []
        for member in size.servers:
            self.workers_on[member.node] += member.workers
            is_own = member.node in self._own
            job.was_on_loaned |= not is_own
            integral = self._usage.own if is_own else self._usage.on_loaned
            uses.append((integral, member.workers * gpus_per_worker))
        for integral, gpus in uses:
            integral.change(time_s, gpus)


def _part(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
