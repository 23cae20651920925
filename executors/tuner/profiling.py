"""The profile run of a new job: some steps from the base model, of which only measurements are kept."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from executors.gang.faults import share_failure
from executors.gang.folder import JobFolder
from executors.lora.faults import described
from executors.lora.shared_base import SharedBase
from executors.node.losses import reportable
from executors.tuner.data import Loader
from executors.tuner.embedding import Embeddings, embed
from executors.tuner.evaluating import accuracy_of
from executors.tuner.faults import HaltedError, cannot_succeed_elsewhere
from executors.tuner.memory import BYTES_PER_GIB, most_bytes_kept
from executors.tuner.messages import Outcome, Over, ProfilePart
from executors.tuner.rank_resources import RankResources
from executors.tuner.settings import TunerSettings
from executors.tuner.task_rank import TaskRank, come_together
from executors.tuner.training import TrainingStep
from schemas.fleet import RunFailed, RunReport, RunStarted
from schemas.merging.commands import ProfileOrdered
from schemas.merging.reports import MeasuredStep, TaskProfiled

_TRAINING_SHARE = 0.7
"""Share of the time for the steps; the rest is for the embedding."""

_UNTIMED_STEPS = 1
"""The first step of a configuration takes longer."""

_TIMED_STEPS = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Profile:
    """Results of a profile run, as in the fields of `TaskProfiled` of the same names."""

    losses: tuple[float, ...]
    embedding: tuple[float, ...]
    features: tuple[float, ...]
    accuracy: float | None
    accuracy_after_epoch: float | None
    steps: tuple[MeasuredStep, ...]
    memory_gib: float
    loader_s: float
    dataset_samples: int


def profile(
    command: ProfileOrdered,
    rank: TaskRank,
    base: SharedBase,
    settings: TunerSettings,
    device: torch.device,
    deadline_s: float,
    leads: bool,
    is_halted: Callable[[], bool],
) -> Profile | None:
    """Do a profile run, and return its results; None if it was halted. All ranks call it.

    Args:
        rank: the connected ranks, with the one job.
        deadline_s: on the monotonic clock.
        leads: whether this rank reports the results, and so computes the embedding.
        is_halted: returns whether this rank is to end the run.

    Raises:
        FieldError: the job cannot be trained.
        DivergedError: its loss is not finite.
        TimeoutError: the time was over before the first step.
        PeerLostError: another rank is lost.
    """
    run = _ProfileTraining(command, rank, settings, is_halted)
    rank.begin(rank.jobs)
    accuracy = accuracy_of(rank, run.job, settings)
    until_s = time.monotonic() + _TRAINING_SHARE * max(deadline_s - time.monotonic(), 0.0)
    with _memory_watched(rank, base, device) as peak_bytes:
        trained = run.train(until_s, deadline_s)
    if run.ends():
        return None
    configurations = [run.measured(trained.steps)]
    micro = rank.micro_batch_size
    if micro > 1 and not run.ends(until_s):
        rank.micro_batch_size = micro // 2
        configurations.append(run.measured(run.repeat(until_s)))
    memory_bytes = max(row[0] for row in rank.gather([peak_bytes[0]]))
    loader = run.job.loader
    embeddings = Embeddings((), (), 0)
    if leads:
        embeddings = _embed(base, loader, command.fisher_samples, deadline_s)
    return Profile(
        losses=tuple(trained.losses),
        embedding=embeddings.fisher,
        features=embeddings.features,
        accuracy=accuracy,
        accuracy_after_epoch=trained.accuracy_after_epoch,
        steps=tuple(configurations),
        memory_gib=memory_bytes / BYTES_PER_GIB,
        loader_s=loader.prepared_s,
        dataset_samples=len(loader.training),
    )


@dataclass
class _Trained:
    """Results of the training steps of a profile run."""

    losses: list[float] = field(default_factory=list)
    steps: list[TrainingStep] = field(default_factory=list)
    accuracy_after_epoch: float | None = None


class _ProfileTraining:
    """Steps of a profile run. The leader's clock and the halts of all ranks end it."""

    def __init__(
        self,
        command: ProfileOrdered,
        rank: TaskRank,
        settings: TunerSettings,
        is_halted: Callable[[], bool],
    ) -> None:
        (self.job,) = rank.jobs
        self.rank = rank
        self._command = command
        self._settings = settings
        self._is_halted = is_halted

    def ends(self, until_s: float = math.inf) -> bool:
        """Return whether any rank is to end the run, or it is later than `until_s` for the leader; the same
        on all ranks."""
        gathered = self.rank.gather([int(self._is_halted()), int(time.monotonic() >= until_s)])
        return any(is_halted for is_halted, _ in gathered) or bool(gathered[0][1])

    def train(self, until_s: float, deadline_s: float) -> _Trained:
        """Train for the ordered number of steps, or until the deadline; measure the accuracy once the data is
        used up."""
        shown = _Trained()
        job = self.job
        epoch_steps = -(-len(job.loader.training) // job.batch_size)
        while (done := len(shown.steps)) < self._command.iterations:
            if self.ends(until_s if done else deadline_s):
                break
            step = self._step(done)
            loss = reportable(step.losses[0])
            assert loss is not None, "a batch has tokens that bear loss"
            shown.losses.append(loss)
            shown.steps.append(step)
            if len(shown.steps) == epoch_steps:
                shown.accuracy_after_epoch = accuracy_of(self.rank, job, self._settings)
        if not shown.steps and not self.ends():
            raise TimeoutError(f"limit_s: {self._command.limit_s:g} s were over before the first step")
        return shown

    def repeat(self, until_s: float) -> list[TrainingStep]:
        """Run some more steps, to measure their time only."""
        steps: list[TrainingStep] = []
        while len(steps) < _UNTIMED_STEPS + _TIMED_STEPS and (not steps or not self.ends(until_s)):
            steps.append(self._step(len(steps)))
        return steps

    def measured(self, steps: list[TrainingStep]) -> MeasuredStep:
        return self.rank.measured(steps[_UNTIMED_STEPS:] or steps)

    def _step(self, number: int) -> TrainingStep:
        job = self.job
        job.iterations, job.drawn = number, number * job.batch_size
        return self.rank.step(())


def _embed(base: SharedBase, loader: Loader, most: int, deadline_s: float) -> Embeddings:
    indices = loader.stream.indices(0, min(most, len(loader.training)))
    return embed(base, [loader.training[index] for index in indices], deadline_s)


@contextmanager
def _memory_watched(rank: TaskRank, base: SharedBase, device: torch.device) -> Iterator[list[int]]:
    """Measure the most memory of this rank's device that the steps in the block need, besides the memory held
    before (bytes). The list has one number after the block."""
    peak: list[int] = []
    if device.type != "cuda":
        yield peak
        kept = most_bytes_kept(base.model, rank.rehearse)
        peak.append(kept + rank.state_bytes)
        return
    torch.cuda.reset_peak_memory_stats(device)
    before_bytes = torch.cuda.memory_allocated(device) - rank.state_bytes
    yield peak
    peak.append(max(torch.cuda.max_memory_allocated(device) - before_bytes, 0))


class ProfileRun:
    """One rank's part of a profile run. Its leader reports for all."""

    def __init__(
        self,
        part: ProfilePart,
        surroundings: RankResources,
        base: SharedBase,
        open_rank: Callable[[], TaskRank],
        folder: JobFolder,
    ) -> None:
        """Start nothing before `run`.

        Args:
            open_rank: opens the job.
            folder: folder of the ranks' meeting.
        """
        self._part = part
        self._around = surroundings
        self._base = base
        self._open_rank = open_rank
        self._folder = folder

    def run(self) -> None:
        """Do the run, and end it with the message `Over`."""
        outcome: Outcome = "stopped"
        if not self._is_halted():
            self._report(RunStarted)
            try:
                if self._run():
                    outcome = "finished"
            except HaltedError:
                pass
            except Exception as error:
                outcome = "failed"
                self._fail(error)
        self._around.inbox.send(Over(part=self._part.part, outcome=outcome))
        self._around.inbox.forget(self._part.part)

    def _run(self) -> bool:
        """Do the run, and return whether it was completed."""
        command, settings, membership = self._part.command, self._around.settings, self._part.membership
        deadline_s = time.monotonic() + command.limit_s
        rank = self._open_rank()
        try:
            meeting = come_together(
                self._folder, membership, settings.rank_host, settings.join_timeout_s, self._is_halted
            )
            rank.join(meeting)
            rank.agree()
            device, leads = self._around.device, membership.rank == 0
            found = profile(command, rank, self._base, settings, device, deadline_s, leads, self._is_halted)
            if found is not None:
                self._report(TaskProfiled, **vars(found))
            return found is not None
        finally:
            rank.leave()
            for job in rank.jobs:
                job.loader.close()

    def _fail(self, error: Exception) -> None:
        membership = self._part.membership
        error, permanent = share_failure(
            error,
            self._folder,
            membership.generation,
            permanent=cannot_succeed_elsewhere(error),
            has_peers=membership.world > 1,
        )
        _log.warning("profile run failed job=%s error=%r", self._part.command.order.job_id, error)
        self._report(RunFailed, error=described(error), permanent=permanent)

    def _is_halted(self) -> bool:
        return self._around.inbox.is_halted(self._part.part)

    def _report(self, kind: type[RunReport], **fields: Any) -> None:
        """Report, if this rank leads."""
        if self._part.membership.rank == 0:
            self._around.reports_of(self._part.part, self._part.command.order).report(kind, 0, **fields)
