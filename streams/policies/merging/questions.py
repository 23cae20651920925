"""Problems for solvers: the present jobs of a zone and the GPUs to allocate."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from schemas.merging.problems import (
    JobKind,
    MergeProblem,
    RivalJob,
    RivalProblem,
    TransferPair,
    Unit,
)
from streams.policies.merging.knowledge import Knowledge
from streams.policies.merging.step_tables import KindSteps, step_tables
from streams.policies.merging.tasks import Tasks
from streams.policies.merging.trials import MergeTrial, trials_of_plan
from streams.policies.merging.tuning_job import TuningJob
from streams.policies.merging.tuning_task import TuningTask
from streams.policies.merging.waiting_pairs import is_joint, pair_of

MOST_ASKED = 4_000
"""Most jobs of one problem: some tens of milliseconds of the cell's time. Its record has room for more."""
_MOST_LATER = 1.0
"""See `MergeProblem.most_later`."""


class Questions:
    """Problems of one zone."""

    def __init__(self, tasks: Tasks, knowledge: Knowledge) -> None:
        self._tasks = tasks
        self._knowledge = knowledge
        self._forecasts = tasks.forecasts

    def available(self) -> int:
        """Return the number of GPUs that may be allocated: those of open nodes, without those of present and
        next profile runs, and of tasks that keep them."""
        gpus = self._tasks.gpus
        unprofiled = self._tasks.unprofiled()
        profiling = sum(gpus.held_in_open(job.profiled_on) for job in unprofiled)
        new = len({job.kind for job in unprofiled if job.stage == "new"})
        kept = sum(gpus.held_in_open(task.members) for task in self._tasks.all.values() if self.is_kept(task))
        return gpus.open - profiling - kept - min(new, self._tasks.most_for_profiles)

    def is_kept(self, task: TuningTask) -> bool:
        """Return whether a task keeps its GPUs in any plan: one of its nodes is closed; or it is the receiver
        of a temporal merge, which has its donor's weights only from its first step on."""
        if not all(self._tasks.gpus.is_open(node) for node in task.members):
            return True
        if task.mode != "temporal" or len(task.job_ids) == 2:
            return False
        return self._tasks.jobs[task.job_ids[0]].iterations == 0

    def problem(self, time_s: float) -> MergeProblem | RivalProblem | None:
        """Return the problem; None if there is nothing to decide."""
        gpus = self.available()
        asked = [job for job in self._tasks.jobs.values() if self._is_asked(job)]
        if gpus < 1 or not asked:
            return None
        jobs = self._first(asked)
        left_out = len(asked) - len(jobs)
        if self._tasks.policy.scheme == "ymir":
            return self._merge_problem(jobs, gpus, left_out)
        return self._rival_problem(jobs, gpus, left_out, time_s)

    def waiting_since(self, time_s: float, problem: MergeProblem | RivalProblem) -> list[str]:
        """Return the jobs of a problem that have no task and began to wait at `time_s` or later."""
        jobs = map(self._tasks.jobs.__getitem__, problem.job_ids)
        return [job.job_id for job in jobs if job.task is None and job.waits_since_s >= time_s]

    def _first(self, jobs: Sequence[TuningJob]) -> Sequence[TuningJob]:
        """Return at most `MOST_ASKED` jobs, in their order: those in a task, and then those that have waited
        longest."""
        if len(jobs) <= MOST_ASKED:
            return jobs
        ranked = sorted(jobs, key=lambda job: (job.task is None, -self._waited_s(job)))
        kept = {job.job_id for job in ranked[:MOST_ASKED]}
        return [job for job in jobs if job.job_id in kept]

    def _waited_s(self, job: TuningJob) -> float:
        """Return the total time that a job has been without GPUs."""
        is_active = self._active_task(job) is not None
        return job.waited_s + (0.0 if is_active else self._tasks.time_s - job.waits_since_s)

    def _is_asked(self, job: TuningJob) -> bool:
        task = self._tasks.task_of(job)
        for each in pair_of(job, self._tasks.jobs) or (job,):
            if each.stage != "ready" or each.is_ending or not self._tasks.may_run(each):
                return False
        return task is None or not self.is_kept(task)

    def _merge_problem(self, jobs: Sequence[TuningJob], gpus: int, left_out: int) -> MergeProblem:
        kinds: dict[str, int] = {}
        kind_steps: list[KindSteps] = []
        sizes: list[tuple[int, int]] = []
        units: list[Unit] = []
        trials = self._trials_of(jobs) if self._is_careful else ()
        in_trials = {job_id for trial in trials for job_id in (trial.donor, trial.receiver)}
        tried: dict[str, int] = {}
        for job in jobs:
            task = self._tasks.task_of(job)
            both = self._joint_jobs(job, task)
            if both:
                if job is not both[0]:
                    continue
                kind_steps.append(KindSteps(self._forecasts.joint_table(both)))
                sizes.append(self._forecasts.joint_sizes(both))
                units.append(self._joint_unit(0 if task is None else task.gpus, both, len(kind_steps) - 1))
            elif job.job_id in in_trials:
                # A kind of its own: the trial is of these jobs alone, and they are in no other merge.
                tried[job.job_id] = len(kind_steps)
                kind_steps.append(KindSteps(self._forecasts.steps(job)))
                sizes.append(self._forecasts.joint_sizes([job]))
                units.append(self._unit(job, task, tried[job.job_id]))
            else:
                if job.kind not in kinds:
                    kinds[job.kind] = len(kind_steps)
                    kind_steps.append(KindSteps(self._forecasts.steps(job)))
                    sizes.append(self._forecasts.joint_sizes([job]))
                units.append(self._unit(job, task, kinds[job.kind]))
            kind_steps[units[-1].kind].note(units[-1].waited_s, units[-1].gpus)
        shared = step_tables(kind_steps)
        return MergeProblem(
            gpus=gpus,
            interval_s=self._tasks.policy.interval_s,
            switch_s=self._tasks.policy.switch_s,
            step_tables=shared.tables,
            kinds=tuple(
                JobKind(step_table=table, samples_per_step=batch, dataset_samples=samples)
                for table, (batch, samples) in zip(shared.of_kinds, sizes, strict=True)
            ),
            units=tuple(units),
            transfers=(*self._transfers(kinds), *self._trials(trials, tried)),
            jobs_left_out=left_out,
            kinds_restricted=shared.restricted,
            watched_epochs=self._tasks.policy.watched_epochs,
            most_later=_MOST_LATER if self._is_careful else None,
        )

    @property
    def _is_careful(self) -> bool:
        """Whether plans merge only where past merges have shown to pay."""
        return self._tasks.policy.merges == "shown"

    def _trials_of(self, jobs: Sequence[TuningJob]) -> Sequence[MergeTrial]:
        """Return the trials that the next plan may have, of jobs of the problem."""
        followers = {self._follower(job, self._tasks.task_of(job)) for job in jobs}
        parts = {job.job_id: self._part(job, job.job_id in followers) for job in jobs}
        return trials_of_plan(self._knowledge, self._tasks, parts, self._tasks.policy.watched_epochs)

    def _joint_jobs(self, job: TuningJob, task: TuningTask | None) -> Sequence[TuningJob]:
        """Return both jobs of a spatial merge that is under way or waits to be resumed; else none."""
        if task is not None:
            return self._tasks.jobs_of(task) if task.mode == "spatial" and len(task.job_ids) == 2 else ()
        return (pair_of(job, self._tasks.jobs) or ()) if is_joint(job) else ()

    def _joint_unit(self, gpus: int, jobs: Sequence[TuningJob], kind: int) -> Unit:
        return Unit(
            job_ids=tuple(job.job_id for job in jobs),
            kind=kind,
            iterations=self._forecasts.joint_steps(jobs),
            waited_s=sum(self._waited_s(job) for job in jobs) / len(jobs),
            part="none",
            gpus=gpus,
            age_s=max(self._age_s(job) for job in jobs),
        )

    def _unit(self, job: TuningJob, its_task: TuningTask | None, kind: int) -> Unit:
        task = its_task if its_task is not None and job.job_id in its_task.active_job_ids else None
        follower = self._follower(job, its_task)
        is_follower = follower == job.job_id
        return Unit(
            job_ids=(job.job_id,),
            kind=kind,
            # A follower needs as many as alone, unless the plan keeps it with its donor.
            iterations=(
                self._knowledge.iterations_alone(job) if is_follower else self._knowledge.iterations_left(job)
            ),
            waited_s=job.waited_s + (0.0 if task is not None else self._tasks.time_s - job.waits_since_s),
            part=self._part(job, is_follower),
            gpus=0 if task is None else task.gpus,
            follower=None if is_follower else follower,
            age_s=self._age_s(job),
        )

    def _follower(self, job: TuningJob, task: TuningTask | None) -> str | None:
        """Return the receiver of a job's temporal merge, if it waits for its donor."""
        if task is not None:
            return task.follower
        pair = pair_of(job, self._tasks.jobs)
        return None if pair is None else pair[1].job_id

    def _age_s(self, job: TuningJob) -> float:
        """Return the time since a job's submission."""
        return max(self._tasks.time_s - job.submitted_s, 0.0)

    def _part(self, job: TuningJob, is_follower: bool) -> Literal["none", "donor", "any"]:
        kind = self._knowledge.kinds[job.kind]
        merges = job.workload.sharing and kind.is_usable and not job.never_merges
        if not merges or job.workload.pipeline or (job.merge is not None and not job.merge.is_donor):
            return "any" if is_follower else "none"
        return "any" if job.iterations == 0 else "donor"

    def _transfers(self, kinds: dict[str, int]) -> Iterable[TransferPair]:
        """Yield the merges that save a job iterations: those that past ones have shown to pay, or all."""
        for (mode, donor, receiver), forecast in self._knowledge.transfers.items():
            if self._is_careful:
                ratios = forecast.planned_ratios
                may = forecast.evidence == "shown"
            else:
                ratios = forecast.receiver_ratio, forecast.donor_ratio
                may = True
            best = min(ratios)  # of a temporal donor it is 1
            if may and donor in kinds and receiver in kinds and best < 1:
                first, second = kinds[donor], kinds[receiver]
                yield TransferPair(
                    mode=mode, donor=first, receiver=second, receiver_ratio=ratios[0], donor_ratio=ratios[1]
                )

    def _trials(self, trials: Sequence[MergeTrial], tried: dict[str, int]) -> Iterator[TransferPair]:
        """Yield the trials, with the kinds of their jobs in the problem."""
        for pair, donor, receiver in trials:
            if donor in tried and receiver in tried:
                first, second = tried[donor], tried[receiver]
                ratios = self._knowledge.transfers[pair].planned_ratios
                if pair[0] == "spatial" and second < first:
                    first, second, ratios = second, first, (ratios[1], ratios[0])
                yield TransferPair(
                    mode=pair[0],
                    donor=first,
                    receiver=second,
                    receiver_ratio=ratios[0],
                    donor_ratio=ratios[1],
                )

    def _rival_problem(
        self, jobs: Sequence[TuningJob], gpus: int, left_out: int, time_s: float
    ) -> RivalProblem:
        kinds: dict[str, KindSteps] = {}
        for job in jobs:
            task = self._active_task(job)
            kind_steps = kinds.setdefault(job.kind, KindSteps(self._forecasts.steps(job)))
            kind_steps.note(self._waited_s(job), 0 if task is None else task.gpus)
        shared = step_tables(list(kinds.values()))
        tables = dict(zip(kinds, shared.of_kinds, strict=True))
        return RivalProblem(
            scheme=self._tasks.policy.scheme,
            interval_s=self._tasks.policy.interval_s,
            time_s=time_s,
            gpus=gpus,
            step_tables=shared.tables,
            jobs=tuple(self._rival_job(job, tables[job.kind], time_s) for job in jobs),
            jobs_left_out=left_out,
            kinds_restricted=shared.restricted,
        )

    def _active_task(self, job: TuningJob) -> TuningTask | None:
        """Return the task that trains a job now."""
        task = self._tasks.task_of(job)
        return task if task is not None and job.job_id in task.active_job_ids else None

    def _rival_job(self, job: TuningJob, step_table: int, time_s: float) -> RivalJob:
        task = self._active_task(job)
        held_s = 0.0 if task is None else time_s - task.since_s
        gpus = 0 if task is None else task.gpus
        return RivalJob(
            job_id=job.job_id,
            submitted_s=job.submitted_s,
            waited_s=job.waited_s + (time_s - job.waits_since_s if task is None else 0.0),
            running_s=job.running_s + held_s,
            attained_gpu_s=job.attained_gpu_s + held_s * gpus,
            asked_gpus=job.workload.gpus,
            step_table=step_table,
            iterations=self._knowledge.expected_iterations(job),
            iterations_left=self._knowledge.iterations_left(job),
            gpus=gpus,
            held_s=held_s,
            restarts=job.restarts,
        )
