"""A zone of fine-tuning jobs that may be merged."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, cast

from schemas.facts import Facts
from schemas.fleet import RunFailed, RunReport
from schemas.merging.outcomes import QueuedTask, TaskChangeReason
from schemas.merging.settings import STAGES_PER_PIPELINE, MergingPolicy
from schemas.solves import SolveFinished
from streams.cell.jobs import Job
from streams.cell.nodes import NodeChange
from streams.cell.states import from_state, state_of
from streams.policies.gang.gpu_zone import GpuZone
from streams.policies.gpus import Gpus
from streams.policies.merging.invariants import broken_invariants
from streams.policies.merging.knowledge import Knowledge
from streams.policies.merging.planning import Planning
from streams.policies.merging.questions import Questions
from streams.policies.merging.runs import MergingRuns
from streams.policies.merging.tuning_job import TuningJob
from streams.policies.merging.tuning_task import TuningTask
from streams.policies.policy import BrokenPromise, ZoneContext


class MergingZone(GpuZone[TuningJob, TaskChangeReason]):
    """See `ZonePolicy`."""

    def __init__(self, context: ZoneContext) -> None:
        self._knowledge = Knowledge(cast(MergingPolicy, context.zone.policy))
        self._runs = MergingRuns(context, Gpus(), self._knowledge)
        super().__init__(context, self._runs, TuningJob, self._runs.gpus)
        self._questions = Questions(self._runs, self._knowledge)
        self._planning = Planning(context, self._runs, self._questions, self._knowledge)
        self._configure(context)

    def submitted(self, job: Job) -> None:
        super().submitted(job)
        entry = self._runs.jobs.get(job.job_id)
        if entry is None:
            return
        kind = self._knowledge.kinds[entry.kind]
        if kind.is_profiled:
            self._outcomes.add(
                self._runs.forecasts.decision(entry, "kind_finished" if kind.finished else "kind_known")
            )
        self._runs.profile_all()

    def _gang_of(self, job: Job) -> TuningJob:
        time_s = self._runs.time_s
        return TuningJob(job, self._runs.arrivals, kind="", submitted_s=time_s, waits_since_s=time_s)

    def _refusal(self, gang: TuningJob) -> tuple[str, Facts] | None:
        if gang.workload.model != self._zone.base_model:
            return "other_base_model", {"base_model": self._zone.base_model}
        if gang.workload.pipeline and self._gpus.most_per_node < STAGES_PER_PIPELINE:
            most_gpus = self._gpus.most_per_node
            return "larger_than_the_zone", {"needed_gpus": STAGES_PER_PIPELINE, "most_node_gpus": most_gpus}
        return None

    def _admit(self, gang: TuningJob) -> QueuedTask:
        kind = self._knowledge.admit(gang.workload)
        gang.kind = kind.key
        if kind.is_profiled:
            gang.stage, gang.never_merges = "ready", not kind.is_usable
        return QueuedTask(jobs_waiting=self._runs.waiting, is_profiled=kind.is_profiled)

    def withdrawn(self, job: Job) -> None:
        super().withdrawn(job)
        self._follow_up()

    def run_changed(self, job: Job, report: RunReport) -> bool:
        has_run = super().run_changed(job, report)
        self._follow_up()
        if report.ends_run:
            self._runs.profile_all()
        return has_run

    def run_refused(self, job: Job, failed: RunFailed) -> None:
        super().run_refused(job, failed)
        self._follow_up()
        self._runs.profile_all()

    def _give_up_silent(self) -> None:
        super()._give_up_silent()
        self._follow_up()

    def _follow_up(self) -> None:
        """Drop the plan if no job is left."""
        if not self._runs.jobs:
            self._planning.hold(None)

    def nodes_changed(self, change: NodeChange) -> None:
        super().nodes_changed(change)
        if change.status == "leaving":
            self._runs.evict(change.node, {"case": "leaving", "node": change.node})
        self._runs.profile_all()

    def choose_returns(self, servers: Sequence[str], count: int, due_s: float) -> Sequence[str]:  # noqa: ARG002
        return sorted(servers, key=lambda node: (len(self._gpus.holders(node)), node))[:count]

    def broken_promise(self, context: ZoneContext) -> BrokenPromise | None:
        gpus = Gpus()
        gpus.configure(context.zone)
        pipelines = [job for job in self._runs.jobs.values() if job.workload.pipeline]
        if pipelines and gpus.most_per_node < STAGES_PER_PIPELINE:
            return {
                "case": "no_node_for_pipelines",
                "jobs": len(pipelines),
                "needed_gpus": STAGES_PER_PIPELINE,
            }
        other = [job for job in self._runs.jobs.values() if job.workload.model != context.zone.base_model]
        if other:
            return {
                "case": "jobs_of_base_model",
                "jobs": len(other),
                "base_model": other[0].workload.model,
            }
        small = self._too_small(gpus)
        if small is None:
            return None
        return {"case": "gpus_in_use", "node": small.node, "gpus": small.gpus, "held_gpus": small.held}

    def _needed(self, nodes: Iterable[str]) -> Iterable[str]:
        staying = [gpus for node, gpus in self._gpus.nodes.items() if node not in self._states.leaving]
        needs_wide = any(job.workload.pipeline for job in self._runs.jobs.values())
        least = STAGES_PER_PIPELINE if needs_wide else 1
        return nodes if self._runs.jobs and not any(gpus >= least for gpus in staying) else ()

    def wake(self, time_s: float) -> None:
        self._runs.time_s = time_s
        super().wake(time_s)
        self._runs.profile_all()
        self._planning.wake(time_s)

    def solved(self, answer: SolveFinished) -> None:
        self._planning.solved(answer)

    def broken_invariants(self) -> Iterator[str]:
        yield from super().broken_invariants()
        yield from broken_invariants(self._runs)

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "tasks": {id: task.describe() for id, task in self._runs.all.items()},
            "turns": self._runs.turns.numbers,
            "library": [asdict(adapter) for adapter in self._runs.library.adapters],
            **self._planning.describe(),
            "knowledge": self._knowledge.describe(),
        }

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "tasks": [state_of(task) for task in self._runs.all.values()],
            "begun": self._runs.begun,
            "time_s": self._runs.time_s,
            "knowledge": self._knowledge.state(),
            "speeds": self._runs.speeds.state(),
            "planning": self._planning.state(),
            "turns": self._runs.turns.state(),
            "library": self._runs.library.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._runs.begun, self._runs.time_s = state["begun"], state["time_s"]
        self._runs.restore(from_state(TuningTask, task) for task in state["tasks"])
        super().restore(state)
        self._knowledge.restore(state["knowledge"])
        self._runs.speeds.restore(state["speeds"])
        self._planning.restore(state["planning"])
        self._runs.restore_turns(state["turns"])
        self._runs.library.restore(state["library"])

    def _configure(self, context: ZoneContext) -> None:
        super()._configure(context)
        policy = cast(MergingPolicy, context.zone.policy)
        self._knowledge.configure(policy)
        self._runs.policy = policy
        self._runs.speeds.configure(self._zone, self._gpus.total, self._gpus.most_per_node, policy)
