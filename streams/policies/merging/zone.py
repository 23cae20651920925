"""A zone of fine-tuning jobs that may be merged."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from schemas.base import Event, Outcome
from schemas.facts import Facts
from schemas.fleet import RunFailed, RunReport
from schemas.jobs import JobQuoteRequested
from schemas.merging.outcomes import QueuedTask, TaskChangeReason
from schemas.merging.settings import STAGES_PER_PIPELINE, MergingPolicy
from schemas.merging.workload import TuningWorkload
from schemas.solves import SolveFinished
from streams.cell.jobs import Job
from streams.cell.nodes import NodeChange
from streams.cell.states import from_state, state_of
from streams.policies.gang.gangs import Why
from streams.policies.gpus import Gpus
from streams.policies.ignored import job_ending
from streams.policies.merging.invariants import broken_invariants
from streams.policies.merging.job import TuningJob
from streams.policies.merging.knowledge import Knowledge
from streams.policies.merging.planning import Planning
from streams.policies.merging.questions import Questions
from streams.policies.merging.runs import MergingRuns
from streams.policies.merging.tuning_task import TuningTask
from streams.policies.orders import OrderClock
from streams.policies.policy import BrokenPromise, ZoneContext


class MergingZone:
    """See `ZonePolicy`."""

    def __init__(self, context: ZoneContext) -> None:
        self._jobs = context.jobs
        self._outcomes = context.outcomes
        policy = cast(MergingPolicy, context.zone.policy)
        self._gpus = Gpus()
        self._orders = OrderClock(context.cell.cell, policy.order_timeout_s)
        self._knowledge = Knowledge(policy)
        self._runs = MergingRuns(context, self._gpus, self._orders, self._knowledge)
        self._questions = Questions(self._runs, self._knowledge)
        self._planning = Planning(context, self._runs, self._questions, self._knowledge)
        self._arrivals = 0
        self._states = context.nodes
        self._configure(context)

    def submitted(self, job: Job) -> None:
        workload = cast(TuningWorkload, job.workload)
        refusal = self._refusal(workload)
        entry = TuningJob(
            job,
            self._arrivals,
            kind="",
            submitted_s=self._runs.time_s,
            waits_since_s=self._runs.time_s,
        )
        if refusal is not None:
            self._outcomes.add(entry.rejected(self._zone.id, *refusal))
            return
        if (full := self._runs.room.refuse(entry)) is not None:
            self._outcomes.add(entry.rejected(self._zone.id, "cell_full", full))
            return
        self._arrivals += 1
        kind = self._knowledge.admit(workload)
        entry.kind = kind.key
        if kind.is_profiled:
            entry.stage, entry.never_merges = "ready", not kind.is_usable
        place = QueuedTask(jobs_waiting=self._runs.waiting, is_profiled=kind.is_profiled)
        self._outcomes.add(entry.admitted(self._zone.id, place))
        self._runs.add(entry)
        if kind.is_profiled:
            self._outcomes.add(
                self._runs.forecasts.decision(entry, "kind_finished" if kind.finished else "kind_known")
            )
        self._runs.has_changed = True
        self._runs.profile_all()

    def withdrawn(self, job: Job) -> None:
        entry = self._runs.jobs[job.job_id]
        if entry.is_ending:
            self._outcomes.add(job_ending(job.job_id))
            return
        entry.withdraw()
        self._runs.end(entry, Why("withdrawn"))
        self._follow_up()

    def quote(self, request: JobQuoteRequested) -> Outcome:
        raise AssertionError(f"quote {request.quote_id}: the policy quotes nothing")

    def run_changed(self, job: Job, report: RunReport) -> None:
        self._runs.report(self._runs.jobs[job.job_id], report)
        self._follow_up()
        if report.ends_run:
            self._runs.profile_all()

    def run_refused(self, job: Job, failed: RunFailed) -> None:
        self._runs.refuse(self._runs.jobs[job.job_id], failed)
        self._follow_up()
        self._runs.profile_all()

    def _follow_up(self) -> None:
        """Drop the plan if no job is left."""
        if not self._runs.jobs:
            self._planning.hold(None)

    def nodes_changed(self, change: NodeChange) -> None:
        self._gpus.set_open(change.node, self._states.is_open(change.node))
        self._runs.has_changed = True
        if change.status in ("down", "restarted"):
            why = Why[TaskChangeReason]("node_lost", {"node": change.node, "status": change.status})
            self._runs.lose_node(change.node, why, change.runs)
        elif change.status == "leaving":
            self._runs.vacate(change.node, {"case": "leaving", "node": change.node})
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
        for node in context.zone.nodes:
            held = sum(task.members.get(node.id, 0) for task in self._runs.all.values())
            held += sum(job.profiled_on.get(node.id, 0) for job in self._runs.jobs.values())
            if held > gpus.nodes[node.id]:
                return {
                    "case": "gpus_in_use",
                    "node": node.id,
                    "gpus": gpus.nodes[node.id],
                    "held_gpus": held,
                }
        return None

    def reconfigured(self, context: ZoneContext) -> None:
        self._configure(context)
        self._runs.has_changed = True
        # A node that has joined may be down: its change follows, so nothing begins before the next tick.

    def free_to_leave(self, nodes: Sequence[str]) -> list[str]:
        left = {node: gpus for node, gpus in self._gpus.nodes.items() if node not in self._states.leaving}
        needs_wide = any(job.workload.pipeline for job in self._runs.jobs.values())
        least = STAGES_PER_PIPELINE if needs_wide else 1
        can_run = not self._runs.jobs or any(gpus >= least for gpus in left.values())
        return [
            node for node in nodes if can_run and not self._gpus.holders(node) and not self._is_awaited(node)
        ]

    def take(self, event: Event) -> None:
        raise AssertionError(f"{event.TYPE}: is a report about a run")

    def wake(self, time_s: float) -> None:
        self._runs.time_s = time_s
        if self._orders.advance(time_s):
            self._runs.give_up_silent()
            self._follow_up()
        self._runs.profile_all()
        self._planning.wake(time_s)

    def solved(self, answer: SolveFinished) -> None:
        self._planning.solved(answer)

    def broken_invariants(self) -> Iterator[str]:
        yield from broken_invariants(self._zone.id, self._runs, self._jobs)

    def describe(self) -> dict[str, Any]:
        return {
            **self._runs.describe(),
            "tasks": {id: task.describe() for id, task in self._runs.all.items()},
            "nodes": self._gpus.describe(),
            "leaving": list(self._states.due_to_leave(self._gpus.nodes)),
            "turns": self._runs.turns.state(),
            **self._planning.describe(),
            "knowledge": self._knowledge.describe(),
        }

    def state(self) -> dict[str, Any]:
        return {
            "jobs": [state_of(job) for job in self._runs.jobs.values()],
            "tasks": [state_of(task) for task in self._runs.all.values()],
            "begun": self._runs.begun,
            "time_s": self._runs.time_s,
            "arrivals": self._arrivals,
            "closed": self._gpus.state(),
            "knowledge": self._knowledge.state(),
            "speeds": self._runs.speeds.state(),
            "planning": self._planning.state(),
            "turns": self._runs.turns.state(),
            "orders": self._orders.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._runs.begun, self._runs.time_s = state["begun"], state["time_s"]
        self._arrivals = state["arrivals"]
        self._gpus.restore(state["closed"])
        for packed in state["jobs"]:
            job = from_state(TuningJob, packed, self._jobs)
            self._runs.jobs[job.job_id] = job
        self._runs.restore(from_state(TuningTask, task) for task in state["tasks"])
        self._knowledge.restore(state["knowledge"])
        self._runs.speeds.restore(state["speeds"])
        self._planning.restore(state["planning"])
        self._runs.turns.restore(state["turns"])
        self._orders.restore(state["orders"])

    def _refusal(self, workload: TuningWorkload) -> tuple[Any, Facts] | None:
        if workload.model != self._zone.base_model:
            return "other_base_model", {"base_model": self._zone.base_model}
        if workload.pipeline and self._gpus.most_per_node < STAGES_PER_PIPELINE:
            most_gpus = self._gpus.most_per_node
            return "larger_than_the_zone", {"needed_gpus": STAGES_PER_PIPELINE, "most_node_gpus": most_gpus}
        return None

    def _is_awaited(self, node: str) -> bool:
        """Return whether a run that is to end on a node has not reported its end."""
        return any(node in job.leaving for job in self._runs.jobs.values())

    def _configure(self, context: ZoneContext) -> None:
        self._zone = context.zone
        policy = cast(MergingPolicy, context.zone.policy)
        self._gpus.configure(context.zone)
        self._knowledge.configure(policy)
        self._runs.policy = policy
        self._orders.timeout_s = policy.order_timeout_s
        self._runs.speeds.configure(self._zone, self._gpus.total, self._gpus.most_per_node, policy)
