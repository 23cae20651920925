"""Figures of an elastic zone: workers, reclaims, and the measures of the thesis (section 3.7)."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from infra.figures.distribution import Distribution
from infra.figures.elastic.jobs import ElasticTimeline
from infra.figures.elastic.results import ElasticResults
from infra.figures.elastic.usage import GpuSeconds, GpuUsage, Integral
from infra.figures.jobs import Jobs, JobTimeline
from infra.figures.nodes import Node, Nodes
from infra.figures.zone import Table, ZoneFigures
from infra.text import counted, lasting
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.changes import NodeRegistered
from schemas.decisions import JobOutcome, NodeMoved
from schemas.elastic.commands import Member
from schemas.elastic.outcomes import JobResized, ResizeReason, ServersCleared
from schemas.elastic.staffing import ZoneStaffed
from schemas.elastic.workload import ElasticWorkload
from schemas.inference import InferenceLoadReported
from schemas.jobs import JobSubmitted
from schemas.loans import LoanChanged, ReclaimEnded, ReclaimPlanned

_SHOWN_SERVERS = 3


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
        self._start_s = self._end_s = cell.epoch_s
        self._submitted = self._completed = 0
        self._usage = GpuUsage(cell.epoch_s, most_hours=jobs.kept)
        self._until_last_input = (cell.epoch_s, GpuSeconds())
        self._placed: dict[str, list[tuple[Integral, int]]] = {}
        """Uses of GPUs by each running job."""
        self._workers_on: Counter[str] = Counter()
        """Number of workers by node."""
        self._resizes: Counter[ResizeReason] = Counter()
        """Number of changes of workers, by reason."""
        self._changed_while_running = 0
        self._borrowed: set[str] = set()
        """Servers that were ever on loan to the zone."""
        self._reclaims = self._reclaimed_servers = self._reclaimed_gpus = self._overdue = 0
        self._preempting_servers = self._collateral_gpus = 0
        self._staffed: ZoneStaffed | None = None
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
    def used_gpus(self) -> int:
        """Number of GPUs in use."""
        return round(self._usage.own.amount + self._usage.on_loaned.amount)

    def fold_event(self, time_s: float, event: Event) -> None:
        """Fold an event of the cell."""
        self._end_s = time_s
        self._usage.pass_time(time_s)
        match event:
            case JobSubmitted(zone=self._zone, workload=ElasticWorkload()):
                self._submitted += self._has_begun(event)
                self._until_last_input = (time_s, self._usage.until(time_s))
            case InferenceLoadReported() if event.zone in self._lent_gpus:
                serving = event.load * self._lent_gpus[event.zone]
                self._usage.serving.change(time_s, serving - self._serving[event.zone])
                self._serving[event.zone] = serving
                self._until_last_input = (time_s, self._usage.until(time_s))
            case NodeRegistered() if event.gpu_type in self._gpus_of_type.get(event.zone, {}):
                self._gpus_of.setdefault(event.node, self._gpus_of_type[event.zone][event.gpu_type])

    def fold_outcome(self, time_s: float, outcome: Outcome) -> None:
        """Fold a decision of the cell."""
        self._end_s = max(self._end_s, time_s)
        match outcome:
            case JobResized(zone=self._zone):
                self._resize(time_s, outcome)
            case JobOutcome(zone=self._zone, is_of_another_job=False):
                if (job := self._job(outcome.job_id)) is not None and job.is_over:
                    self._completed += job.state == "completed"
                    self._use(time_s, job, None)
            case LoanChanged(borrower=self._zone):
                self._borrowed.add(outcome.server)
            case NodeMoved() if outcome.node not in self._own and outcome.node in self._gpus_of:
                gpus = self._gpus_of[outcome.node]
                arrives, leaves = outcome.to_zone == self._zone, outcome.from_zone == self._zone
                self._usage.loaned.change(time_s, gpus * (arrives - leaves))
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
                self._staffed = outcome

    def results(self) -> ElasticResults:
        """Return the results so far."""
        done = [job for job in self.kept() if job.state == "completed"]
        measured_s, used = self._until_last_input
        span_s = measured_s - self._start_s
        own, lent = self._own_gpus * span_s, sum(self._lent_gpus.values()) * span_s
        preemptions = self._resizes["preempted"]
        return ElasticResults(
            jobs=self._submitted,
            completed=self._completed,
            queuing=Distribution.of([job.queuing_s for job in done]),
            jct=Distribution.of([job.jct_s for job in done if job.jct_s is not None]),
            span_s=span_s,
            training_usage=_part(used.own, own),
            overall_usage=_part(used.own + used.on_loaned + used.serving, own + lent),
            on_loan_usage=_part(used.on_loaned, used.loaned),
            preemptions=preemptions,
            preemption_ratio=_part(preemptions, self._submitted),
            resizes=self._changed_while_running,
            reclaims=self._reclaims,
            reclaimed_servers=self._reclaimed_servers,
            flexible_servers=self._reclaimed_servers - self._preempting_servers,
            collateral_damage=_part(self._collateral_gpus, self._reclaimed_gpus),
            overdue_reclaims=self._overdue,
        )

    def headline(self) -> str:
        """Return running and waiting jobs, and those that the next reclaim would preempt."""
        if not self._submitted:
            return ""
        parts = [f"{self.running} running on {self.workers} workers", f"{self.waiting} queued"]
        parts.append(f"{self.used_gpus} of {self._nodes.gpus(self._zone)} GPUs in use")
        if self._staffed is not None and self._staffed.on_loan:
            parts.append(_risk(self._staffed))
        return ", ".join(parts)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the state while jobs are live, and the results."""
        if self.running or self.waiting:
            yield "jobs with workers, and without", f"{self.running}, {self.waiting}"
            yield "workers", str(self.workers)
            yield "GPUs in use", f"{self.used_gpus} of {self._nodes.gpus(self._zone)}"
        yield from self.results().rows()

    def as_json(self) -> dict[str, Any]:
        """Return the state and the results."""
        return {
            "jobs_running": self.running,
            "jobs_waiting": self.waiting,
            "workers": self.workers,
            "used_gpus": self.used_gpus,
            "gpus": self._nodes.gpus(self._zone),
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
            for start_s, length_s, used in self._usage.by_hour(self._end_s)
        ]
        return {
            "jobs": [job.as_row(job.workload) for job in self.kept() if job.workload is not None],
            "usage": usage,
        }

    def job_cells(self, job: JobTimeline) -> dict[str, str]:
        """Return its workers and their servers, its waiting time, and whether a reclaim would preempt it."""
        if not isinstance(job, ElasticTimeline) or job.payment_micros is None:
            return {}
        cells = {"waited": lasting(job.waited_s(self._end_s))}
        if not job.is_over:
            cells["workers"] = f"{0 if job.size is None else job.size.workers}{_range(job.workload)}"
        if job.size is not None and job.size.workers:
            cells["servers"] = servers_of(job.size.servers)
            cells["pool"] = pools_of(job.size)
            if risk := _effect(self._staffed, job.job_id):
                cells["next reclaim"] = risk
        return cells

    def node_cells(self, node: Node) -> dict[str, str]:
        """Return the number of workers on the node."""
        workers = self._workers_on[node.node]
        return {"workers": str(workers)} if workers else {}

    def _resize(self, time_s: float, size: JobResized) -> None:
        self._resizes[size.reason] += 1
        job = self._job(size.job_id)
        if job is None:
            return
        before = job.resizes
        self._use(time_s, job, size)
        job.resize(time_s, size)
        self._changed_while_running += job.resizes - before

    def _use(self, time_s: float, job: ElasticTimeline, size: JobResized | None) -> None:
        """Change the workers of a job; None for one that is over."""
        for integral, gpus in self._placed.pop(job.job_id, []):
            integral.change(time_s, -gpus)
        for member in () if job.size is None else job.size.servers:
            self._workers_on[member.node] -= member.workers
        job.size = size
        if size is None or not size.servers or job.workload is None:
            return
        gpus_per_worker = job.workload.gpus_per_worker
        uses = self._placed[job.job_id] = []
        for member in size.servers:
            self._workers_on[member.node] += member.workers
            is_own = member.node in self._own
            job.was_on_loaned |= not is_own
            integral = self._usage.own if is_own else self._usage.on_loaned
            uses.append((integral, member.workers * gpus_per_worker))
        for integral, gpus in uses:
            integral.change(time_s, gpus)


