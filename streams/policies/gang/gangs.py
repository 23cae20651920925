"""The gangs of a zone: the effects of reports, lost nodes and silence, and the ends of jobs.

A policy decides the nodes of a job and its number of processes on each. All that follows is common to all
policies.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

from schemas.facts import NO_FACTS, Fact
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from streams.cell.nodes import NodeChange
from streams.policies.gang.generation import Gang, Leaving, generation_of
from streams.policies.gang.room import JobsRoom
from streams.policies.ignored import job_ending, no_such_run
from streams.policies.orders import OrderClock
from streams.policies.policy import ZoneContext

G = TypeVar("G", bound=Gang)
R = TypeVar("R", bound=str)

Cause = Literal["started", "resumed", "node_lost", "preempted", "run_failed", "withdrawn", "work_done"]
"""Causes for which processes begin and end under any policy."""


class Why(NamedTuple, Generic[R]):
    """The reason for a change of a gang."""

    reason: R
    facts: Mapping[str, Fact] = NO_FACTS
    by_s: float | None = None
    """Time by which processes must have ended; None if no job or zone waits for their nodes."""


class Gangs(ABC, Generic[G, R]):
    """Gangs of one zone."""

    def __init__(self, context: ZoneContext) -> None:
        self.zone = context.zone.id
        self._outcomes = context.outcomes
        self.orders = OrderClock(context.cell.cell, timeout_s=math.inf)
        """Its timeout is that of the zone's settings."""
        self.jobs: dict[str, G] = {}
        """Jobs by id, in the order of their arrival."""
        self.arrivals = 0
        """Number of arrivals by now, from which `arrival` is set."""
        self.room = JobsRoom(context.live)
        self.has_changed = False
        """Whether an event since the last assignment of nodes could change an assignment."""

    def add(self, job: G) -> None:
        self.jobs[job.job_id], self.has_changed = job, True
        self.note(job)

    def note_nodes(self) -> None:
        """Note that the zone has other nodes, or nodes in other states."""
        self.has_changed = True

    def note_assignment(self) -> None:
        """Note that nodes are assigned now, from the present state."""
        self.has_changed = False

    def jobs_on(self, node: str) -> list[G]:
        """Return the jobs with processes on a node, those that are to end included, in the order of their
        arrival."""
        return [job for job in self.jobs.values() if node in job.members or node in job.leaving]

    def is_busy(self, node: str) -> bool:
        """Return whether a node has processes, or has not reported their end."""
        return bool(self.jobs_on(node))

    def withdraw(self, job: G) -> None:
        """Apply the withdrawal of a job by its user."""
        if job.is_ending:
            self._outcomes.add(job_ending(job.job_id))
            return
        job.withdraw()
        self.end(job, self._why(job, "withdrawn"))

    def report(self, job: G, report: RunReport, backs_off: bool = False) -> bool:
        """Apply a report of a node about a run of a job.

        Args:
            backs_off: whether the job waits before it is resumed, if the run has failed.

        Returns:
            whether the job has that run.
        """
        generation, leaving = generation_of(report.run_id), job.leaving.get(report.node)
        is_newest = generation == job.generation
        is_older = job.ALL_TRACK_PROGRESS and generation is not None and generation < job.generation
        if leaving is not None and leaving.generation == generation:
            self._report_of_leaving(job, report, leaving)
        elif is_newest and report.node in job.working:
            self._report_of_member(job, report, backs_off)
        elif isinstance(report, RunFinished) and report.node in job.working and is_older:
            # The work was done before the node received the newest generation.
            self._complete(job, report)
        else:
            self._outcomes.add(no_such_run(report))
            return False
        return True

    def refuse(self, job: G, failed: RunFailed) -> None:
        """Apply a node's refusal to begin a run of a job."""
        self.report(job, failed, backs_off=True)

    def give_up_silent(self) -> None:
        """Count silent runs as failed, or as ended where nodes were ordered to end them."""
        orders = self.orders
        for job in list(self.jobs.values()):
            if job.members and orders.is_lost(job.last_seen_s, job.quiet_s):
                failed = orders.failure(job.job, job.run_id, job.leader, job.last_seen_s)
                self._fail_run(job, failed, backs_off=True)
            if job.leaving and orders.is_lost(job.released_s):
                for node in list(job.leaving):
                    self._note_ended_on(job, node)

    def return_to_queue(self, job: G, why: Why[R], without: str | None = None) -> None:
        """End the processes of a job. It waits until it is resumed, unless it is ending.

        Args:
            without: a node whose processes have ended.
        """
        if job.members and not job.keeps_progress:
            job.job.samples_done = 0
        self.end(job, why, without)

    @abstractmethod
    def end(self, job: G, why: Why[R], without: str | None = None) -> None:
        """End the processes of a job, as `return_to_queue` does, and keep its progress. A job that is ending,
        and has no processes left, is over."""

    def lose_node(self, change: NodeChange) -> None:
        """End the runs of a node that is down or has restarted, except those that it continues. The node is
        nevertheless ordered to end them: if it was only silent, it ends them when it is back."""
        node, facts = change.node, {"node": change.node, "status": change.status}
        for job in self.jobs_on(node):
            members, runs = self._placement(job)
            if node in members and not any(run in change.runs for run in runs):
                self.return_to_queue(job, self._why(job, "node_lost", facts))
            if node in job.leaving and job.run_of(job.leaving[node].generation) not in change.runs:
                self._note_ended_on(job, node)

    def preempt(self, job: G, facts: Mapping[str, Fact]) -> None:
        """End the processes of a job, since their nodes are needed for others."""
        self.return_to_queue(job, self._why(job, "preempted", facts))

    def leave(self, job: G, nodes: Mapping[str, int], generation: int) -> None:
        """Note that nodes are to end their processes of a generation."""
        for node, processes in nodes.items():
            job.leaving[node] = Leaving(generation, processes, node == job.leader)
        if nodes:
            job.released_s = self.orders.elapsed_s

    def note(self, job: G) -> None:
        """Update everything that is derived from a job."""
        if job.job_id in self.jobs:
            self.room.count(job, self._bytes_of(job))
        else:
            self.room.remove(job)

    def describe(self) -> dict[str, Any]:
        """Describe the jobs and their room in the snapshot for an operator, in values that JSON has."""
        return {
            "jobs": {id: job.describe(self.orders.elapsed_s) for id, job in self.jobs.items()},
            "held_bytes": dict(self.room.held),
        }

    def broken_invariants(self) -> Iterator[str]:
        """Yield a line for each broken invariant."""
        for id, job in self.jobs.items():
            if job.members and job.is_ending:
                yield f"job {id} is ending, and has processes on {list(job.members)}"
            if job.members and job.leader not in job.members:
                yield f"job {id} has no leader among {list(job.members)}"
            if not job.done.keys() <= job.members.keys() or job.leader in job.done:
                yield f"job {id} waits for its leader with {list(job.done)} of {list(job.members)} done"

    def _placement(self, job: G) -> tuple[Collection[str], Sequence[str]]:
        """Return the nodes of a job's processes, and the ids of the runs of these processes."""
        return job.members, (job.run_id,)

    def _bytes_of(self, job: G) -> int:
        """Return the most bytes of a job in a snapshot, with what is kept for it."""
        return job.state_bytes

    def _why(self, job: G, cause: Cause, facts: Mapping[str, Fact] = NO_FACTS) -> Why[R]:  # noqa: ARG002
        """Return the policy's reason for a change by a common cause: by default the same word, which is then
        one of the policy's reasons.

        Args:
            job: in its state after a failure or a withdrawal.
        """
        return Why(cast(R, cause), facts)

    def _quiet_after_start_s(self, job: G) -> float:  # noqa: ARG002
        """Return the time after its start in which a run may be silent, in addition to the timeout (s)."""
        return 0.0

    def _begin_generation(
        self, job: G, generation: int, members: Mapping[str, int], quiet_s: float = 0.0
    ) -> None:
        """Give a job the processes of a new generation, the first of which leads it.

        Args:
            quiet_s: time in which it may be silent, in addition to the timeout.
        """
        job.generation, job.members, job.leader = generation, dict(members), next(iter(members))
        job.mark_seen(self.orders.elapsed_s, quiet_s)

    def _started(self, job: G, samples_done: int) -> None:
        """Apply the start of a run."""
        job.progress(samples_done)

    def _progressed(self, job: G, samples_done: int) -> None:
        """Apply the progress of a run."""
        job.progress(samples_done)

    def _release_job(self, job: G) -> None:
        """Release all resources of a job except its processes, which end or have ended. Its members are still
        set."""

    def _release_node(self, job: G, node: str) -> None:
        """Release a node that has no processes of a job any more."""

    def _release_ended(self, job: G) -> None:
        """Release everything of a job that is over."""

    def _report_of_member(self, job: G, report: RunReport, backs_off: bool) -> None:
        leads = report.node == job.leader
        if leads:
            self._apply_report(job, report)
        match report:
            case RunFailed():
                self._fail_run(job, report, backs_off)
            case RunFinished() if job.tracks_progress(leads):
                self._complete(job, report)
            case RunFinished() | RunProgressed(complete=True) if not leads and job.is_all_done(report):
                # The node has ended older processes before, even if the report of their end is lost.
                job.leaving.pop(report.node, None)
                job.done[report.node] = None
                self.note(job)
            case RunFinished() | RunProgressed(complete=True):
                self._progressed(job, report.samples_done)
                why = self._why(job, "run_failed", {"case": "ended", "node": report.node})
                self.return_to_queue(job, why, without=report.node)
                self._note_ended_on(job, report.node)
            case RunStarted() if leads:
                self._started(job, report.samples_done)
                job.mark_seen(self.orders.elapsed_s, self._quiet_after_start_s(job))
            case RunProgressed() if leads:
                self._progressed(job, report.samples_done)

    def _apply_report(self, job: G, report: RunReport) -> None:
        """Note a leader's report. After its first progress it reports regularly."""
        has_progressed = isinstance(report, RunProgressed) and not report.complete
        job.mark_seen(self.orders.elapsed_s, 0.0 if has_progressed else job.quiet_s)

    def _report_of_leaving(self, job: G, report: RunReport, leaving: Leaving) -> None:
        """Apply a report of a node that was to end processes: their end and, from the leader, their
        progress."""
        if not report.ends_run:
            return
        counts = job.tracks_progress(leaving.leads) and job.finished is None and job.given_up is None
        if counts and isinstance(report, RunFinished):
            self._complete(job, report)
            return
        if counts and isinstance(report, RunProgressed) and job.keeps_progress and not job.members:
            self._progressed(job, report.samples_done)
        self._note_ended_on(job, report.node)

    def _complete(self, job: G, report: RunFinished) -> None:
        """Complete a job: its work is done, and the processes of the reporting node have ended."""
        generation = generation_of(report.run_id)
        self._progressed(job, report.samples_done)
        job.finished = report
        if generation == job.generation:
            self._release_all(job)
        self.end(job, self._why(job, "work_done"))
        leaving = job.leaving.get(report.node)
        if leaving is not None and leaving.generation == generation:
            self._note_ended_on(job, report.node)

    def _fail_run(self, job: G, report: RunFailed, backs_off: bool) -> None:
        """Apply a failed run: count it, and return the job to the queue."""
        facts = job.fail(report, self.orders, backs_off)
        self.return_to_queue(job, self._why(job, "run_failed", facts), without=report.node)
        self._note_ended_on(job, report.node)

    def _release_all(self, job: G) -> None:
        """Release all nodes of a job: they are to end its processes, unless they have."""
        self.leave(job, {node: job.members[node] for node in job.working}, job.generation)
        self._release_job(job)
        done = job.done
        job.members, job.done = {}, {}
        for node in done:
            self._release_node(job, node)

    def _note_ended_on(self, job: G, node: str) -> None:
        """Note that a node has ended its processes."""
        job.leaving.pop(node, None)
        if node not in job.members:
            self._release_node(job, node)
        self._end_if_over(job)

    def _end_if_over(self, job: G) -> None:
        """End a job, once, that is ending and whose last process has ended."""
        self.has_changed = True
        if job.job_id not in self.jobs:
            return
        is_over = job.is_ending and not job.members and not job.leaving
        if is_over:
            del self.jobs[job.job_id]
        self.note(job)
        if is_over:
            self._release_ended(job)
            self._outcomes.add(job.ended(self.zone))
