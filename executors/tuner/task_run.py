"""A task on one of its ranks: its jobs in their mode, from the first step to the final report.

Modes (Ymir, section 6.1): `normal`, one job; `temporal`, the first job to its end, then the second from its
final weights, with a new optimizer; `spatial`, both in one adapter, with annealed sampling.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from executors.gang.faults import DivergedError, share_failure
from executors.gang.folder import JobFolder
from executors.gang.meeting import Meeting, PeerFailedError, PeerLostError
from executors.lora.faults import described
from executors.node.checkpoints import StaleWriterError
from executors.node.room import is_for_lack_of_room
from executors.tuner.evaluating import Evaluations
from executors.tuner.faults import (
    HaltedError,
    JobError,
    UnfitMergeError,
    cannot_succeed_elsewhere,
)
from executors.tuner.keeper import TaskKeeper
from executors.tuner.messages import Outcome, Over, Switched, TaskPart
from executors.tuner.opening import BackgroundOpening, TrainingJob
from executors.tuner.rank_resources import RankResources
from executors.tuner.reports import TaskReports, TaskSaves
from executors.tuner.task_rank import TaskRank, come_together
from executors.tuner.training import TrainingStep
from schemas.base import MAX_TEXT_LENGTH
from schemas.merging.commands import JobOrder

_CONCLUSION_S = 30.0
_REUNIONS = 2
"""Number of times that the ranks of a task meet again after the loss and restart of one."""

_log = logging.getLogger(__name__)


class TaskRun:
    """One rank's part of a task. Its leader reports and writes for all."""

    def __init__(
        self,
        part: TaskPart,
        surroundings: RankResources,
        opening: BackgroundOpening[TaskRank],
        folder: JobFolder,
    ) -> None:
        """Start nothing before `run`.

        Args:
            opening: opening of the task's data and state.
            folder: folder of its ranks' meetings.
        """
        self._part = part
        self._command = part.command
        self._around = surroundings
        self._settings = surroundings.settings
        self._opening = opening
        self._folder = folder
        self._keeper = TaskKeeper(surroundings.keeper)
        self._opened_rank: TaskRank | None = None
        self._evaluations: Evaluations | None = None
        self._meeting: Meeting | None = None
        self._reports = TaskReports(part, surroundings, self._keeper)
        self._saves = TaskSaves(self._command, surroundings, self._keeper, self._reports)
        self._node_s = 0.0
        self._is_started = False
        self._has_connected_ranks = False
        """Whether it has taken over the connected ranks of the task before."""
        self._outcome: Outcome = "stopped"

    @property
    def leads(self) -> bool:
        """Whether this rank reports and writes for all."""
        return self._part.membership.rank == 0

    def run(self) -> None:
        """Train until all jobs are over or the part is halted. The keeper then sends `Over`."""
        try:
            self._run()
        except HaltedError:
            self._save_what_remains()
        except Exception as error:
            self._fail(error)
        finally:
            self._end()

    def _run(self) -> None:
        self._has_connected_ranks = self._opening.is_open and self._opening.result().is_joined
        if self._is_halted() and not self._has_connected_ranks:
            return  # ranks that were taken over are connected already, and end in the same way
        self._opened_rank = rank = self._opening.result()
        self._saves.begin(rank.jobs)
        self._evaluations = Evaluations(
            rank, self.leads, self._command.watched_epochs, self._settings, self._reports
        )
        reunions = 0
        while True:
            try:
                with self._together():
                    self._start()
                    self._train()
                if all(job.is_over for job in rank.jobs):
                    self._outcome = "finished"
                return
            except PeerFailedError:
                raise  # another rank has written why the task cannot continue
            except PeerLostError:
                self._meeting = None  # a rank can no longer read the outcome
                reunions += 1
                if reunions > _REUNIONS or not rank.can_reunite:
                    raise

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Connect all ranks of the task, with the leader's state, for the duration of the block. Ranks that
        were taken over are connected already."""
        rank, membership = self._rank, self._part.membership
        try:
            if not rank.is_joined:
                self._meeting = come_together(
                    self._folder,
                    membership,
                    self._settings.rank_host,
                    self._settings.join_timeout_s,
                    self._is_halted,
                )
                rank.join(self._meeting)
                rank.agree()
            yield
        finally:
            rank.leave()

    @property
    def _rank(self) -> TaskRank:
        assert self._opened_rank is not None, "it was opened"
        return self._opened_rank

    @property
    def _jobs(self) -> list[TrainingJob]:
        return [] if self._opened_rank is None else self._opened_rank.jobs

    def _in_training(self) -> list[TrainingJob]:
        """Return the jobs of the present phase."""
        left = [job for job in self._jobs if not job.is_over]
        return left if self._command.mode == "spatial" else left[:1]

    # Training

    def _train(self) -> None:
        """Run the remaining phases of the task."""
        while active := self._in_training():
            waiting = (job for job in self._jobs if not job.is_over and job not in active)
            watched = next((job for job in waiting if job.shows_donor), None)
            self._rank.begin(active)
            if not self._train_phase(active, watched):
                return

    def _train_phase(self, active: list[TrainingJob], watched: TrainingJob | None) -> bool:
        """Train jobs until one of them is over; return false if the part is halted before."""
        if self._finish_those_done(active, {}):
            return True
        while True:
            self._raise_if_not_kept()
            if self._rank.succession == "ready" and not self._measured.will_be_due(
                active, self._rank.upcoming()
            ):
                self._leave_to_successor(active)
                return False
            step = self._step(active)
            is_halted, requests_evaluation, requests_checkpoint = step.signals
            accuracies = self._measured.measure(active, watched, is_requested=bool(requests_evaluation))
            if self._finish_those_done(active, accuracies):
                return True
            if is_halted and self._rank.succession == "none":
                self._save_at_last(active)
                return False
            if requests_checkpoint:
                state = self._rank.state()
                if state is not None:
                    self._saves.save(active, state, self._node_s)

    def _step(self, active: Sequence[TrainingJob]) -> TrainingStep:
        around = self._around
        counts = self._rank.upcoming()
        is_checkpoint_due = time.monotonic() - self._saves.saved_s >= self._settings.checkpoint_s
        signals = (
            self._is_halted(),
            self.leads and self._measured.may_be_requested(active, counts),
            self.leads and is_checkpoint_due,
        )
        began_s = time.monotonic()
        step = self._rank.step([float(signal) for signal in signals])
        self._advance(active, counts)
        for job, loss in zip(active, step.losses, strict=True):
            job.loss = job.loss if loss is None else loss
        self._measured.note(active, counts, step)
        if around.stepped_s is not None and not self._node_s:
            gap_s = began_s - around.stepped_s
            number, overlaps = self._part.part, self._has_connected_ranks
            around.inbox.send(Switched(part=number, gap_s=gap_s, step_s=step.step_s, overlaps=overlaps))
        around.stepped_s = stepped_s = time.monotonic()
        self._node_s += stepped_s - began_s
        return step

    @staticmethod
    def _advance(active: Sequence[TrainingJob], counts: Sequence[int]) -> None:
        for job, count in zip(active, counts, strict=True):
            job.iterations += 1
            job.drawn += count

    def _leave_to_successor(self, active: Sequence[TrainingJob]) -> None:
        """Run the last step while the next task begins on the same ranks (section 6.2, Figure 9)."""
        counts = self._rank.upcoming()
        last = self._rank.leave_to_successor()
        self._around.stepped_s = last.ended_s
        self._advance(active, counts)
        if self.leads:
            self._saves.save_at_last(active, last.state)
        else:
            self._keeper.submit(last.wait)

    @property
    def _measured(self) -> Evaluations:
        assert self._evaluations is not None, "it was opened"
        return self._evaluations

    # Ends

    def _finish_those_done(self, active: Sequence[TrainingJob], accuracies: dict[str, float]) -> bool:
        """Publish the jobs that have met their targets, and return whether there are any."""
        done = []
        for job in active:
            target = job.order.workload.target
            accuracy = accuracies.get(job.job_id)
            is_accurate = target.accuracy is not None and accuracy is not None and accuracy >= target.accuracy
            if is_accurate or job.iterations >= target.most_iterations:
                done.append(job)
        if not done:
            return False
        left = [job for job in active if job not in done]
        copied = self._rank.state() if left else None
        if copied is not None:
            # The checkpoints of the others must not be older than these ends.
            self._saves.save(left, copied, self._node_s)
        last = self._rank.last_state() if copied is None else lambda: copied
        for job in done:
            job.is_over = True
            if last is not None:
                self._saves.finish(job, last)
        return True

    def _save_at_last(self, jobs: Sequence[TrainingJob]) -> None:
        last = self._rank.last_state()
        if last is not None:
            self._saves.save_at_last(jobs, last)

    def _save_what_remains(self) -> None:
        """Save the leader's own state of jobs whose ranks are no longer connected."""
        remains = None if self._opened_rank is None else self._opened_rank.remains()
        if remains is not None:
            self._saves.save_at_last(self._in_training(), remains)

    def _fail(self, error: Exception) -> None:
        """Report why the task cannot continue, and save its progress if it may continue on other nodes."""
        self._outcome = "failed"
        if isinstance(error, StaleWriterError):
            _log.info("task replaced task=%s: %s", self._command.task_id, error)
            return
        error, _ = share_failure(
            error,
            self._folder,
            self._command.generation,
            permanent=len(self._command.orders) == 1 and cannot_succeed_elsewhere(error),
            has_peers=self._part.membership.world > 1,
        )
        self._meeting = None  # the remaining ranks do not wait for each other
        if not self.leads:
            return
        failures = self._failures(error)
        if self._is_started and not isinstance(error, DivergedError | OSError):
            with suppress(Exception):  # the first error is reported
                self._save_what_remains()

        def report() -> None:
            for order, text, permanent in failures:
                self._reports.failed(order, self._saves.samples.get(order.job_id, 0), text, permanent)

        self._keeper.submit_always(report)

    def _failures(self, error: Exception) -> list[tuple[JobOrder, str, bool]]:
        """Return the reported failure of each job that is not over."""
        over = {job.job_id for job in self._jobs if job.is_over}
        in_training = {job.job_id for job in self._in_training()}
        failures = []
        for order in self._command.orders:
            if order.job_id in over:
                continue
            text, permanent = described(error), cannot_succeed_elsewhere(error)
            if isinstance(error, PeerFailedError):
                permanent = error.is_permanent
            elif isinstance(error, JobError):
                if error.job_id != order.job_id:
                    text, permanent = f"{error.job_id}, with which it is merged: {text}", False
            elif len(self._command.orders) > 1 and not isinstance(error, UnfitMergeError):
                # In a shared run the data at fault is unknown; a receiver has not been trained yet.
                is_attributable = order.job_id in in_training and self._command.mode != "spatial"
                permanent = permanent and is_attributable
            failures.append((order, text[:MAX_TEXT_LENGTH], permanent))
        return failures

    def _end(self) -> None:
        """Send the final report once all is written. The next task does not wait for it."""
        meeting, keeper, jobs, outcome = self._meeting, self._keeper, self._jobs, self._outcome

        def close() -> None:
            with suppress(PeerLostError):
                if meeting is not None and self.leads:
                    meeting.conclude(outcome, _CONCLUSION_S)
                elif meeting is not None:
                    meeting.conclusion(_CONCLUSION_S)
            for job in jobs:
                job.loader.close()
            error = keeper.error
            if error is not None and outcome != "stopped":
                is_alone = len(self._command.orders) == 1
                for order in self._command.orders:
                    kept = self._saves.samples.get(order.job_id, 0)
                    permanent = is_alone and cannot_succeed_elsewhere(error)
                    self._reports.failed(order, kept, described(error), permanent)
            needed_bytes = keeper.needed_bytes if error is not None and is_for_lack_of_room(error) else None
            self._around.inbox.send(Over(part=self._part.part, outcome=outcome, needed_bytes=needed_bytes))
            self._around.inbox.forget(self._part.part)

        keeper.submit_always(close)

    def _start(self) -> None:
        """Report once that the jobs have started."""
        if self.leads and not self._is_started:
            for job in self._jobs:
                self._reports.started_soon(job)
        self._is_started = True

    # Ends of a part

    def _is_halted(self) -> bool:
        return self._around.inbox.is_halted(self._part.part)

    def _raise_if_not_kept(self) -> None:
        if self._keeper.error is not None:
            raise self._keeper.error
        if self._keeper.is_replaced:
            raise StaleWriterError(f"task {self._command.task_id} was replaced")
