"""The application of a plan: its part that still fits, and the jobs that stop, begin or are merged."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from schemas.merging.commands import LoaderPrewarmed, TransferMode
from schemas.merging.estimates import MergeMode
from schemas.merging.outcomes import MergeForecast, PlanDecided, TaskChangeReason
from schemas.merging.problems import MergeSolution, Share
from schemas.solves import SolveFinished
from streams.cell.outcomes import OutcomeSink
from streams.policies.merging.kind_of_jobs import KindOfJobs
from streams.policies.merging.knowledge import Knowledge, TransferForecast
from streams.policies.merging.library import LibraryAdapter
from streams.policies.merging.questions import Questions
from streams.policies.merging.tasks import Tasks
from streams.policies.merging.tuning_job import JobMerge, TuningJob
from streams.policies.merging.tuning_task import TuningTask
from streams.policies.merging.waiting_pairs import is_joint, pair_of

MOST_CHANGED = 400
"""Most tasks that one plan begins, and most that it stops: some 50 ms of the cell's time each. The rest of a
larger plan is dropped, and another plan is requested."""


class TaskAllocation:
    """Tasks of one zone, changed by plans."""

    def __init__(
        self, tasks: Tasks, questions: Questions, knowledge: Knowledge, outcomes: OutcomeSink
    ) -> None:
        self._tasks = tasks
        self._questions = questions
        self._knowledge = knowledge
        self._outcomes = outcomes

    def apply(self, answer: SolveFinished, asked_s: float) -> bool:
        """Apply a plan, as far as it still fits.

        Args:
            asked_s: time of its request.

        Returns:
            whether all of it fits: if not, another plan is needed.
        """
        if not isinstance(answer.solution, MergeSolution):
            self._outcomes.add(self._decided(answer, "kept_last", 0, 0))
            return False
        solution = answer.solution
        planned = self._first({share.job_ids: share for share in solution.shares if self._is_valid(share)})
        unfit = {
            job_id for share in solution.shares if share.job_ids not in planned for job_id in share.job_ids
        }
        kept: set[tuple[str, ...]] = set()
        stopped: dict[str, TuningTask] = {}
        stops, is_whole = 0, not unfit
        for task in list(self._tasks.all.values()):
            share = planned.get(task.job_ids)
            if (share is not None and _stays(task, share)) or self._questions.is_kept(task):
                kept.add(task.job_ids)
                continue
            if task.since_s > asked_s or not unfit.isdisjoint(task.job_ids):
                # The task is newer than the request, or its jobs have a share that is invalid by now.
                kept.add(task.job_ids)
                continue
            if stops == MOST_CHANGED:
                kept.add(task.job_ids)
                is_whole = False
                continue
            stops += 1
            self._stop(task, planned)
            stopped.update(dict.fromkeys(task.job_ids, task))
        dropped = len(solution.shares) - len(planned)
        for share in sorted(planned.values(), key=_order):
            if share.job_ids in kept:
                continue
            dropped += not self._begin(share, stopped)
        self._without_gpus(stopped.values(), planned)
        reason = "applied" if planned else "out_of_date"
        self._outcomes.add(self._decided(answer, reason, len(planned), dropped))
        return is_whole

    def prewarm(self, answer: SolveFinished, starts_s: float) -> None:
        """Order data loaders for jobs that a plan starts later, on the nodes that are likely to run them."""
        if not isinstance(answer.solution, MergeSolution):
            return
        staying = {_form(share.job_ids, share.mode, share.gpus) for share in answer.solution.shares}
        leaving = [
            task
            for task in self._tasks.all.values()
            if _form(task.job_ids, task.mode, task.gpus) not in staying
        ]
        nodes = [
            *(task.leader for task in leaving),
            *(n for n, idle in self._tasks.gpus.free().items() if idle),
        ]
        starting = [share for share in answer.solution.shares if self._starts(share)]
        for share, node in zip(starting, nodes, strict=False):
            job = self._tasks.jobs[share.job_ids[0]]
            self._outcomes.add(
                LoaderPrewarmed(
                    zone=self._tasks.zone,
                    node=node,
                    order=job.order(f"prewarm/{job.job_id}"),
                    starts_s=starts_s,
                )
            )

    def _first(self, planned: dict[tuple[str, ...], Share]) -> dict[tuple[str, ...], Share]:
        """Return the shares without those that begin a task beyond `MOST_CHANGED`."""
        if len(planned) <= MOST_CHANGED:
            return planned
        tasks = {task.job_ids: task for task in self._tasks.all.values()}
        beginning = [
            share
            for share in sorted(planned.values(), key=_order)
            if share.job_ids not in tasks or not _stays(tasks[share.job_ids], share)
        ]
        later = {share.job_ids for share in beginning[MOST_CHANGED:]}
        return {job_ids: share for job_ids, share in planned.items() if job_ids not in later}

    def _is_valid(self, share: Share) -> bool:
        """Return whether a share of the plan still fits its jobs."""
        jobs = [self._tasks.jobs.get(job_id) for job_id in share.job_ids]
        if any(job is None or job.stage != "ready" or job.is_ending for job in jobs):
            return False
        tasks = [self._tasks.task_of(job) for job in jobs if job is not None]
        if any(task is not None and self._questions.is_kept(task) for task in tasks):
            return False
        if len(jobs) == 1:
            # A job in a spatial merge continues with its partner.
            (task,), (job,) = tasks, jobs
            assert job is not None
            if task is None:
                return pair_of(job, self._tasks.jobs) is None or not is_joint(job)
            return task.mode != "spatial" or len(task.job_ids) == 1
        if tasks[0] is not None and _goes_on(tasks[0], share):
            return True
        if self._resumes(share):
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

    def _stop(self, task: TuningTask, planned: dict[tuple[str, ...], Share]) -> None:
        """Release a task's GPUs, for others or for another form of it."""
        share = next((share for ids, share in planned.items() if task.job_ids[0] in ids), None)
        self._tasks.stop(task, "preempted" if share is None else "reallocated")
        goes_on = share is not None and _goes_on(task, share)
        if not goes_on:
            self._tasks.separate(task, keeps=share is None and task.mode == "spatial")
        if share is None:
            self._tasks.changed(task, "preempted")
        elif task.follower is not None and not goes_on:
            self._tasks.changed(task, "separated")

    def _without_gpus(self, stopped: Iterable[TuningTask], planned: dict[tuple[str, ...], Share]) -> None:
        """Report the tasks that were to continue with other GPUs, and got none."""
        for task in {task.task_id: task for task in stopped}.values():
            first = task.job_ids[0]
            share = next((share for ids, share in planned.items() if first in ids), None)
            is_idle = self._tasks.jobs[first].task is None and task.task_id not in self._tasks.all
            if share is not None and is_idle:
                # Others were separated when they stopped; their jobs may be in new tasks by now.
                if _goes_on(task, share):
                    self._tasks.separate(task, keeps=task.mode == "spatial")
                self._tasks.changed(task, "preempted")

    def _begin(self, share: Share, stopped: dict[str, TuningTask]) -> bool:
        """Begin the task of a share, and return whether its jobs and GPUs are available."""
        jobs = [self._tasks.jobs[job_id] for job_id in share.job_ids]
        if any(job.task is not None for job in jobs) or self._tasks.gpus.idle() < share.gpus:
            return False
        before = stopped.get(share.job_ids[0])
        if before is not None and before.task_id in self._tasks.all:
            before = None
        forecasts: list[MergeForecast] = []
        resumes = self._resumes(share)
        if not resumes:
            for parted in [each for job in jobs for each in pair_of(job, self._tasks.jobs) or ()]:
                parted.merge = None
        if len(jobs) == 2 and not resumes and (before is None or not _goes_on(before, share)):
            forecasts = self._merge(share.mode, jobs)
            if not forecasts:
                return False
        elif len(jobs) == 1:
            forecasts = self._start_from_library(jobs[0])
        return self._tasks.begin(
            share.mode,
            jobs,
            share.gpus,
            "resumed" if resumes else self._reason(share, before, jobs[0]),
            forecasts,
            before,
        )

    def _resumes(self, share: Share) -> bool:
        """Return whether a share resumes a pair in its mode."""
        first = self._tasks.jobs[share.job_ids[0]]
        pair = pair_of(first, self._tasks.jobs)
        if pair is None or first.merge is None:
            return False
        return share.mode == first.merge.mode and share.job_ids == tuple(job.job_id for job in pair)

    @staticmethod
    def _reason(share: Share, before: TuningTask | None, first: TuningJob) -> TaskChangeReason:
        if before is not None and not _goes_on(before, share):
            if len(share.job_ids) == 2:
                return "merged"
            return "reallocated" if before.job_ids[0] == share.job_ids[0] else "started"
        if before is not None:
            return "reallocated"
        if len(share.job_ids) == 2:
            return "merged"
        return "resumed" if first.restarts else "started"

    def _merge(self, mode: TransferMode, jobs: Sequence[TuningJob]) -> list[MergeForecast]:
        """Note a merge in its jobs, and return its forecast by job; empty if there is no forecast any
        more."""
        assert mode != "normal"
        donor, receiver = jobs
        known = self._knowledge.transfer(mode, donor.kind, receiver.kind)
        if known is None:
            return []
        kinds = self._knowledge.kinds
        of_donor, of_receiver = kinds[donor.kind], kinds[receiver.kind]
        donor.merge = self._merge_of(
            mode, donor, receiver.job_id, of_receiver, known.score, known.donor_gain, known.donor_ratio
        )
        donor.merge.is_donor = mode == "temporal"
        for learner in (receiver,) if donor.merge.is_donor else jobs:
            if learner.leaving:
                learner.discard_progress()  # its run alone may have unreported progress
        receiver.merge = self._merge_of(
            mode, receiver, donor.job_id, of_donor, known.score, known.receiver_gain, known.receiver_ratio
        )
        is_trial = self._tasks.policy.merges == "shown" and known.evidence != "shown"
        donor.merge.is_trial = receiver.merge.is_trial = is_trial
        return [_forecast_of(job, job.merge) for job in jobs if job.merge is not None]

    def _start_from_library(self, job: TuningJob) -> list[MergeForecast]:
        """Note the adapter of the library from which a job starts that begins alone, and return its forecast;
        empty without one. Plans do not decide it, since an adapter needs neither GPUs nor a wait."""
        best: tuple[LibraryAdapter, TransferForecast] | None = None
        for adapter in self._tasks.library.offered(job):
            known = self._knowledge.library_start(adapter.kind, job)
            if known is not None and (best is None or known.receiver_ratio < best[1].receiver_ratio):
                best = adapter, known
        if best is None:
            return []
        adapter, known = best
        donor = self._knowledge.kinds[adapter.kind]
        job.merge = self._merge_of(
            "temporal", job, adapter.job_id, donor, known.score, known.receiver_gain, known.receiver_ratio
        )
        job.merge.adapter_digest = adapter.digest
        return [_forecast_of(job, job.merge)]

    def _merge_of(
        self,
        mode: MergeMode,
        job: TuningJob,
        partner: str,
        partner_kind: KindOfJobs,
        score: float,
        gain: float,
        ratio: float,
    ) -> JobMerge:
        job.merge = None
        alone = self._knowledge.expected_iterations(job)
        return JobMerge(
            mode=mode,
            partner=partner,
            partner_task=partner_kind.task,
            partner_samples=partner_kind.dataset_samples,
            is_donor=False,
            score=score,
            gain=gain,
            iterations=alone if job.workload.target.accuracy is None else max(math.ceil(alone * ratio), 1),
            iterations_alone=alone,
            accuracy_before=self._knowledge.kinds[job.kind].accuracy_before,
        )

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


def _forecast_of(job: TuningJob, merge: JobMerge) -> MergeForecast:
    return MergeForecast(
        job_id=job.job_id,
        partner=merge.partner,
        gain=merge.gain,
        iterations=merge.iterations,
        iterations_alone=merge.iterations_alone,
    )


def _order(share: Share) -> tuple[int, tuple[str, ...]]:
    """Return the sort key of a share, for the order in which tasks begin."""
    return -share.gpus, share.job_ids


def _form(job_ids: tuple[str, ...], mode: TransferMode, gpus: int) -> tuple[Any, ...]:
    """Return the values that a plan sets for a task: if they are equal, nothing changes."""
    return job_ids, gpus, mode if len(job_ids) > 1 else None


def _stays(task: TuningTask, share: Share) -> bool:
    """Return whether a plan leaves a task unchanged."""
    return _form(task.job_ids, task.mode, task.gpus) == _form(share.job_ids, share.mode, share.gpus)


def _goes_on(task: TuningTask, share: Share) -> bool:
    """Return whether a plan continues a task, perhaps with other GPUs."""
    return task.job_ids == share.job_ids and (len(share.job_ids) == 1 or task.mode == share.mode)
