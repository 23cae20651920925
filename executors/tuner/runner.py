"""The runner `tuner` on a node: sends ranks the cell's orders, and the node their reports."""

import json
import logging
import shutil
from collections.abc import Iterator

from pydantic import JsonValue

from executors.gang.folder import JobFolder
from executors.gang.rank_processes import exit_error
from executors.gang.rank_runner import RankRunner, StopReason
from executors.node.places import result_path
from executors.node.runner import CloseReason, Objection, RunnerContext
from executors.tuner.assignments import STATES, Ending, NodeAssignment, objection_to, orders_of
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

_REPORTS: tuple[type[RunReport], ...] = (
    *(RunStarted, RunProgressed, RunFinished, RunFailed),
    *(TaskProfiled, TaskEvaluated),
)
_LEAST_PREWARM_S = 30.0
"""Least time to keep a loader: the clocks of cell and node differ."""

_log = logging.getLogger(__name__)


class TunerRunner(RankRunner[TunerSettings, NodeAssignment, TaskAssigned | ProfileOrdered, TaskReleased]):
    """See `Runner`. The ranks outlive their tasks.

    A profile run replaces the node's assignment of its job: the cell orders one only for a job without
    another run.
    """

    ASSIGNED = (TaskAssigned, ProfileOrdered)
    RELEASED = TaskReleased

    def __init__(self, context: RunnerContext, settings: TunerSettings, ranks: RankPool) -> None:
        """Start without assignments."""
        super().__init__(context, settings, len(ranks.ranks))
        self._base_model = context.settings.base_model
        self._files = JobFiles(self._node.state_root, self._node.cell)
        self._pool = ranks
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

    # Commands

    def jobs_of(self, command: TaskAssigned | ProfileOrdered | TaskReleased) -> tuple[str, ...]:
        if isinstance(command, TaskReleased):
            return command.job_ids
        return tuple(order.job_id for order in orders_of(command))

    def objection(self, command: TaskAssigned | ProfileOrdered) -> Objection | None:
        return objection_to(command, gpus_here=self._node.gpus)

    def apply(self, command: Command) -> None:
        """See `Runner`. Starts and ends happen at the next step boundary."""
        if isinstance(command, LoaderPrewarmed):
            self._prewarm(command)
        else:
            super().apply(command)

    def assignment_of(self, command: TaskAssigned | ProfileOrdered) -> NodeAssignment:
        self._parts += 1
        return NodeAssignment(command, self._parts)

    def release(self, assignment: NodeAssignment, command: TaskReleased) -> None:
        self._end(assignment, Ending(reason=command.reason, job_ids=command.job_ids))

    def stop(self, assignment: NodeAssignment, reason: StopReason) -> None:
        """End ranks, with a checkpoint unless a newer task has written."""
        if not assignment.is_released:
            self._end(assignment, Ending(reason=reason, job_ids=tuple(sorted(assignment.job_ids))))

    def clear(self, job_id: str, command: TaskReleased) -> None:
        ending = Ending(reason=command.reason, job_ids=command.job_ids)
        if ending.discards(job_id):
            self._files.discard(job_id)
        elif ending.resets(job_id):
            self._files.undo(job_id, command.generation)

    # Work

    def receive(self) -> Iterator[int | None]:
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

    def advance_ranks(self) -> Iterator[int | None]:
        yield from super().advance_ranks()
        self._pool.send_halts()

    def close(self, reason: CloseReason) -> None:
        """End all, with checkpoints, within `stop_grace_s`; the cell plans the jobs again. The ranks end with
        the node, and stay if only room is missing."""
        self.finish_work(within_s=self._node.settings.stop_grace_s)
        for each in list(self.assignments):
            # It did not end in time: the checkpoint on disk counts.
            self._conclude(each)
        if reason == "node_stops":
            self._pool.kill()

    # Journal

    def state(self) -> JsonValue:
        """Return the assignments that are not over, for a restart."""
        states: list[JsonValue] = [each.state().model_dump(mode="json") for each in self.assignments]
        return states or None

    def restore(self, state: JsonValue) -> None:
        """Continue the assignments of the process before, from checkpoints, since its ranks are gone."""
        for each in STATES.validate_json(json.dumps(state)):
            assignment = self.assignment_of(each.command)
            assignment.over = set(each.over)
            assignment.ending, assignment.is_stopped = each.ending, each.is_stopped
            if not assignment.goes_on or not assignment.open_runs:
                assignment.ranks_left = 0
            self.assignments.append(assignment)

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

    def begin(self, assignment: NodeAssignment) -> None:
        """Give an assignment its ranks, as soon as enough are idle or about to be."""
        refusal = self._refusal(assignment)
        if refusal is not None:
            assignment.ranks_left = 0
            self._fail(assignment, refusal)
            return
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
        ending = [each for each in self.assignments if not each.goes_on]
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
        report = message.parsed(_REPORTS)
        assignment = self._by_part(message.part)
        if assignment is None or report.run_id in assignment.over:
            return
        self._node.report(report)
        if isinstance(report, RunFinished | RunFailed | TaskProfiled):
            assignment.over.add(report.run_id)
            how = report.TYPE.removeprefix("millrace.").removesuffix(".v1")
            self._node.reports_of(report).log(how, samples_done=report.samples_done)

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
        self._fail(assignment, error)

    def _by_part(self, part: int) -> NodeAssignment | None:
        return next((each for each in self.assignments if each.part == part), None)

    # Ends

    def settle(self, assignment: NodeAssignment) -> None:
        ending = assignment.ending
        if ending is not None:
            for order in assignment.orders:
                self._settle(assignment, order, ending)
        if assignment.leads and not assignment.open_runs:
            place = JobFolder(self._files.meeting_place(assignment.meeting))
            place.remove_generation(assignment.meeting_generation)

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
            self._node.reports_of(order).over(samples_done, ending.reason)

    def _fail(self, assignment: NodeAssignment, error: str) -> None:
        """End the runs of an assignment that may succeed on other nodes; its leader reports it."""
        for order in assignment.orders if assignment.leads else ():
            if order.run_id not in assignment.over:
                reports = self._node.reports_of(order)
                reports.failed(self._files.kept_samples(order), error, permanent=False)
        assignment.over.update(order.run_id for order in assignment.orders)
