"""The part of a gang on one node: its ranks there, from the command to the report of their end."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from executors.gang.gang_node import Assignment, GangNode
from executors.gang.messages import (
    MESSAGES,
    Ended,
    Failed,
    Joined,
    Members,
    Membership,
    RankMessage,
    RankOrder,
    RankProgress,
    Release,
    Report,
)
from executors.gang.rank_processes import RankProcess, RankProcesses
from executors.gang.run_state import RunState
from executors.processes.forked_process import ForkedProcess
from schemas.fleet import RunProgressed, RunReport, RunStarted
from schemas.profiles import MeasuredSteps

_NO_RANK = -1
"""Rank of a process that is to leave."""

_log = logging.getLogger(__name__)

C = TypeVar("C", bound=Assignment)


@dataclass(frozen=True)
class RunStanding:
    """Progress of a run."""

    samples_done: int
    loss: float | None = None
    node_s: float = 0.0
    measured: MeasuredSteps | None = None


@dataclass(frozen=True)
class GangTraits(Generic[C]):
    """Properties of a runner's commands that every gang needs.

    Attributes:
        order: type of the orders of its ranks.
        members_of: returns the nodes of a command's generation.
        work_of: `module:function` that a rank calls, with the order as JSON and its end of the pipe.
        keeps_checkpoints: whether a job resumes from checkpoints, or restarts without state.
        reports: types of reports that its ranks may send, besides those of all runs.
        repeats_progress: whether progress is reported even if no more samples are done.
    """

    order: type[RankOrder[Any]]
    members_of: Callable[[C], Members]
    work_of: Callable[[C], str]
    keeps_checkpoints: Callable[[C], bool] = lambda _: True
    reports: Sequence[type[RunReport]] = ()
    repeats_progress: bool = True


class LocalGang(Generic[C]):
    """The ranks of a job on a node, from one generation to the next."""

    def __init__(self, command: C, node: GangNode[Any], traits: GangTraits[C]) -> None:
        self.command = command
        self._traits = traits
        self._node = node
        ranks = self.members.ranks_of(command.node)
        self.processes = RankProcesses(node, ranks, self._start)
        self._standing = RunStanding(command.resume_samples)
        self._reports = node.reports_of(command)
        """Reports of the generation that was started last."""
        self._started_generation = self._measured_generation = 0
        self._reported_samples = command.resume_samples
        self._joined: Joined | None = None
        self._result: Ended | None = None
        self._is_gone = False
        """Whether no rank of the job, on any node, still holds its state."""
        self.has_begun = False

    @property
    def job_ids(self) -> tuple[str, ...]:
        return (self.command.job_id,)

    @property
    def generation(self) -> int:
        return self.command.generation

    @property
    def open_runs(self) -> tuple[str, ...]:
        return (self.command.run_id,)

    @property
    def is_released(self) -> bool:
        return self.processes.verdict is not None

    @property
    def goes_on(self) -> bool:
        return not self.is_released and not self.processes.have_failed

    @property
    def is_over(self) -> bool:
        return self.processes.are_gone

    @property
    def is_ending(self) -> bool:
        """Whether all ranks here are to end."""
        return self._is_gone or not self.goes_on

    @property
    def members(self) -> Members:
        """Members of the newest generation."""
        return self._traits.members_of(self.command)

    @property
    def kept_samples(self) -> int:
        """Samples that are kept if the ranks end now."""
        return self._standing.samples_done if self._traits.keeps_checkpoints(self.command) else 0

    def assign(self, command: C) -> None:
        """Continue in a newer generation, with as many of the present ranks as have a place in it."""
        self.command = command
        ranks = list(self.members.ranks_of(command.node))
        # Ranks with the job's state first, in their present order.
        staying = sorted(self.processes.running, key=lambda each: (-each.joined, each.rank))
        for each, rank in zip(staying, ranks, strict=False):
            each.rank = rank
            each.process.send(self._membership(rank))
        # Ranks that leave train until the others are complete without them.
        leave_s = self._node.clock.time_s() + self._node.settings.join_timeout_s
        for each in staying[len(ranks) :]:
            each.rank = _NO_RANK
            each.process.send(Release(verdict="leave", leave_s=leave_s))
        self.processes.vacant = ranks[len(staying) :]

    def advance(self) -> None:
        """Process the ranks' messages, start and kill ranks, and report changes."""
        self.has_begun = True
        for sender, message in self.processes.receive():
            self._process(sender, message)
        self.processes.reconcile()
        self._report_start()

    def report_end(self) -> None:
        """Report the end of the run: no rank of the job is left here."""
        reports, standing, result = self._node.reports_of(self.command), self._standing, self._result
        if result is not None:
            reports.finished(result.samples_done, result.loss, result.adapter_path, result.adapter_digest)
        elif (failure := self.processes.failure) is not None:
            reports.failed(self.kept_samples, failure.error, failure.permanent)
        else:
            # A job without checkpoints loses all samples, unless other ranks continue or it is finished.
            continues = self.processes.verdict == "leave" and not self._is_gone
            is_finished = standing.samples_done == self.command.workload.total_samples
            samples_done = standing.samples_done if continues or is_finished else self.kept_samples
            reports.over(samples_done, self.processes.verdict, loss=standing.loss, node_s=standing.node_s)

    def state(self) -> RunState:
        """Return the state of its run for the journal."""
        command, verdict = self.command, self.processes.verdict or "none"
        return RunState(
            job_id=command.job_id, run_id=command.run_id, samples_done=self.kept_samples, verdict=verdict
        )

    # Ranks

    def _membership(self, rank: int) -> Membership:
        return Membership(generation=self.command.generation, rank=rank, world=self.members.world)

    def _start(self, rank: int, gpu: int) -> ForkedProcess[RankMessage]:
        command, traits = self.command, self._traits
        order = self._node.order(traits.order, command, self._membership(rank), gpu)
        return ForkedProcess(traits.work_of(command), order, MESSAGES, f"{command.job_id}-rank-{rank}")

    def _process(self, sender: RankProcess, message: RankMessage) -> None:
        match message:
            case Joined():
                self._note_joined(sender, message)
                self._report_start()
            case RankProgress():
                self._note(sender, message)
                if sender.joined and message.leads and self._started_generation:
                    self._report_progress()
            case Report():
                self._node.report(message.parsed(self._traits.reports))
            case Ended():
                self._note(sender, message)
                self._note_ended(sender, message)
            case Failed() if self.processes.verdict is None and not self._is_gone:
                self.processes.fail(message)

    def _note_joined(self, sender: RankProcess, message: Joined) -> None:
        is_first = not any(each.joined for each in self.processes.running)
        sender.joined = message.generation
        standing = self._standing
        samples_done = message.samples_done if is_first else max(message.samples_done, standing.samples_done)
        self._standing = RunStanding(samples_done, standing.loss)
        self._joined = message
        if message.pause_s is not None and sender.rank == 0:
            _log.info(
                "job scaled job=%s run=%s world=%d scale_pause_s=%.3f",
                *(self.command.job_id, self.command.run_id, self.members.world, message.pause_s),
            )

    def _note(self, sender: RankProcess, message: RankProgress | Ended) -> None:
        if sender.joined:
            samples_done = max(message.samples_done, self._standing.samples_done)
            # Steps that were measured between two checkpoints are reported with the second one.
            newer = message.measured if isinstance(message, RankProgress) else None
            measured = _mean_of(self._standing.measured, newer)
            self._standing = RunStanding(samples_done, message.loss, message.node_s, measured)

    def _note_ended(self, sender: RankProcess, message: Ended) -> None:
        if message.answers:
            self._result = message
        if message.reason == "left" and sender.rank != _NO_RANK and not self.is_ending:
            # It had left when the node assigned it again.
            self.processes.vacant.append(sender.rank)
        elif message.reason != "left":
            # All ranks of the job stop at the same step.
            self.processes.vacant = []
            self._is_gone = True

    # Reports

    def _report_start(self) -> None:
        command = self.command
        if self._started_generation == command.generation or self.processes.vacant:
            return
        ranks = [each for each in self.processes.running if each.rank != _NO_RANK]
        has_begun = bool(ranks) and all(each.joined == command.generation for each in ranks)
        if self._result is None and (not has_begun or self.is_ending):
            return
        self._started_generation = command.generation
        self._reports = self._node.reports_of(command)
        samples_done = self._reported_samples = self._standing.samples_done
        dataset_samples = None if self._joined is None else self._joined.dataset_samples
        details = {} if self._joined is None else self._joined.details
        self._reports.report(RunStarted, samples_done, dataset_samples=dataset_samples)
        self._reports.log("run started", generation=command.generation, samples_done=samples_done, **details)

    def _report_progress(self) -> None:
        standing, generation = self._standing, self._started_generation
        # The first measurement of a generation is reported before its first checkpoint.
        is_first = standing.measured is not None and self._measured_generation != generation
        if self._traits.repeats_progress or is_first or standing.samples_done != self._reported_samples:
            if standing.measured is not None:
                self._measured_generation = generation
            self._reported_samples = standing.samples_done
            self._reports.report(RunProgressed, **vars(standing), complete=False)
            self._standing = replace(standing, measured=None)


def _mean_of(earlier: MeasuredSteps | None, later: MeasuredSteps | None) -> MeasuredSteps | None:
    """Return the mean of the steps of two reports of a generation, weighted by their numbers of steps; one of
    them may be None."""
    if earlier is None or later is None or earlier.samples_per_step != later.samples_per_step:
        return later or earlier
    steps = earlier.steps + later.steps

    def mean(before: float, now: float) -> float:
        return (earlier.steps * before + later.steps * now) / steps

    return later.model_copy(
        update={
            "steps": steps,
            "micro_batch_size": max(earlier.micro_batch_size, later.micro_batch_size),
            "step_s": mean(earlier.step_s, later.step_s),
            "exchange_s": mean(earlier.exchange_s, later.exchange_s),
            "loader_s": mean(earlier.loader_s or 0.0, later.loader_s or 0.0),
            "tokens_per_sample": mean(earlier.tokens_per_sample, later.tokens_per_sample),
        }
    )
