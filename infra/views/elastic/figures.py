"""Figures of elastic jobs: their workers, waiting times and completion times."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.views.jobs import Job
from infra.views.nodes import Node
from infra.views.policy import PolicyFigures
from infra.views.text import counted, lasting
from schemas.base import Outcome
from schemas.codec import Decision
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobWithdrawn
from schemas.elastic.commands import Member
from schemas.elastic.outcomes import JobResized, QueuedJob, ResizeReason
from schemas.elastic.staffing import ZoneStaffed
from schemas.elastic.workload import ElasticWorkload

_SCALINGS: tuple[ResizeReason, ...] = ("scaled_out", "scaled_in", "moved", "servers_reclaimed")
_SHOWN_SERVERS = 3


@dataclass
class _Course:
    """One job so far. Times are those of the cell's clock."""

    admitted_s: float
    waits_since_s: float | None
    """Start of the present wait; None while it has workers, and when it is over."""
    queuing_s: float = 0.0
    """Time that it waited before it last got workers."""
    size: JobResized | None = None
    """Latest size; None before its first workers, and when it is over."""

    def waited_s(self, time_s: float) -> float:
        """Return its whole waiting time until `time_s`."""
        return self.queuing_s + (0.0 if self.waits_since_s is None else time_s - self.waits_since_s)


