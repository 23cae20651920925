"""The runner `tuner` on a node: sends ranks the cell's orders, and the node their reports."""

import json
import logging
import shutil
from collections.abc import Iterator

from pydantic import JsonValue

from executors.gang.folder import JobFolder
from executors.gang.messages import Failed
from executors.gang.rank_processes import exit_error
from executors.gang.rank_runner import RankRunner, objection_to_generation
from executors.gang.reports import RunReports, RunStanding
from executors.node.places import result_path
from executors.node.runner import CloseReason, Objection, RunnerContext
from executors.tuner.assignments import STATES, Ending, NodeAssignment, objection_to
from executors.tuner.files import JobFiles
from executors.tuner.messages import (
    Halt,
    Over,
    Prewarm,
    ProfilePart,
    RankEnvironment,
    Switched,
    TaskPart,
    TaskReport,
)
from executors.tuner.rank_pool import PooledRank, RankPool
from executors.tuner.settings import TunerSettings
from schemas.commands import Command
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.merging.commands import JobOrder, LoaderPrewarmed, ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.reports import TaskEvaluated, TaskProfiled

_REPORTS: dict[str, type[RunReport]] = {
    report.TYPE: report
    for report in (RunStarted, RunProgressed, RunFinished, RunFailed, TaskProfiled, TaskEvaluated)
}
_LEAST_PREWARM_S = 30.0
"""Least time to keep a loader: the clocks of cell and node differ."""

_log = logging.getLogger(__name__)


