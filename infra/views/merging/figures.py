"""Figures of merging zones: the jobs' GPUs, the merges, and the time that merges saved."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.views.jobs import Job
from infra.views.nodes import Node
from infra.views.policy import PolicyFigures
from infra.views.text import counted, lasting
from schemas.codec import Decision
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobWithdrawn, NodeStatusChanged
from schemas.merging.commands import ProfileOrdered, TaskMember, TaskReleased, TransferMode
from schemas.merging.outcomes import JobForetold, MergeJudged, QueuedTask, TaskChanged, ZoneMerged

_SHOWN_MERGES = 3
_SHOWN_NODES = 3
_SIGNS: dict[TransferMode, str] = {"normal": "", "temporal": " -> ", "spatial": " || "}


@dataclass
class _Course:
    """One job so far. Times are those of the cell's clock."""

    admitted_s: float
    waits_since_s: float | None
    """Start of the present wait; None while it has GPUs, and when it is over."""
    waited_s: float = 0.0
    """Time that it waited before it last got GPUs."""
    task: str | None = None
    profiled_on: tuple[str, int] | None = None
    """Node of its profile run, and number of GPUs there."""

    def waited_until(self, time_s: float) -> float:
        """Return its whole waiting time until `time_s`."""
        return self.waited_s + (0.0 if self.waits_since_s is None else time_s - self.waits_since_s)


