"""Allocation: when a solver is asked, and how its answer becomes tasks.

Each interval the plan is asked for ahead of time, so that data loaders can be prepared before it is carried
out. Where GPUs idle and jobs wait, another is asked for in between, and carried out at once.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from schemas.base import Outcome
from schemas.decisions import EventIgnored
from schemas.merging.commands import LoaderPrewarmed, TransferMode
from schemas.merging.estimates import EstimateProblem, EstimateSolution, MergeMode
from schemas.merging.outcomes import MergeForetold, PlanDecided, TaskChangeReason
from schemas.merging.problems import MergeSolution, Share
from schemas.merging.settings import MergingPolicy
from schemas.solves import SolveFinished, SolveRequested
from streams.policies.merging.asking import Asking
from streams.policies.merging.job import Merge, TuningJob
from streams.policies.merging.task import Task
from streams.policies.merging.tasks import Tasks

_ESTIMATE_LIMIT_S = 30.0
_FEW_WAIT = 4
"""While no more jobs wait than this part of the GPUs, a new one is not left waiting for the next interval."""
_LOST_AFTER_INTERVALS = 2
"""An answer that has not come after so many intervals and its time limit is not waited for any longer."""


class Planning:
    """Of one zone."""

    def __init__(self, asking: Asking, epoch_s: float) -> None:
        self._asking = asking
        self._next_s = epoch_s
        """When the plan of the next interval is carried out."""
        self._requests = 0
        self._plan_request: str | None = None
        self._asked_s = 0.0
        """When the last plan was asked for."""
        self._due_s = 0.0
        """Its answer is carried out no sooner: the interval that it was asked for, or at once."""
        self._ready: SolveFinished | None = None
        """The answer that waits for that, see `hold`."""
        self._ready_json: str | None = None
        self._estimate_request: str | None = None
        self._estimated_s = 0.0
        """When the last estimate was asked for."""
        self.has_changed = False
        """Whether anything has happened since the last plan was asked for that could change it."""
        self.knows_more = False
        """Whether anything has happened since the last estimate that could change it."""

    @property
    def _policy(self) -> MergingPolicy:
        return self._asking.policy

    @property
    def _tasks(self) -> Tasks:
        return self._asking.tasks

    def wake(self, time_s: float) -> Iterator[Outcome]:
        """It is `time_s` now: carry out what is due, and ask for what is needed next."""
        self._give_up_waiting(time_s)
        if self.knows_more and self._estimate_request is None:
            yield from self._ask_for_estimates()
        interval_s = self._policy.interval_s
        if time_s >= self._next_s:
            ready = self._ready
            self.hold(None)
            self._next_s = (math.floor(time_s / interval_s) + 1) * interval_s
            if ready is not None:
                yield from self._apply(ready)
            else:
                yield from self._ask(time_s, is_early=False)
        elif self._is_idle_time(time_s):
            yield from self._ask_in_between(time_s)
        elif time_s >= self._next_s - self._policy.prewarm_s and self._ready is None:
            yield from self._ask(time_s, is_early=True)

    def solved(self, answer: SolveFinished) -> Iterator[Outcome]:
        """A solver's answer."""
        if answer.request_id == self._estimate_request:
            self._estimate_request = None
            if isinstance(answer.solution, EstimateSolution):
                yield from self._estimated(self._asking.knowledge.take(answer.solution))
                self.has_changed = True
            else:
                self.knows_more = True
            if self._is_idle_time(self._tasks.time_s):
                yield from self._ask_in_between(self._tasks.time_s)
        elif answer.request_id != self._plan_request:
            yield EventIgnored(reason="unknown_solve", detail=f"nobody waits for {answer.request_id}")
        elif self._tasks.time_s < self._due_s and self._tasks.jobs:
            self._plan_request = None
            self.hold(answer)
            yield from self._prewarm(answer)
        else:
            self._plan_request = None
            yield from self._apply(answer)

    def hold(self, answer: SolveFinished | None) -> None:
        """Keep an answer until it is carried out, in place of any other. It is as long as there are jobs."""
        before = self._ready_json or ""
        self._ready = answer
        self._ready_json = None if answer is None else answer.model_dump_json()
        self._tasks.count(len(self._ready_json or "") - len(before))

    def state(self) -> dict[str, Any]:
        """Of types that msgpack writes."""
        return {
            "next_s": self._next_s,
            "requests": self._requests,
            "plan_request": self._plan_request,
            "asked_s": self._asked_s,
            "due_s": self._due_s,
            "ready": self._ready_json,
            "estimate_request": self._estimate_request,
            "estimated_s": self._estimated_s,
            "has_changed": self.has_changed,
            "knows_more": self.knows_more,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take a state."""
        self._next_s, self._requests = state["next_s"], state["requests"]
        self._plan_request, self._asked_s = state["plan_request"], state["asked_s"]
        self._due_s = state["due_s"]
        self._estimate_request, self._estimated_s = state["estimate_request"], state["estimated_s"]
        ready = state["ready"]
        self.hold(None if ready is None else SolveFinished.model_validate_json(ready))
        self.has_changed, self.knows_more = state["has_changed"], state["knows_more"]

    def _is_idle_time(self, time_s: float) -> bool:
        """Whether it is time to ask in between: GPUs idle, for jobs that wait or for those that run, or few
        jobs wait."""
        every_s = self._policy.idle_interval_s
        if every_s is None or not self.has_changed or self._plan_request is not None:
            return False
        if self._estimate_request is not None:
            return False  # what it tells may be a merge, which a job that is begun alone is lost for
        if time_s - self._asked_s < every_s:
            return False
        waiting = len(self._tasks.ready())
        used = sum(task.gpus for task in self._tasks.all.values() if not self._asking.is_kept(task))
        return self._asking.available() > used or 0 < waiting <= self._tasks.gpus.total // _FEW_WAIT

    def _ask_in_between(self, time_s: float) -> Iterator[Outcome]:
        self.hold(None)
        yield from self._ask(time_s, is_early=False)

    def _give_up_waiting(self, time_s: float) -> None:
        """Ask anew where an answer does not come."""
        long_ago_s = time_s - _LOST_AFTER_INTERVALS * self._policy.interval_s
        if self._plan_request is not None and self._asked_s + self._policy.solve_limit_s < long_ago_s:
            self._plan_request, self.has_changed = None, True
        if self._estimate_request is not None and self._estimated_s + _ESTIMATE_LIMIT_S < long_ago_s:
            self._estimate_request, self.knows_more = None, True

    def _ask(self, time_s: float, is_early: bool) -> Iterator[Outcome]:
        if self._plan_request is not None:
            return
        self.has_changed, self._asked_s = False, time_s
        problem = self._asking.problem(time_s)
        if problem is None:
            return
        self._requests += 1
        self._plan_request = f"plan-{self._requests}"
        self._due_s = self._next_s if is_early else time_s
        yield SolveRequested(
            zone=self._tasks.zone,
            request_id=self._plan_request,
            time_limit_s=self._policy.solve_limit_s,
            problem=problem,
        )

    def _ask_for_estimates(self) -> Iterator[Outcome]:
        self.knows_more = False
        problem: EstimateProblem | None = self._asking.knowledge.estimate(self._tasks.jobs.values())
        if problem is None:
            return
        self._requests += 1
        self._estimate_request = f"estimate-{self._requests}"
        self._estimated_s = self._tasks.time_s
        yield SolveRequested(
            zone=self._tasks.zone,
            request_id=self._estimate_request,
            time_limit_s=_ESTIMATE_LIMIT_S,
            problem=problem,
        )

    def _estimated(self, news: Mapping[str, str]) -> Iterator[Outcome]:
        """Tell jobs of what a solver has found out about their kinds, by kind: why the profile is of no use,
        or nothing."""
        for job in self._tasks.jobs.values():
            if job.stage != "ready" or job.is_ending or job.kind not in news:
                continue
            fault = news[job.kind]
            job.never_merges = job.never_merges or bool(fault)
            yield self._asking.foretold(job, "unusable_profile" if fault else "estimated", fault)

    def _apply(self, answer: SolveFinished) -> Iterator[Outcome]:
        """Carry a plan out, as far as it still fits."""
        if not isinstance(answer.solution, MergeSolution):
            yield self._decided(answer, "kept_last", 0, 0)
            self.has_changed = True
            return
        solution = answer.solution
        wanted = {share.job_ids: share for share in solution.shares if self._is_valid(share)}
        unfit = {
            job_id for share in solution.shares if share.job_ids not in wanted for job_id in share.job_ids
        }
        self.has_changed = self.has_changed or bool(unfit)
        kept: set[tuple[str, ...]] = set()
        stopped: dict[str, Task] = {}
        changes: list[Outcome] = []
        for task in list(self._tasks.all.values()):
            share = wanted.get(task.job_ids)
            stays = share is not None and share.gpus == task.gpus and _goes_on(task, share)
            if stays or self._asking.is_kept(task):
                kept.add(task.job_ids)
                continue
            if task.since_s > self._asked_s or not unfit.isdisjoint(task.job_ids):
                # The plan was asked for before it was so, or has something for it that cannot be any more.
                kept.add(task.job_ids)
                continue
            changes += self._stop(task, wanted)
            stopped.update(dict.fromkeys(task.job_ids, task))
        begun, dropped = 0, len(solution.shares) - len(wanted)
        for share in sorted(wanted.values(), key=lambda share: (-share.gpus, share.job_ids)):
            if share.job_ids in kept:
                continue
            started = list(self._begin(share, stopped))
            begun, dropped = begun + bool(started), dropped + (not started)
            changes += started
        changes += self._without_gpus(stopped.values(), wanted)
        yield self._decided(answer, "applied" if wanted else "out_of_date", len(wanted), dropped)
        yield from changes

    def _is_valid(self, share: Share) -> bool:
        """Whether what the plan gives can still be given."""
        jobs = [self._tasks.jobs.get(job_id) for job_id in share.job_ids]
        if any(job is None or job.stage != "ready" or job.is_ending for job in jobs):
            return False
        tasks = [self._tasks.task_of(job) for job in jobs if job is not None]
        if any(task is not None and self._asking.is_kept(task) for task in tasks):
            return False
        if len(jobs) == 1:
            # A job that is trained with another goes on with it.
            (task,) = tasks
            return task is None or task.mode != "spatial" or len(task.job_ids) == 1
        if tasks[0] is not None and _goes_on(tasks[0], share):
            return True
        fresh = [job for job in jobs if job is not None and job.iterations == 0]
        needed = 2 if share.mode == "spatial" else 1
        may = all(
            job is not None
            and job.workload.sharing
            and not job.never_merges
            and (job.merge is None or job.merge.is_donor or job in fresh)
            for job in jobs
        )
        return may and len(fresh) >= needed and (needed == 2 or jobs[1] in fresh)

    def _stop(self, task: Task, wanted: dict[tuple[str, ...], Share]) -> Iterator[Outcome]:
        """Take a task's GPUs away, for others or for another form of it."""
        share = next((share for ids, share in wanted.items() if task.job_ids[0] in ids), None)
        yield from self._tasks.stop(task, "preempted" if share is None else "reallocated")
        goes_on = share is not None and _goes_on(task, share)
        if not goes_on:
            self._tasks.part(task)
        if share is None:
            yield self._tasks.changed(task, "preempted", task.gpus, 0.0)
        elif task.follower is not None and not goes_on:
            yield self._tasks.changed(task, "separated", task.gpus, 0.0)

    def _without_gpus(
        self, stopped: Iterable[Task], wanted: dict[tuple[str, ...], Share]
    ) -> Iterator[Outcome]:
        """Tell of tasks that were to go on with other GPUs, and found none."""
        for task in {task.task_id: task for task in stopped}.values():
            first = task.job_ids[0]
            was_to_go_on = any(first in job_ids for job_ids in wanted)
            if was_to_go_on and self._tasks.jobs[first].task is None and task.task_id not in self._tasks.all:
                self._tasks.part(task)
                yield self._tasks.changed(task, "preempted", task.gpus, 0.0)

    def _begin(self, share: Share, stopped: dict[str, Task]) -> Iterator[Outcome]:
        jobs = [self._tasks.jobs[job_id] for job_id in share.job_ids]
        if any(job.task is not None for job in jobs) or self._tasks.gpus.idle() < share.gpus:
            return
        before = stopped.get(share.job_ids[0])
        if before is not None and before.task_id in self._tasks.all:
            before = None
        foretold: list[MergeForetold] = []
        if len(jobs) == 2 and (before is None or not _goes_on(before, share)):
            foretold = self._merge(share.mode, jobs)
            if not foretold:
                return
        yield from self._tasks.begin(
            share.mode,
            jobs,
            share.gpus,
            self._reason(share, before, jobs[0]),
            self._asking.remaining_s(share.job_ids, share.mode, share.gpus),
            self._policy.watched_epochs,
            foretold,
            before,
        )

    @staticmethod
    def _reason(share: Share, before: Task | None, first: TuningJob) -> TaskChangeReason:
        if before is not None and not _goes_on(before, share):
            if len(share.job_ids) == 2:
                return "merged"
            return "reallocated" if before.job_ids[0] == share.job_ids[0] else "started"
        if before is not None:
            return "reallocated"
        if len(share.job_ids) == 2:
            return "merged"
        return "resumed" if first.restarts else "started"

    def _merge(self, mode: TransferMode, jobs: Sequence[TuningJob]) -> list[MergeForetold]:
        """Note a merge in its jobs, and say what it is taken to bring; empty if nothing is known of it any
        more."""
        assert mode != "normal"
        donor, receiver = jobs
        known = self._asking.knowledge.transfer(mode, donor.kind, receiver.kind)
        if known is None:
            return []
        donor.merge = self._noted(mode, donor, receiver, known.score, known.donor_gain, known.donor_ratio)
        donor.merge.is_donor = mode == "temporal"
        receiver.merge = self._noted(
            mode, receiver, donor, known.score, known.receiver_gain, known.receiver_ratio
        )
        return [
            MergeForetold(
                job_id=job.job_id,
                partner=job.merge.partner,
                gain=job.merge.gain,
                iterations=job.merge.iterations,
                iterations_alone=job.merge.iterations_alone,
            )
            for job in jobs
            if job.merge is not None
        ]

    def _noted(
        self, mode: MergeMode, job: TuningJob, partner: TuningJob, score: float, gain: float, ratio: float
    ) -> Merge:
        job.merge = None
        alone = self._asking.knowledge.expected_iterations(job)
        kinds = self._asking.knowledge.kinds
        return Merge(
            mode=mode,
            partner=partner.job_id,
            partner_task=kinds[partner.kind].task,
            partner_samples=kinds[partner.kind].dataset_samples,
            is_donor=False,
            score=score,
            gain=gain,
            iterations=max(math.ceil(alone * ratio), 1),
            iterations_alone=alone,
            accuracy_before=kinds[job.kind].accuracy_before,
        )

    def _prewarm(self, answer: SolveFinished) -> Iterator[Outcome]:
        """Have the loaders prepared of jobs that a plan lets start, on the nodes that are likely theirs."""
        if not isinstance(answer.solution, MergeSolution):
            return
        leaving = [task for task in self._tasks.all.values() if not self._stays(task, answer.solution)]
        nodes = [
            *(task.leader for task in leaving),
            *(n for n, idle in self._tasks.gpus.free().items() if idle),
        ]
        starting = [share for share in answer.solution.shares if self._starts(share)]
        for share, node in zip(starting, nodes, strict=False):
            job = self._tasks.jobs[share.job_ids[0]]
            yield LoaderPrewarmed(
                zone=self._tasks.zone,
                node=node,
                order=job.order(f"prewarm/{job.job_id}"),
                starts_s=self._next_s,
            )

    @staticmethod
    def _stays(task: Task, solution: MergeSolution) -> bool:
        return any(share.gpus == task.gpus and _goes_on(task, share) for share in solution.shares)

    def _starts(self, share: Share) -> bool:
        first = self._tasks.jobs.get(share.job_ids[0])
        return first is not None and first.task is None and self._is_valid(share)

    def _decided(self, answer: SolveFinished, reason: Any, jobs: int, dropped: int) -> PlanDecided:
        solution = answer.solution if isinstance(answer.solution, MergeSolution) else None
        return PlanDecided(
            zone=self._tasks.zone,
            reason=reason,
            request_id=answer.request_id,
            objective=None if solution is None else solution.objective,
            bound=None if solution is None else solution.bound,
            jobs=jobs,
            dropped=dropped,
            solve_s=answer.solve_s,
        )


def _goes_on(task: Task, share: Share) -> bool:
    """Whether a plan has the jobs of a task go on as they are, perhaps with other GPUs."""
    return task.job_ids == share.job_ids and (len(share.job_ids) == 1 or task.mode == share.mode)