def servers_of(members: tuple[Member, ...]) -> str:
    """Return a text about the servers of workers, the first few by name."""
    shown = ", ".join(f"{member.node} x{member.workers}" for member in members[:_SHOWN_SERVERS])
    more = len(members) - _SHOWN_SERVERS
    return f"{shown} and {more} more servers" if more > 0 else shown


def pools_of(size: JobResized) -> str:
    """Return the names of the pools of a job's workers."""
    return " + ".join(dict.fromkeys(pool for pool in (size.pool, size.flexible_pool) if pool is not None))


def _range(workload: ElasticWorkload | None) -> str:
    if workload is None:
        return ""
    if workload.min_workers == workload.max_workers:
        return f" of {workload.max_workers}"
    return f" of {workload.min_workers}-{workload.max_workers}"


def _risk(staffed: ZoneStaffed) -> str:
    if not staffed.next_reclaims:
        return f"all {staffed.on_loan} servers on loan can go back without a preemption"
    first = staffed.next_reclaims[0]
    return (
        f"{staffed.harmless_returns} of {staffed.on_loan} servers on loan can go back without a preemption, "
        f"one more preempts {', '.join(first.preempts)}"
    )


def _effect(staffed: ZoneStaffed | None, job_id: str) -> str:
    for effect in () if staffed is None else staffed.next_reclaims:
        if job_id in effect.preempts:
            return f"preempted if {counted(effect.servers, 'server')} must go"
    return ""


def _part(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
