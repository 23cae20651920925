"""A zone of fine-tuning jobs that may be merged: events in, outcomes out."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from schemas.base import Event, Outcome
from schemas.decisions import EventIgnored, JobAdmitted, JobRejected
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.jobs import JobQuoteRequested
from schemas.merging.outcomes import ForetoldReason, QueuedTask
from schemas.merging.reports import ProfileReported, TaskEvaluated
from schemas.merging.settings import STAGES_PER_PIPELINE, MergingPolicy
from schemas.merging.workload import TuningWorkload
from schemas.solves import SolveFinished
from streams.cell.jobs import Job
from streams.cell.nodes import NodeChange
from streams.policies.merging.asking import Asking
from streams.policies.merging.gpus import Gpus
from streams.policies.merging.invariants import broken_invariants
from streams.policies.merging.job import TuningJob
from streams.policies.merging.judging import JudgedReason, fault_of_merge, judged, note_evaluation
from streams.policies.merging.knowledge import Knowledge
from streams.policies.merging.planning import Planning
from streams.policies.merging.speeds import Speeds
from streams.policies.merging.standing import Standing
from streams.policies.merging.task import Task
from streams.policies.merging.tasks import Tasks
from streams.policies.policy import ZoneContext


class MergingZone:
    """See `ZonePolicy`."""

    def __init__(self, context: ZoneContext) -> None:
        self._jobs = context.jobs
        policy = cast(MergingPolicy, context.zone.policy)
        self._gpus = Gpus()
        self._tasks = Tasks(context.zone.id, self._gpus, context.live)
        self._knowledge = Knowledge(policy)
        self._asking = Asking(policy, self._tasks, self._knowledge, Speeds(policy))
        self._planning = Planning(self._asking, context.cell.epoch_s)
        self._standing = Standing(context.cell.epoch_s)
        self._arrivals = 0
        self._wanted: dict[str, None] = {}
        """Nodes that are to leave."""
        self._tasks.time_s = context.cell.epoch_s
        self._configure(context)

    def submitted(self, job: Job) -> Iterator[Outcome]:
        workload = cast(TuningWorkload, job.workload)
        refusal = self._refusal(workload)
        entry = TuningJob(job, self._arrivals, "", self._tasks.time_s, waits_since_s=self._tasks.time_s)
        full = self._tasks.refuse(entry)
        if refusal is not None or full is not None:
            reason, detail = refusal or ("cell_full", full or "")
            yield JobRejected(
                job_id=job.job_id, user=job.user, zone=self._zone.id, reason=reason, detail=detail
            )
            return
        self._arrivals += 1
        kind = self._knowledge.admit(workload)
        entry.kind = kind.key
        if kind.is_profiled:
            entry.stage, entry.never_merges = "ready", not kind.is_usable
        yield JobAdmitted(
            job_id=job.job_id,
            user=job.user,
            zone=self._zone.id,
            reason="queued",
            payment_micros=0,
            evidence=QueuedTask(jobs_waiting=self._waiting, is_profiled=kind.is_profiled),
        )
        self._tasks.add(entry)
        if kind.is_profiled:
            yield self._asking.foretold(entry, "kind_finished" if kind.finished else "kind_known")
        self._has_changed()
        yield from self._profile()

    def withdrawn(self, job: Job) -> Iterator[Outcome]:
        entry = self._tasks.jobs[job.job_id]
        if entry.is_ending:
            yield EventIgnored(reason="job_ending", detail=f"job {job.job_id} is ending already")
            return
        entry.given_up = ""
        yield from self._let_go(entry)

    def quote(self, request: JobQuoteRequested) -> Outcome:
        raise AssertionError(f"quote {request.quote_id}: the policy quotes nothing")

    def run_changed(self, job: Job, report: RunReport) -> Iterator[Outcome]:
        entry = self._tasks.jobs[job.job_id]
        if entry.stopping.get(report.run_id) == report.node:
            yield from self._ending(entry, report)
            return
        is_leader = report.node in (*entry.profiled_on, *self._leaders(entry))
        if entry.run_id != report.run_id or not is_leader:
            detail = f"job {job.job_id} has no run {report.run_id} on node {report.node}"
            yield EventIgnored(reason="stale_report", detail=detail)
        elif entry.stage == "profiling":
            yield from self._profiling(entry, report)
        else:
            yield from self._running(entry, self._tasks.all[cast(str, entry.task)], report)

    def nodes_changed(self, change: NodeChange) -> Iterator[Outcome]:
        match change.status:
            case "up":
                self._gpus.reopen(change.node, ("down",))
            case "open":
                self._gpus.reopen(change.node, ("cordoned", "leaving"))
                self._wanted.pop(change.node, None)
            case "down" | "cordoned" | "leaving":
                self._gpus.close(change.node, change.status)
        if change.status == "leaving":
            self._wanted[change.node] = None
        self._has_changed()
        if change.status in ("down", "restarted"):
            yield from self._lose(change.node, f"node {change.node} is {change.status}")
        elif change.status == "leaving":
            yield from self._vacate(change.node, f"node {change.node} is to leave")
        yield from self._profile()

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:  # noqa: ARG002
        return sorted(servers, key=lambda node: (len(self._gpus.holders(node)), node))[:count]

    def broken_promises(self, context: ZoneContext) -> Iterator[str]:
        gpus = Gpus()
        gpus.configure(context.zone)
        pipelines = [job for job in self._tasks.jobs.values() if job.workload.pipeline]
        if pipelines and gpus.most_per_node < STAGES_PER_PIPELINE:
            yield (
                f"{len(pipelines)} pipeline-parallel jobs were admitted, and no node would have the "
                f"{STAGES_PER_PIPELINE} GPUs that one is profiled on"
            )
        other = [job for job in self._tasks.jobs.values() if job.workload.model != context.zone.base_model]
        if other:
            yield f"{len(other)} jobs were admitted for base model {other[0].workload.model}"
        for node in context.zone.nodes:
            held = sum(task.members.get(node.id, 0) for task in self._tasks.all.values())
            held += sum(job.profiled_on.get(node.id, 0) for job in self._tasks.jobs.values())
            if held > gpus.nodes[node.id]:
                yield f"node {node.id} would have {gpus.nodes[node.id]} GPUs, and jobs have {held} there"

    def reconfigured(self, context: ZoneContext) -> Iterator[Outcome]:
        self._configure(context)
        self._has_changed()
        self._planning.knows_more = True
        # A node that has joined may be down, which is told next: nothing is begun before the clock moves on.
        yield from ()

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        left = {node: gpus for node, gpus in self._gpus.nodes.items() if node not in self._wanted}
        needs_wide = any(job.workload.pipeline for job in self._tasks.jobs.values())
        least = STAGES_PER_PIPELINE if needs_wide else 1
        can_run = not self._tasks.jobs or any(gpus >= least for gpus in left.values())
        return [
            node for node in nodes if can_run and not self._gpus.holders(node) and not self._is_awaited(node)
        ]

    def take(self, event: Event) -> Iterator[Outcome]:
        raise AssertionError(f"{event.TYPE}: is a report about a run")

    def wake(self, time_s: float) -> Iterator[Outcome]:
        self._tasks.time_s = time_s
        yield from self._profile()
        yield from self._planning.wake(time_s)
        told = self._standing.due(time_s, self._tasks, self._asking.policy.interval_s)
        if told is not None:
            yield told

    def solved(self, answer: SolveFinished) -> Iterator[Outcome]:
        yield from self._planning.solved(answer)

    def broken_invariants(self) -> Iterator[str]:
        yield from broken_invariants(self._zone.id, self._tasks, self._jobs)

    def state(self) -> dict[str, Any]:
        return {
            "jobs": [job.to_state() for job in self._tasks.jobs.values()],
            "tasks": [task.to_state() for task in self._tasks.all.values()],
            "begun": self._tasks.begun,
            "time_s": self._tasks.time_s,
            "arrivals": self._arrivals,
            "closed": self._gpus.state(),
            "wanted": list(self._wanted),
            "knowledge": self._knowledge.state(),
            "speeds": self._asking.speeds.state(),
            "planning": self._planning.state(),
            "standing": self._standing.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._tasks.begun, self._tasks.time_s = state["begun"], state["time_s"]
        self._arrivals, self._wanted = state["arrivals"], dict.fromkeys(state["wanted"])
        self._gpus.restore(state["closed"])
        for packed in state["jobs"]:
            job = TuningJob.from_state(packed, self._jobs)
            self._tasks.jobs[job.job_id] = job
        self._tasks.restore(map(Task.from_state, state["tasks"]))
        self._knowledge.restore(state["knowledge"])
        self._asking.speeds.restore(state["speeds"])
        self._planning.restore(state["planning"])
        self._standing.restore(state["standing"])

    @property
    def _waiting(self) -> int:
        return sum(job.task is None for job in self._tasks.jobs.values())

    def _refusal(self, workload: TuningWorkload) -> tuple[Any, str] | None:
        if workload.model != self._zone.base_model:
            return "other_base_model", f"the zone's base model is {self._zone.base_model}"
        if workload.pipeline and self._gpus.most_per_node < STAGES_PER_PIPELINE:
            return (
                "larger_than_the_zone",
                f"a pipeline-parallel job is profiled on {STAGES_PER_PIPELINE} GPUs of one node, and nodes "
                f"have {self._gpus.most_per_node} at most",
            )
        return None

    def _leaders(self, job: TuningJob) -> list[str]:
        task = self._tasks.task_of(job)
        return [] if task is None else [task.leader]

    def _profile(self) -> Iterator[Outcome]:
        """Have new jobs profiled, one of each kind at a time."""
        busy = {job.kind for job in self._tasks.jobs.values() if job.stage == "profiling"}
        for job in list(self._tasks.jobs.values()):
            if job.stage == "new" and job.kind not in busy and not job.is_ending and not job.stopping:
                busy.add(job.kind)
                if job.workload.pipeline:
                    yield from self._make_room(job)
                yield from self._tasks.profile(job, self._asking.policy)

    def _make_room(self, job: TuningJob) -> Iterator[Outcome]:
        """Vacate a node for the profile run of a pipeline-parallel job that has found none for an interval:
        plans leave GPUs idle for profile runs, but hardly as many on one node."""
        if self._tasks.time_s - job.waits_since_s < self._asking.policy.interval_s:
            return
        room = {
            node: idle + sum(task.members.get(node, 0) for task in self._tasks.all.values())
            for node, idle in self._gpus.free().items()
        }
        fitting = [node for node, gpus in room.items() if gpus >= STAGES_PER_PIPELINE]
        if fitting:
            idle = self._gpus.free()
            node = max(fitting, key=lambda node: idle[node])
            if idle[node] < STAGES_PER_PIPELINE:
                yield from self._vacate(node, f"job {job.job_id} is profiled on node {node}")

    def _profiling(self, job: TuningJob, report: RunReport) -> Iterator[Outcome]:
        """A report about a job's profile run."""
        match report:
            case ProfileReported():
                fault = self._knowledge.profiled(job.kind, report)
                for step in report.steps:
                    self._asking.speeds.observe(self._knowledge.kinds[job.kind], step)
                self._tasks.end_profile(job, "ready")
                reason: ForetoldReason = "profiled" if fault is None else "unusable_profile"
                yield self._asking.foretold(job, reason, fault or "")
                yield from self._all_ready(job.kind)
                self._planning.knows_more = True
            case RunFailed():
                self._tasks.fail(job, report)
                self._tasks.end_profile(job, "new")
                if job.is_ending and not report.permanent:
                    # Its data may be sound, and only the profile run not: it runs unmerged.
                    job.given_up, job.failures, job.stage, job.never_merges = None, 0, "ready", True
                    self._tasks.recount(job)
                    yield self._asking.foretold(job, "profile_failed", report.error)
                yield from self._settle(job)
            case RunProgressed(complete=True) | RunFinished():
                self._tasks.end_profile(job, "new")
            case _:
                return
        self._has_changed()
        yield from self._profile()

    def _all_ready(self, kind: str) -> Iterator[Outcome]:
        """Jobs of a kind that was profiled need no profile run."""
        known = self._knowledge.kinds[kind]
        for job in self._tasks.jobs.values():
            if job.kind == kind and not job.is_ending and job.stage == "ready":
                job.never_merges = job.never_merges or not known.is_usable
            if job.kind == kind and job.stage == "new":
                job.stage, job.never_merges = "ready", not known.is_usable
                yield self._asking.foretold(job, "kind_known")

    def _running(self, job: TuningJob, task: Task, report: RunReport) -> Iterator[Outcome]:
        """A report about a job's run in its task."""
        match report:
            case TaskEvaluated():
                yield from self._evaluated(job, task, report)
            case RunStarted():
                pass
            case RunProgressed(complete=False):
                self._tasks.progress(job, report.samples_done)
            case RunFinished():
                yield from self._complete(job, report)
            case RunFailed():
                self._tasks.fail(job, report)
                yield from self._break_up(task, job, "run_failed", report.error)
            case RunProgressed(complete=True):
                self._tasks.progress(job, report.samples_done)
                yield from self._break_up(task, job, "run_failed", f"node {report.node} has ended its run")

    def _ending(self, job: TuningJob, report: RunReport) -> Iterator[Outcome]:
        """A report about a run that was told to end."""
        match report:
            case RunFinished() if job.given_up is None:
                yield from self._complete(job, report)
                return
            case RunProgressed(complete=False):
                return  # it will say what is left of it
            case RunProgressed() | RunFinished():
                if not job.is_ending:
                    self._tasks.progress(job, report.samples_done)
            case RunFailed() if not job.is_ending:
                self._tasks.fail(job, report)
            case RunFailed() | ProfileReported():
                pass
            case _:
                return
        yield from self._tasks.cleared(job, report.run_id)
        task = self._tasks.task_of(job)
        if job.is_ending and task is not None:
            yield from self._break_up(task, job, "run_failed", job.given_up or "")
        yield from self._settle(job)
        self._has_changed()
        yield from self._profile()

    def _complete(self, job: TuningJob, report: RunFinished) -> Iterator[Outcome]:
        """A job is done; another of its task goes on with the GPUs."""
        task = self._tasks.task_of(job)
        self._tasks.complete(job, report)
        if task is not None and task.job_ids:
            yield self._changed(task, "job_over")
            yield from self._tasks.settle(task)
        yield from self._settle(job)
        self._has_changed()
        yield from self._profile()

    def _evaluated(self, job: TuningJob, task: Task, report: TaskEvaluated) -> Iterator[Outcome]:
        kind = self._knowledge.kinds[job.kind]
        compares = note_evaluation(job, kind, task, report)
        if report.phase == "own":
            batch = job.workload.hyperparameters.batch_size
            self._tasks.progress(job, max(job.job.samples_done, report.iterations * batch))
        if report.step is not None and len(task.active_job_ids) == 1:
            self._asking.speeds.observe(kind, report.step)
        fault = fault_of_merge(job, kind, task, report, compares)
        if fault is None:
            return
        jobs = [self._tasks.jobs[job_id] for job_id in task.job_ids]
        # A donor was trained as if it were alone.
        learners = [each for each in jobs if each.merge is not None and not each.merge.is_donor]
        yield from self._tasks.stop(task, "undone", about=[each.job_id for each in learners])
        yield self._changed(task, "undone", task.gpus, fault)
        for each in jobs:
            each.never_merges = True
            # Of two that learn from each other, the other may gain: nothing is learned of it.
            yield from self._judge(each, "undone", learns=each is job)
            if each in learners:
                each.job.samples_done, each.is_compared = 0, False  # nothing of the merge is kept
            each.merge = None
        self._has_changed()

    def _break_up(self, task: Task, job: TuningJob, reason: Any, detail: str) -> Iterator[Outcome]:
        """A task ends because of one of its jobs, whose run is over already; the other waits for GPUs."""
        gpus, run_id = task.gpus, job.run_id
        if job.is_ending:
            yield from self._tasks.stop(task, "failed", about=(job.job_id,))
        else:
            yield from self._tasks.stop(task, "reallocated")
        if run_id is not None:
            job.stopping.pop(run_id, None)
            self._tasks.recount(job)
        self._tasks.part(task)
        yield self._changed(task, reason, gpus, detail)
        yield from self._settle(job)
        self._has_changed()
        yield from self._profile()

    def _let_go(self, job: TuningJob) -> Iterator[Outcome]:
        """A user withdraws a job: it ends wherever it is."""
        task = self._tasks.task_of(job)
        if task is not None:
            yield from self._tasks.stop(task, "withdrawn", about=(job.job_id,))
            yield self._changed(task, "withdrawn", task.gpus, "")
            self._tasks.part(task)
        elif job.stage == "profiling":
            yield from self._tasks.abort_profile(job)
        self._has_changed()
        yield from self._settle(job)

    def _lose(self, node: str, why: str) -> Iterator[Outcome]:
        """What ran on a node is over, and what is left of it elsewhere ends."""
        for job in list(self._tasks.jobs.values()):
            for run_id in [run for run, leader in job.stopping.items() if leader == node]:
                yield from self._tasks.cleared(job, run_id)
                yield from self._settle(job)
            if node in job.profiled_on:
                self._tasks.end_profile(job, "new")
        for task in [task for task in self._tasks.all.values() if node in task.members]:
            yield from self._tasks.stop(task, "node_lost", without=(node,))
            self._tasks.part(task)
            yield self._changed(task, "node_lost", task.gpus, why)

    def _vacate(self, node: str, why: str) -> Iterator[Outcome]:
        """Have the tasks of a node go elsewhere."""
        for task in [task for task in self._tasks.all.values() if node in task.members]:
            yield from self._tasks.stop(task, "reallocated")
            self._tasks.part(task)
            yield self._changed(task, "preempted", task.gpus, why)
        self._has_changed()

    def _is_awaited(self, node: str) -> bool:
        """Whether a run that was told to end there has not said that it did."""
        return any(node in job.stopping.values() for job in self._tasks.jobs.values())

    def _settle(self, job: TuningJob) -> Iterator[Outcome]:
        """End a job that is ending, and learn from it."""
        ended = list(self._tasks.settle_end(job))
        if not ended:
            return
        if job.merge is not None:
            yield from self._judge(job, "finished" if job.finished is not None else "ended_early")
        is_alone = job.merge is None or job.merge.is_donor
        if job.finished is not None and is_alone and job.iterations > 0:
            kind = self._knowledge.kinds[job.kind]
            if kind.expected_iterations is not None:
                self._standing.note_alone(kind.expected_iterations, job.iterations)
            kind.note_finished(job.iterations, job.best_accuracy)
            self._planning.knows_more = True
        self._knowledge.leave(job.kind)
        self._asking.speeds.forget(job.kind)
        if not self._tasks.jobs:
            self._planning.hold(None)
        yield from ended

    def _judge(self, job: TuningJob, reason: JudgedReason, learns: bool = True) -> Iterator[Outcome]:
        merge = job.merge
        if merge is None or merge.is_donor:
            return
        told, remembered = judged(self._asking, job, merge, reason)
        self._standing.note(told)
        if learns:
            self._knowledge.learn(remembered)
            self._planning.knows_more = True
        yield told

    def _changed(self, task: Task, reason: Any, gpus_before: int | None = None, detail: str = "") -> Outcome:
        is_there = task.task_id in self._tasks.all
        remaining_s = self._asking.remaining_s(task.job_ids, task.mode, task.gpus) if is_there else 0.0
        before = task.gpus if gpus_before is None else gpus_before
        return self._tasks.changed(task, reason, before, remaining_s, detail=detail)

    def _has_changed(self) -> None:
        self._planning.has_changed = True

    def _configure(self, context: ZoneContext) -> None:
        self._zone = context.zone
        policy = cast(MergingPolicy, context.zone.policy)
        self._gpus.configure(context.zone)
        self._wanted = {node: None for node in self._wanted if node in self._gpus.nodes}
        self._knowledge.configure(policy)
        self._asking.policy = policy
        self._asking.speeds.configure(self._zone, self._gpus.total, self._gpus.most_per_node, policy)