class TunerRunner(RankRunner[TunerSettings]):
    """See `Runner`. The ranks outlive their tasks."""

    def __init__(self, context: RunnerContext, settings: TunerSettings, ranks: RankPool) -> None:
        """Start without assignments."""
        super().__init__(context, settings, len(ranks.ranks))
        self._base_model = context.settings.base_model
        self._files = JobFiles(self._node.state_root, self._node.cell)
        self._pool = ranks
        self._assignments: list[NodeAssignment] = []
        """Assignments by arrival."""
        self._parts = 0

    @classmethod
    def started(cls, context: RunnerContext, settings: TunerSettings, gpus: int) -> "TunerRunner":
        """Start ranks and wait until they have the base model.

        Raises:
            UnfitError: they cannot load it.
        """
        node = context.settings
        environment = RankEnvironment(
            cell=node.cell,
            node=node.node,
            base_model=node.base_model,
            state_root=node.state_root,
            output_root=node.output_root,
            settings=settings.model_dump(mode="json"),
            gpu=0,
        )
        ranks = RankPool(environment, gpus)
        try:
            ranks.await_ready()
        except BaseException:
            ranks.kill()
            raise
        return cls(context, settings, ranks)

    @property
    def pids(self) -> list[int]:
        return self._pool.pids

    def validate(self, command: Command) -> Objection | None:
        """Reject a task that is older than the node's assignments of its jobs or that `objection_to` rejects,
        and a release of another generation. A profile run replaces the node's assignment of its job: the cell
        orders one only for a job without another run."""
        if isinstance(command, TaskAssigned | ProfileOrdered):
            objection = objection_to(command, gpus_here=self._node.gpus)
            if objection is not None:
                return objection
        if isinstance(command, TaskAssigned):
            jobs = [order.job_id for order in command.orders]
            known = self._newest(set(jobs))
            if known is not None and known.command != command:
                return objection_to_generation(jobs, known.generation, command.generation - 1)
        if isinstance(command, TaskReleased):
            known = self._newest(set(command.job_ids))
            newest = None if known is None else known.generation
            return objection_to_generation(command.job_ids, newest, command.generation)
        return None

    def apply(self, command: Command) -> None:
        """Carry out a command. Starts and ends happen at the next step boundary."""
        if isinstance(command, TaskAssigned | ProfileOrdered):
            self._accept(command)
        elif isinstance(command, TaskReleased):
            self._release(command)
        elif isinstance(command, LoaderPrewarmed):
            self._prewarm(command)

    def disown(self, run_id: str, job_id: str) -> None:
        """End the task or profile run of this run, with a checkpoint unless a newer one has written."""
        for each in self._of({job_id}):
            if run_id in {order.run_id for order in each.unreported()}:
                _log.info("run disowned job=%s run=%s", job_id, run_id)
                self._end(each, Ending(reason="disowned", job_ids=tuple(sorted(each.job_ids))))

    def held_runs(self) -> list[str]:
        """Return the runs of assignments that are not to end."""
        going_on = [each for each in self._assignments if each.ending is None and not each.is_stopped]
        return [order.run_id for each in going_on for order in each.unreported()]

    @property
    def is_idle(self) -> bool:
        return not self._assignments

    def advance_ranks(self) -> Iterator[int | None]:
        for rank, message in list(self._pool.messages()):
            if isinstance(message, TaskReport):
                self._pass_on(message)
            elif isinstance(message, Switched):
                self._note_switch(message)
            else:
                self._on_over(rank, message)
                yield message.needed_bytes
        for part, status in list(self._pool.restart_ended()):
            self._on_exit(part, status)
        for each in list(self._assignments):
            self._conclude(each)
        for each in list(self._assignments):
            self._begin(each)
        self._pool.send_halts()

    def close(self, reason: CloseReason) -> None:
        """End all, with checkpoints, within `stop_grace_s`; the cell plans the jobs again. The ranks end with
        the node, and stay if only room is missing."""
        for each in self._assignments:
            if each.ending is None:
                self._end(each, Ending(reason="node_stops", job_ids=tuple(sorted(each.job_ids))))
        self.finish_work(within_s=self._node.settings.stop_grace_s)
        for each in list(self._assignments):
            # It did not end in time: the checkpoint on disk counts.
            each.ranks_left = 0
            self._conclude(each)
        if reason == "node_stops":
            self._pool.kill()

    def state(self) -> JsonValue:
        """Return the assignments that are not over, for a restart."""
        states: list[JsonValue] = [each.state().model_dump(mode="json") for each in self._assignments]
        return states or None

    def restore(self, state: JsonValue) -> None:
        """Continue the assignments of the process before, from checkpoints, since its ranks are gone."""
        for each in STATES.validate_json(json.dumps(state)):
            assignment = self._assignment(each.command)
            assignment.over = set(each.over)
            assignment.ending, assignment.is_stopped = each.ending, each.is_stopped
            if each.ending is not None or each.is_stopped:
                assignment.ranks_left = 0
            self._assignments.append(assignment)

    # Commands

    def _accept(self, command: TaskAssigned | ProfileOrdered) -> None:
        """Begin an order, and end the node's other assignments of its jobs."""
        assignment = self._assignment(command)
        present = self._of(assignment.job_ids)
        if any(each.command == command and each.ending is None for each in present):
            return  # the order is a duplicate
        for each in present:
            self._end(each, Ending(reason="newer", job_ids=tuple(sorted(each.job_ids))))
        self._assignments.append(assignment)

    def _of(self, job_ids: set[str]) -> list[NodeAssignment]:
        return [each for each in self._assignments if each.job_ids & job_ids]

    def _newest(self, job_ids: set[str]) -> NodeAssignment | None:
        return max(self._of(job_ids), key=lambda each: each.generation, default=None)

    def _assignment(self, command: TaskAssigned | ProfileOrdered) -> NodeAssignment:
        self._parts += 1
        return NodeAssignment(command, self._parts)

    def _release(self, command: TaskReleased) -> None:
        ending = Ending(reason=command.reason, job_ids=command.job_ids)
        for each in self._of(set(command.job_ids)):
            if each.generation <= command.generation:
                self._end(each, ending)
        live = {job_id for each in self._assignments for job_id in each.job_ids}
        for job_id in command.job_ids:
            if job_id in live:
                continue
            # It has no ranks here any more.
            if ending.discards(job_id):
                self._files.discard(job_id)
            elif ending.resets(job_id):
                self._files.undo(job_id, command.generation)

    def _prewarm(self, command: LoaderPrewarmed) -> None:
        now_s = self._node.clock.time_s()
        ahead_s = max(command.starts_s - now_s, _LEAST_PREWARM_S)
        drop_s = max(command.starts_s, now_s) + ahead_s
        self._pool.prewarm(Prewarm(order=command.order, drop_s=drop_s))

    def _end(self, assignment: NodeAssignment, ending: Ending) -> None:
        """Order the end of an assignment."""
        if assignment.ending is None or ending.weight >= assignment.ending.weight:
            assignment.ending = ending
        if assignment.ranks_left is None:
            assignment.ranks_left = 0
        self._pool.halt(Halt(part=assignment.part))

    # Ranks

    def _begin(self, assignment: NodeAssignment) -> None:
        """Give an assignment its ranks, as soon as enough are idle or about to be."""
        if assignment.ranks_left is not None:
            return
        refusal = self._refusal(assignment)
        if refusal is not None:
            assignment.ranks_left = 0
            if assignment.leads:
                for order in assignment.orders:
                    self._fail(assignment, order, refusal)
            assignment.over |= {order.run_id for order in assignment.orders}
            return
        if any(each.part < assignment.part for each in self._of(assignment.job_ids)):
            return  # it resumes from their checkpoints
        found = self._free(assignment)
        if found is None:
            return
        ranks, follows = found
        assignment.ranks_left = len(ranks)
        assignment.given_gpus = tuple(rank.gpu for rank in ranks)
        number, command = assignment.part, assignment.command
        if isinstance(command, ProfileOrdered):
            self._files.remove_meeting(assignment.meeting)  # of an earlier process
        for membership, rank in zip(assignment.memberships(), ranks, strict=True):
            part: ProfilePart | TaskPart
            if isinstance(command, ProfileOrdered):
                part = ProfilePart(part=number, command=command, membership=membership)
            else:
                part = TaskPart(part=number, command=command, membership=membership, follows=follows)
            self._pool.give(rank, part)

    def _free(self, assignment: NodeAssignment) -> tuple[list[PooledRank], int | None] | None:
        """Return ranks for an assignment in the order of their numbers, and the part that it follows on them,
        see `TaskPart`. The ranks are idle, or their one part is about to end. None if there are too few."""
        count = assignment.gpus
        ending = [each for each in self._assignments if each.ending is not None or each.is_stopped]
        parts = {each.part for each in ending}
        ready = [rank for rank in self._pool.ranks if rank.is_ready]
        idle = [rank for rank in ready if not rank.parts]
        soon = {rank.gpu: rank for rank in ready if len(rank.parts) == 1 and rank.parts[0] in parts}
        if len(idle) < count:
            for each in ending:
                if assignment.can_follow(each) and all(
                    gpu in soon and soon[gpu].parts == [each.part] for gpu in each.given_gpus
                ):
                    return [soon[gpu] for gpu in each.given_gpus], each.part
        found = [*idle, *soon.values()][:count]
        return (found, None) if len(found) == count else None

    def _refusal(self, assignment: NodeAssignment) -> str | None:
        """Return why the jobs of an assignment cannot be trained here; None without a reason."""
        held = self._base_model
        others = (model for order in assignment.orders if (model := order.workload.model) != held)
        return next((f"model: the node holds base model {held}, not {model}" for model in others), None)

    def _pass_on(self, message: TaskReport) -> None:
        report = _REPORTS[message.type].model_validate_json(json.dumps(message.data))
        assignment = self._by_part(message.part)
        if assignment is None or report.run_id in assignment.over:
            return
        self._node.report(report)
        if isinstance(report, RunFinished | RunFailed | TaskProfiled):
            assignment.over.add(report.run_id)
            how = report.TYPE.removeprefix("millrace.").removesuffix(".v1")
            _log.info(
                "%s job=%s run=%s samples_done=%d", how, report.job_id, report.run_id, report.samples_done
            )

    def _note_switch(self, message: Switched) -> None:
        assignment = self._by_part(message.part)
        if assignment is not None:
            jobs = ",".join(order.job_id for order in assignment.orders)
            _log.info(
                "task switched jobs=%s overlaps=%s switch_gap_s=%.4f step_s=%.4f",
                *(jobs, str(message.overlaps).lower(), message.gap_s, message.step_s),
            )

    def _on_over(self, rank: PooledRank, message: Over) -> None:
        rank.parts.remove(message.part)
        assignment = self._by_part(message.part)
        if assignment is not None and assignment.ranks_left:
            assignment.ranks_left -= 1
            # All ranks of a task stop at the same step.
            assignment.is_stopped = assignment.is_stopped or message.outcome == "stopped"

    def _on_exit(self, part: int, status: str) -> None:
        """Report the loss of a part whose process has ended."""
        assignment = self._by_part(part)
        if assignment is None:
            return
        if assignment.ranks_left:
            assignment.ranks_left -= 1
        if assignment.ending is not None:
            return
        error = exit_error(status)
        if assignment.world > 1:
            # The other ranks detect its loss, and read the reason here.
            folder = JobFolder(self._files.meeting_place(assignment.meeting))
            folder.write_failure(assignment.meeting_generation, error, permanent=False)
            self._pool.halt(Halt(part=part))
        for order in list(assignment.unreported()):
            if assignment.leads:
                self._fail(assignment, order, error)
        assignment.over |= {order.run_id for order in assignment.orders}

    def _by_part(self, part: int) -> NodeAssignment | None:
        return next((each for each in self._assignments if each.part == part), None)

    # Ends

    def _conclude(self, assignment: NodeAssignment) -> None:
        """Check whether an assignment is over: if so, settle its files and report its runs."""
        if assignment.ranks_left is None or assignment.ranks_left > 0:
            return
        ending = assignment.ending
        if ending is None and assignment.is_stopped and any(assignment.unreported()):
            return  # halted on its other nodes; this node's command will have the reason
        if ending is not None:
            for order in assignment.orders:
                self._settle(assignment, order, ending)
        if assignment.leads and all(order.run_id in assignment.over for order in assignment.orders):
            place = JobFolder(self._files.meeting_place(assignment.meeting))
            place.remove_generation(assignment.meeting_generation)
        self._assignments.remove(assignment)

    def _settle(self, assignment: NodeAssignment, order: JobOrder, ending: Ending) -> None:
        """Settle a job's files as the reason demands, and report the end of its run."""
        job_id = order.job_id
        if ending.discards(job_id):
            self._files.discard(job_id)
            result = self._node.output_root / result_path(self._node.cell, order.user, job_id)
            shutil.rmtree(result, ignore_errors=True)
            samples_done = 0
        elif ending.resets(job_id):
            samples_done = self._files.undo(job_id, assignment.generation)
        else:
            samples_done = self._files.kept_samples(order)
        if order.run_id not in assignment.over:
            assignment.over.add(order.run_id)
            RunReports(self._node, job_id).over(order.run_id, RunStanding(samples_done), ending.reason)

    def _fail(self, assignment: NodeAssignment, order: JobOrder, error: str) -> None:
        """Report a run that may succeed on another node."""
        assignment.over.add(order.run_id)
        reports, failure = RunReports(self._node, order.job_id), Failed(error=error, permanent=False)
        reports.failed(order.run_id, self._files.kept_samples(order), failure)
