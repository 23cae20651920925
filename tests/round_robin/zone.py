"""A zone under the round-robin policy."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from schemas.decisions import (
    JobAdmitted,
    JobCompleted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
)
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport
from schemas.solves import SolveFinished, SolveRequested
from streams.cell.jobs import Job
from streams.cell.nodes import NodeChange
from streams.policies.ignored import no_such_run, unknown_solve
from streams.policies.policy import BrokenPromise, ZoneContext, ZonePolicy
from tests.round_robin.kind import CountWorkload, QueuePlace, RoundRobinPolicy, SortProblem, SortSolution
from tests.support.counting_commands import CountCancelled, CountOrdered

SOLVE_LIMIT_S = 10.0
PLACE_BYTES = 512
"""Most bytes of a place in the queue or on a node in a snapshot: two ids and that of a run."""


class RoundRobinZone(ZonePolicy):
    """See `ZonePolicy`."""

    def __init__(self, context: ZoneContext) -> None:
        self._jobs = context.jobs
        self._outcomes = context.outcomes
        self._live = context.live
        self._configure(context)
        self._states = context.nodes
        self._queue: list[str] = []
        self._running: dict[str, tuple[str, str]] = {}
        """Job and run by node."""
        self._runs = self._requests = 0
        self._asked: str | None = None
        """The request that waits for its answer."""
        self._sort_s = 0.0
        """When to ask again."""

    def submitted(self, job: Job) -> None:
        full = self._live.refuse_job(PLACE_BYTES)
        if full is not None:
            self._outcomes.add(
                JobRejected(
                    job_id=job.job_id,
                    user=job.user,
                    zone=self._zone,
                    reason="cell_full",
                    facts=full,
                )
            )
            return
        self._live.add(PLACE_BYTES)
        self._outcomes.add(
            JobAdmitted(
                job_id=job.job_id,
                user=job.user,
                zone=self._zone,
                reason="queued",
                payment_micros=0,
                evidence=QueuePlace(ahead=len(self._queue)),
            )
        )
        self._queue.append(job.job_id)
        self._assign()

    def withdrawn(self, job: Job) -> None:
        node = self._end(job)
        if node is not None:
            self._outcomes.add(CountCancelled(zone=self._zone, node=node, job_id=job.job_id))
        self._outcomes.add(
            JobWithdrawn(
                job_id=job.job_id,
                user=job.user,
                zone=self._zone,
                reason="user_request",
                returned_micros=0,
                retained_micros=0,
            )
        )
        self._assign()

    def run_changed(self, job: Job, report: RunReport) -> bool:
        if self._running.get(report.node) != (job.job_id, report.run_id):
            self._outcomes.add(no_such_run(report))
            return False
        job.samples_done = report.samples_done
        match report:
            case RunFinished() if report.samples_done >= self._goal(job):
                self._end(job)
                self._outcomes.add(
                    JobCompleted(
                        job_id=job.job_id,
                        user=job.user,
                        zone=self._zone,
                        reason="work_done",
                        node=report.node,
                        payment_micros=0,
                        samples_done=report.samples_done,
                    )
                )
            case RunFailed(permanent=True):
                self._end(job)
                self._outcomes.add(
                    JobRefunded(
                        job_id=job.job_id,
                        user=job.user,
                        zone=self._zone,
                        reason="run_failed",
                        facts={"node": report.node, "run_id": report.run_id},
                        remaining_samples=self._goal(job) - job.samples_done,
                        refund_micros=0,
                        retained_micros=0,
                    )
                )
            case RunFinished() | RunFailed() | RunProgressed(complete=True):
                self._leave(job)
                self._queue.append(job.job_id)
        self._assign()
        return True

    def run_refused(self, job: Job, failed: RunFailed) -> None:
        self.run_changed(job, failed)

    def nodes_changed(self, change: NodeChange) -> None:
        if change.status == "down" and change.node in self._running:
            job_id, _ = self._running.pop(change.node)
            self._queue.insert(0, job_id)
        self._assign()

    def broken_promise(self, context: ZoneContext) -> BrokenPromise | None:
        return None  # a job of the queue runs whenever there is a node

    def reconfigured(self, context: ZoneContext) -> None:
        self._configure(context)
        self._assign()

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        return [node for node in nodes if node not in self._running]

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:
        return sorted(servers, key=lambda node: (node in self._running, node))[:count]

    def wake(self, time_s: float) -> None:
        if self._asked is None and len(self._queue) > 1 and time_s >= self._sort_s:
            self._requests += 1
            self._asked = f"sort-{self._requests}"
            self._sort_s = time_s + self._settings.sort_every_s
            left = {id: self._goal(self._jobs[id]) - self._jobs[id].samples_done for id in self._queue}
            self._outcomes.add(
                SolveRequested.of(
                    zone=self._zone,
                    request_id=self._asked,
                    time_limit_s=SOLVE_LIMIT_S,
                    problem=SortProblem(left_samples=left),
                    job_ids=left,
                )
            )

    def solved(self, answer: SolveFinished) -> None:
        if answer.request_id != self._asked:
            self._outcomes.add(unknown_solve(answer))
            return
        self._asked = None
        if isinstance(answer.solution, SortSolution):
            # Jobs have come and gone since it was asked for.
            place = {id: number for number, id in enumerate(answer.solution.job_ids)}
            self._queue.sort(key=lambda id: place.get(id, len(place)))

    def broken_invariants(self) -> Iterator[str]:
        held = [*self._queue, *(job_id for job_id, _ in self._running.values())]
        if sorted(held) != sorted(job.job_id for job in self._jobs.values() if job.zone == self._zone):
            yield f"of the zone's jobs, {', '.join(held)} are in the queue or on nodes, each once"

    def describe(self) -> dict[str, Any]:
        waiting = {id: self._jobs[id].describe() for id in self._queue}
        running = {
            id: {**self._jobs[id].describe(), "state": "running", "node": node}
            for node, (id, _) in self._running.items()
        }
        return {
            "jobs": {**waiting, **running},
            "queue": list(self._queue),
            "open": [node for node in self._nodes if self._states.is_open(node)],
            "solver_requests": [] if self._asked is None else [self._asked],
        }

    def state(self) -> dict[str, Any]:
        return {
            "queue": self._queue,
            "running": [[node, *run] for node, run in self._running.items()],
            "counts": [self._runs, self._requests],
            "asked": self._asked,
            "sort_s": self._sort_s,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._queue = state["queue"]
        self._running = {node: (job_id, run_id) for node, job_id, run_id in state["running"]}
        self._runs, self._requests = state["counts"]
        self._asked, self._sort_s = state["asked"], state["sort_s"]
        self._live.add(PLACE_BYTES * (len(self._queue) + len(self._running)))

    def _configure(self, context: ZoneContext) -> None:
        self._zone = context.zone.id
        self._settings = cast(RoundRobinPolicy, context.zone.policy)
        self._nodes = [node.id for node in context.zone.nodes]

    def _assign(self) -> None:
        """Give each idle node that is up the next job of the queue."""
        for node in self._nodes:
            if self._states.is_open(node) and node not in self._running and self._queue:
                job = self._jobs[self._queue.pop(0)]
                self._runs += 1
                run_id = f"{self._runs}/{job.job_id}"
                self._running[node] = (job.job_id, run_id)
                self._outcomes.add(
                    CountOrdered(
                        zone=self._zone,
                        node=node,
                        run_id=run_id,
                        job_id=job.job_id,
                        start=job.samples_done,
                        goal=min(job.samples_done + self._settings.turn_samples, self._goal(job)),
                    )
                )

    def _end(self, job: Job) -> str | None:
        """Give up a job's place; see `_leave`."""
        self._live.add(-PLACE_BYTES)
        return self._leave(job)

    def _leave(self, job: Job) -> str | None:
        """Take a job out of the queue or off its node, which is returned."""
        if job.job_id in self._queue:
            self._queue.remove(job.job_id)
            return None
        node = next(node for node, (job_id, _) in self._running.items() if job_id == job.job_id)
        del self._running[node]
        return node

    @staticmethod
    def _goal(job: Job) -> int:
        return cast(CountWorkload, job.workload).goal