class MergingFigures(PolicyFigures):
    """Jobs, GPUs and merges over all merging zones of a cell.

    Times are those of the cell's clock, which stands still between two ticks.
    """

    NAME = "merging"

    def __init__(self) -> None:
        self._courses: dict[str, _Course] = {}
        """Courses of all jobs, by job."""
        self._live: dict[str, None] = {}
        self._tasks: dict[str, TaskChanged] = {}
        """Tasks with GPUs, by zone and id."""
        self._gpus: dict[str, int] = {}
        """Latest number of GPUs of each zone."""
        self._judged: Counter[str] = Counter()
        """Number of ended merges, by reason."""
        self._completed = 0
        self._jct_s = 0.0
        self.saved_s = 0.0
        """Time with one GPU that all ended merges saved (s)."""
        self._time_s = 0.0
        self._now_s = 0.0

    @property
    def profiling(self) -> int:
        """Number of jobs in a profile run."""
        return sum(self._courses[job_id].profiled_on is not None for job_id in self._live)

    @property
    def running(self) -> int:
        """Number of jobs in training; the receiver of a temporal merge waits for its donor."""
        return sum(len(_active(task)) for task in self._tasks.values())

    @property
    def waiting(self) -> int:
        """Number of other jobs that are not over."""
        return len(self._live) - self.profiling - self.running

    @property
    def used_gpus(self) -> int:
        """Number of GPUs in use by tasks and profile runs."""
        profiles = (self._courses[job_id].profiled_on for job_id in self._live)
        return sum(task.gpus for task in self._tasks.values()) + sum(place[1] for place in profiles if place)

    @property
    def mean_jct_s(self) -> float | None:
        """Mean time from admission to end of completed jobs; None before the first."""
        return self._jct_s / self._completed if self._completed else None

    def take_decision(self, decision: Decision) -> None:
        """Fold a decision; those of other policies have no effect."""
        if decision.time_s is not None:
            self._time_s = decision.time_s
        match outcome := decision.outcome:
            case JobAdmitted(evidence=QueuedTask()):
                self._courses[outcome.job_id] = _Course(self._time_s, self._time_s)
                self._live[outcome.job_id] = None
            case ProfileOrdered() if (course := self._courses.get(outcome.order.job_id)) is not None:
                course.profiled_on = (outcome.node, outcome.gpus)
            case JobForetold() if (course := self._courses.get(outcome.job_id)) is not None:
                course.profiled_on = None
            case TaskChanged():
                self._change(outcome)
            case TaskReleased():
                self._clear(f"{outcome.zone}/{outcome.task_id}")
            case MergeJudged():
                self._judged[outcome.reason] += 1
                self.saved_s += outcome.saved_s
            case ZoneMerged():
                self._gpus[outcome.zone] = outcome.gpus
            case NodeStatusChanged(status="down"):
                self._lose(outcome.node)
            case JobCompleted() | JobRefunded() | JobWithdrawn() if outcome.job_id in self._live:
                self._end(outcome.job_id, isinstance(outcome, JobCompleted))

    def read_clock(self, time_s: float) -> None:
        """Set the time until which jobs have waited."""
        self._now_s = time_s

    def headline(self) -> str:
        """Return running jobs and merges, and the time that merges saved."""
        if not self._courses:
            return ""
        parts = [f"{self.profiling} profiling, {self.running} running, {self.waiting} waiting"]
        parts += [f"{self.used_gpus}{self._of_gpus()} GPUs in use"]
        merged = [task for task in self._tasks.values() if len(task.job_ids) > 1]
        more = len(merged) - _SHOWN_MERGES
        shown = ", ".join(f"{chain(task)} on {counted(task.gpus, 'GPU')}" for task in merged[:_SHOWN_MERGES])
        if merged:
            parts += [f"merged now: {shown}{f' and {more} more' if more > 0 else ''}"]
        if self._judged:
            over = f"{self._judged['finished']} finished, {self._judged['undone']} undone"
            parts += [f"merges: {over}, {worth(self.saved_s)}"]
        return "; ".join(parts)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield all figures."""
        if not self._courses:
            return
        yield "jobs profiling, running and waiting", f"{self.profiling}, {self.running}, {self.waiting}"
        yield "GPUs in use", f"{self.used_gpus}{self._of_gpus()}"
        yield "merged jobs that were done in their merge", str(self._judged["finished"])
        yield "jobs whose merge was undone", str(self._judged["undone"])
        yield "worth of merges", worth(self.saved_s)
        if self.mean_jct_s is not None:
            yield "mean completion time, by ticks", lasting(self.mean_jct_s)

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        if not self._courses:
            return {}
        return {
            "jobs_profiling": self.profiling,
            "jobs_running": self.running,
            "jobs_waiting": self.waiting,
            "used_gpus": self.used_gpus,
            "gpus": sum(self._gpus.values()) or None,
            "merged_jobs_finished": self._judged["finished"],
            "merged_jobs_undone": self._judged["undone"],
            "saved_s": self.saved_s,
            "mean_jct_by_ticks_s": self.mean_jct_s,
        }

    def job_cells(self, job: Job) -> dict[str, str]:
        """Return its GPUs and their nodes, its merge, and its waiting time."""
        course = self._courses.get(job.job_id)
        if course is None:
            return {}
        cells = {"waited": lasting(course.waited_until(self._now_s))}
        if course.profiled_on is not None:
            node, gpus = course.profiled_on
            cells["GPUs"] = f"{gpus} on {node}, profiling"
        task = None if course.task is None else self._tasks.get(course.task)
        if task is not None:
            if job.job_id in _active(task):
                cells["GPUs"] = f"{task.gpus} on {places(task.members)}"
            if len(task.job_ids) > 1:
                cells["merge"] = chain(task)
        return cells

    def node_cells(self, node: Node) -> dict[str, str]:
        """Return the number of the node's GPUs in use by tasks and profile runs."""
        used = sum(
            member.gpus
            for task in self._tasks.values()
            for member in task.members
            if member.node == node.node
        )
        for job_id in self._live:
            place = self._courses[job_id].profiled_on
            used += place[1] if place is not None and place[0] == node.node else 0
        return {"GPUs": str(used)} if used else {}

    def _of_gpus(self) -> str:
        total = sum(self._gpus.values())
        return f" of {total}" if total else ""

    def _change(self, change: TaskChanged) -> None:
        key = f"{change.zone}/{change.task_id}"
        self._clear(key)
        if not change.gpus:
            return
        self._tasks[key] = change
        for job_id in change.job_ids:
            course = self._courses[job_id]
            course.task = key
            if job_id in _active(change):
                course.waited_s, course.waits_since_s = course.waited_until(self._time_s), None

    def _clear(self, key: str) -> None:
        """Remove a task that has ended or changes."""
        before = self._tasks.pop(key, None)
        for job_id in () if before is None else before.job_ids:
            course = self._courses[job_id]
            if course.task == key and job_id in self._live:
                course.task = None
                if course.waits_since_s is None:
                    course.waits_since_s = self._time_s

    def _lose(self, node: str) -> None:
        """End the profile runs on a lost node; each of its tasks has a decision of its own."""
        for job_id in self._live:
            place = self._courses[job_id].profiled_on
            if place is not None and place[0] == node:
                self._courses[job_id].profiled_on = None

    def _end(self, job_id: str, is_completed: bool) -> None:
        course = self._courses[job_id]
        course.waited_s, course.waits_since_s = course.waited_until(self._time_s), None
        course.profiled_on = None
        del self._live[job_id]
        task = None if course.task is None else self._tasks.get(course.task)
        if course.task is not None and task is not None and task.job_ids == (job_id,):
            del self._tasks[course.task]
        course.task = None
        if is_completed:
            self._completed += 1
            self._jct_s += self._time_s - course.admitted_s


def chain(task: TaskChanged) -> str:
    """Return the task's jobs: `a -> b` if b starts from a's weights, `a || b` if both are in one run."""
    return _SIGNS[task.mode].join(task.job_ids)


def places(members: tuple[TaskMember, ...]) -> str:
    """Return a text about the nodes of GPUs, the first few by name."""
    shown = ", ".join(f"{member.node} x{member.gpus}" for member in members[:_SHOWN_NODES])
    more = len(members) - _SHOWN_NODES
    return f"{shown} and {counted(more, 'more node')}" if more > 0 else shown


def worth(saved_s: float) -> str:
    """Return a text about the time with one GPU that merges saved or cost."""
    verb = "saved" if saved_s >= 0 else "cost"
    return f"{verb} {lasting(abs(saved_s))} of one GPU"


def _active(task: TaskChanged) -> tuple[str, ...]:
    """Return the jobs that are trained now."""
    return task.job_ids[:1] if task.mode == "temporal" else task.job_ids