class ElasticFigures(PolicyFigures):
    """Jobs, workers and preemptions over all elastic zones of a cell, and mean times.

    Times are those of the cell's clock, which stands still between two ticks: a job that starts within the
    interval of its submission has not waited.
    """

    NAME = "elastic"

    def __init__(self) -> None:
        self._courses: dict[str, _Course] = {}
        self._live: dict[str, None] = {}
        self._node_workers: dict[str, dict[str, int]] = {}
        """Workers of each job, by node."""
        self._resizes: Counter[str] = Counter()
        """Number of changes of workers, by reason."""
        self._staffed: dict[str, ZoneStaffed] = {}
        """Latest state of each zone."""
        self._completed = 0
        self._jct_s = 0.0
        """Sum of the completion times of completed jobs."""
        self._queued_s = 0.0
        """Sum of the waiting times of completed jobs."""
        self._time_s = 0.0
        """Time of the last folded decision."""
        self._now_s = 0.0

    @property
    def running(self) -> int:
        """Number of jobs with workers."""
        return sum(self._courses[job_id].waits_since_s is None for job_id in self._live)

    @property
    def waiting(self) -> int:
        """Number of jobs without workers."""
        return len(self._live) - self.running

    @property
    def workers(self) -> int:
        """Number of workers of all jobs, each counted as one on a training server."""
        sizes = (self._courses[job_id].size for job_id in self._live)
        return sum(size.workers for size in sizes if size is not None)

    @property
    def preemptions(self) -> int:
        """Number of times that a reclaim put a job back into the queue."""
        return self._resizes["preempted"]

    @property
    def scalings(self) -> int:
        """Number of changes of the workers of running jobs."""
        return sum(self._resizes[reason] for reason in _SCALINGS)

    @property
    def mean_queuing_s(self) -> float | None:
        """Mean time of completed jobs without workers; None before the first."""
        return self._queued_s / self._completed if self._completed else None

    @property
    def mean_jct_s(self) -> float | None:
        """Mean time from admission to end of completed jobs; None before the first."""
        return self._jct_s / self._completed if self._completed else None

    def take_decision(self, decision: Decision) -> None:
        """Fold a decision; those of other policies have no effect."""
        if decision.time_s is not None:
            self._time_s = decision.time_s
        match outcome := decision.outcome:
            case JobAdmitted(evidence=QueuedJob()):
                self._courses[outcome.job_id] = _Course(self._time_s, self._time_s)
                self._live[outcome.job_id] = None
            case JobResized() if outcome.job_id in self._live:
                self._resize(self._courses[outcome.job_id], outcome)
            case JobCompleted() | JobRefunded() | JobWithdrawn() if outcome.job_id in self._live:
                self._end(outcome.job_id, outcome)
            case ZoneStaffed():
                self._staffed[outcome.zone] = outcome

    def read_clock(self, time_s: float) -> None:
        """Set the time until which jobs have waited."""
        self._now_s = time_s

    def headline(self) -> str:
        """Return running and waiting jobs, and those that the next reclaim would preempt."""
        if not self._courses:
            return ""
        parts = [f"{self.running} running on {self.workers} workers", f"{self.waiting} queued"]
        parts += [_risk(staffed) for staffed in self._staffed.values() if staffed.on_loan]
        return ", ".join(parts)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield all figures."""
        if not self._courses:
            return
        yield "jobs with workers, and without", f"{self.running}, {self.waiting}"
        yield "workers", str(self.workers)
        yield "changes of a running job's workers", str(self.scalings)
        yield "preemptions", str(self.preemptions)
        if self.mean_queuing_s is not None and self.mean_jct_s is not None:
            yield "mean queuing time of completed jobs, by ticks", lasting(self.mean_queuing_s)
            yield "mean completion time, by ticks", lasting(self.mean_jct_s)

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        if not self._courses:
            return {}
        return {
            "jobs_running": self.running,
            "jobs_waiting": self.waiting,
            "workers": self.workers,
            "scalings": self.scalings,
            "preemptions": self.preemptions,
            "mean_queuing_by_ticks_s": self.mean_queuing_s,
            "mean_jct_by_ticks_s": self.mean_jct_s,
        }

    def job_cells(self, job: Job) -> dict[str, str]:
        """Return its workers and their servers, its waiting time, and whether a reclaim would preempt it."""
        course = self._courses.get(job.job_id)
        if course is None:
            return {}
        cells = {"waited": lasting(course.waited_s(self._now_s))}
        if job.job_id in self._live:
            workers = 0 if course.size is None else course.size.workers
            cells["workers"] = f"{workers}{_range(job)}"
        if course.size is not None and course.size.workers:
            cells["servers"] = servers_of(course.size.servers)
            cells["pool"] = pools_of(course.size)
            risk = next(
                filter(None, (_effect(staffed, job.job_id) for staffed in self._staffed.values())), ""
            )
            if risk:
                cells["next reclaim"] = risk
        return cells

    def node_cells(self, node: Node) -> dict[str, str]:
        """Return the number of workers on the node."""
        workers = self._node_workers.get(node.node)
        return {"workers": str(sum(workers.values()))} if workers else {}

    def _resize(self, course: _Course, size: JobResized) -> None:
        self._resizes[size.reason] += 1
        self._place(size.job_id, course.size, size)
        course.size = size
        if size.workers:
            course.queuing_s = course.waited_s(self._time_s)
            course.waits_since_s = None
        elif course.waits_since_s is None and size.reason != "stopped":
            course.waits_since_s = self._time_s

    def _place(self, job_id: str, before: JobResized | None, now: JobResized | None) -> None:
        for member in () if before is None else before.servers:
            self._node_workers[member.node].pop(job_id, None)
        for member in () if now is None else now.servers:
            self._node_workers.setdefault(member.node, {})[job_id] = member.workers

    def _end(self, job_id: str, outcome: Outcome) -> None:
        course = self._courses[job_id]
        course.queuing_s, course.waits_since_s = course.waited_s(self._time_s), None
        self._place(job_id, course.size, None)
        course.size = None
        del self._live[job_id]
        if isinstance(outcome, JobCompleted):
            self._completed += 1
            self._jct_s += self._time_s - course.admitted_s
            self._queued_s += course.queuing_s


def servers_of(members: tuple[Member, ...]) -> str:
    """Return a text about the servers of workers, the first few by name."""
    shown = ", ".join(f"{member.node} x{member.workers}" for member in members[:_SHOWN_SERVERS])
    more = len(members) - _SHOWN_SERVERS
    return f"{shown} and {more} more servers" if more > 0 else shown


def pools_of(size: JobResized) -> str:
    """Return the names of the pools of a job's workers."""
    return " + ".join(dict.fromkeys(pool for pool in (size.pool, size.flexible_pool) if pool is not None))


def _range(job: Job) -> str:
    workload = None if job.submission is None else job.submission.workload
    if not isinstance(workload, ElasticWorkload):
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


def _effect(staffed: ZoneStaffed, job_id: str) -> str:
    for effect in staffed.next_reclaims:
        if job_id in effect.preempts:
            return f"preempted if {counted(effect.servers, 'server')} must go"
    return ""
