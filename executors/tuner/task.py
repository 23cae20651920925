"""A task on one of its workers: its jobs in their mode, from the first step to the last word.

Modes (Ymir, section 6.1): `normal`, one job; `temporal`, the first job to its end, then the second from the
weights that it has left, with a fresh optimizer; `spatial`, both into one adapter, with annealed sampling.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import torch

from executors.lora.trained_adapter import TrainedAdapter
from executors.node.checkpoints import StaleWriterError
from executors.node.room import is_for_want_of_room
from executors.tuner.faults import DivergedError, FieldError, JobError, cannot_succeed_elsewhere, described
from executors.tuner.keeper import TaskKeeper
from executors.tuner.memory import choose_micro_batch
from executors.tuner.messages import Outcome, Over, Switched, TaskPart, Verdict
from executors.tuner.opening import Job, OpenTask, adapter_for, fresh_from, trained_first
from executors.tuner.reports import TaskReports, measured_step
from executors.tuner.sampling import annealing_exponent, draw_sources, shares
from executors.tuner.saving import TaskSaves
from executors.tuner.surroundings import Surroundings
from executors.tuner.training import Sample, Step, Trainer
from executors.workers.folder import JobFolder
from executors.workers.group import ProcessGroup
from executors.workers.meeting import Meeting, PeerLostError
from executors.workers.shares import share
from schemas.base import MAX_TEXT_LENGTH
from schemas.merging.commands import JobOrder
from schemas.merging.reports import MeasuredStep

_POLL_S = 0.005
_NOTE_WAIT_S = 1.0
_CONCLUSION_S = 30.0
_REUNIONS = 2
"""So often the workers of a task come together again when one of them was lost and is started again."""
_EVALUATIONS_PER_EPOCH = 4
_DIGEST_DIGITS = 15
_LEAST_S = 1e-6
"""What a step takes at least: the clock may not have moved."""

_log = logging.getLogger(__name__)


class HaltedError(Exception):
    """The part is to end, and has not come together with the others."""


class TaskFailedError(RuntimeError):
    """Another worker of the task has said why it cannot go on."""

    def __init__(self, error: str, permanent: bool) -> None:
        super().__init__(error)
        self.is_permanent = permanent


@dataclass
class Spell:
    """What was seen of a job's steps since its evaluation before."""

    losses: list[float] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


class TaskRun:
    """One worker's part of a task. Its leader reports and writes for all."""

    def __init__(
        self, part: TaskPart, surroundings: Surroundings, opened: Callable[[], OpenTask], folder: JobFolder
    ) -> None:
        """Nothing is done before `run`.

        Args:
            opened: waits for what the task needs.
            folder: where its workers meet.
        """
        self._part = part
        self._command = part.command
        self._around = surroundings
        self._settings = surroundings.settings
        self._opened = opened
        self._folder = folder
        self._keeper = TaskKeeper(surroundings.keeper)
        self._jobs: list[Job] = []
        self._adapter: TrainedAdapter | None = None
        self._trainer: Trainer | None = None
        self._group: ProcessGroup | None = None
        self._meeting: Meeting | None = None
        self._spells: dict[str, Spell] = {}
        self._last_counts: dict[str, int] = {}
        self._reports = TaskReports(part, surroundings, self._keeper)
        self._saves = TaskSaves(self._command, surroundings, self._keeper, self._reports)
        self._node_s = 0.0
        self._evaluating_s = 0.0
        self._training_s = 0.0
        self._is_started = False
        self._outcome: Outcome = "stopped"

    @property
    def leads(self) -> bool:
        """Whether this worker reports and writes for all."""
        return self._part.membership.rank == 0

    def run(self) -> None:
        """Train until all jobs are over or the part is halted. The last word is the keeper's: `Over`."""
        try:
            self._run()
        except HaltedError:
            if self._around.inbox.verdict(self._part.part) == "keep":
                self._save_at_last(self._in_training())
        except Exception as error:
            self._fail(error)
        finally:
            self._end()

    def _run(self) -> None:
        if self._around.inbox.verdict(self._part.part) is not None:
            return
        opened = self._opened()
        self._jobs, self._adapter = opened.jobs, opened.adapter
        self._saves.begin(self._jobs)
        reunions = 0
        while True:
            try:
                with self._together():
                    self._agree()
                    self._start()
                    self._train()
                if all(job.is_over for job in self._jobs):
                    self._outcome = "finished"
                return
            except PeerLostError:
                reunions += 1
                if reunions > _REUNIONS:
                    raise

    # Coming together

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Have a process group with all workers of the task for the length of the block; a worker alone needs
        none."""
        membership = self._part.membership
        if membership.world == 1:
            yield
            return
        deadline_s = time.monotonic() + self._settings.join_timeout_s
        meeting: Meeting | None = None
        while True:
            self._raise_if_halted()
            try:
                if meeting is None:
                    meeting = Meeting.attend(self._folder, membership, self._settings.worker_host)
                if meeting is not None:
                    meeting.announce()
                    meeting.enter()
                    if meeting.all_entered:
                        break
            except PeerLostError:
                meeting = None  # it was the place of a leader that is gone
            self._raise_if_told()
            if time.monotonic() > deadline_s:
                count, wait_s = membership.world, self._settings.join_timeout_s
                raise TaskFailedError(f"not all {count} workers of the task have come in {wait_s:g} s", False)
            time.sleep(_POLL_S)
        self._meeting = meeting
        self._group = ProcessGroup.form(meeting, self._around.device, self._settings.peer_timeout_s)
        try:
            yield
        finally:
            self._group.close()
            self._group = None

    def _agree(self) -> None:
        """Have all workers hold what the leader holds."""
        group = self._group
        if group is None:
            return
        digests = [int(job.loader.digest[:_DIGEST_DIGITS], 16) for job in self._jobs]
        numbers = [
            number
            for job in self._jobs
            for number in (job.iterations, job.drawn, int(job.is_over), job.merged_at)
        ]
        told = group.gather([*digests, *numbers])
        for index, job in enumerate(self._jobs):
            if len({each[index] for each in told}) > 1:
                raise JobError(
                    job.job_id, FieldError("dataset.path", f"{job.task.dataset} differs between the nodes")
                )
        positions = told[0][len(digests) :]
        for index, job in enumerate(self._jobs):
            job.iterations, job.drawn, is_over, job.merged_at = positions[4 * index : 4 * index + 4]
            job.is_over = bool(is_over)
        assert self._adapter is not None, "it was opened"
        if self._adapter.task.job_id != self._task_in_training().job_id:
            self._adapter = adapter_for(self._command.mode, self._jobs, None, self._around.device)
        group.spread(self._adapter.tensors, 0)

    def _task_in_training(self) -> Job:
        """Whose hyperparameters count."""
        return self._jobs[0] if self._command.mode == "spatial" else trained_first(self._jobs)

    def _in_training(self) -> list[Job]:
        """The jobs of the present phase."""
        left = [job for job in self._jobs if not job.is_over]
        return left if self._command.mode == "spatial" else left[:1]

    # Training

    def _train(self) -> None:
        """Go through what is left of the task's phases."""
        while not all(job.is_over for job in self._jobs):
            active = self._in_training()
            watched = next((job for job in self._jobs if not job.is_over and job not in active), None)
            self._trainer = self._new_trainer(active)
            if not self._train_phase(active, watched):
                return
            if watched is not None:
                self._hand_over(watched)

    def _train_phase(self, active: list[Job], watched: Job | None) -> bool:
        """Train jobs until one of them is over; False if the part is halted before."""
        if self._finish_those_done(active, {}):
            return True
        while True:
            self._raise_if_not_kept()
            step = self._step(active)
            halted = self._verdict_of(step)
            if halted is None or halted == "keep":
                accuracies = self._evaluate(active, watched, wanted=bool(step.signals[2]))
                if self._finish_those_done(active, accuracies):
                    return True
            if halted is not None:
                if halted == "keep":
                    self._save_at_last(active)
                return False
            if self.leads and time.monotonic() - self._saves.saved_s >= self._settings.checkpoint_s:
                self._saves.save(active, self._present_adapter, self._node_s)

    def _step(self, active: Sequence[Job]) -> Step:
        trainer, around = self._present_trainer, self._around
        membership = self._part.membership
        places, counts = self._batch(active)
        mine = [places[place] for place in share(len(places), membership.rank, membership.world)]
        own = [
            Sample(place, source, active[source].loader.training[record]) for place, source, record in mine
        ]
        verdict = around.inbox.verdict(self._part.part)
        signals = (verdict == "keep", verdict == "drop", self.leads and self._may_evaluate(active, counts))
        number = active[0].iterations
        began_s = time.monotonic()
        step = trainer.step(own, number, len(active), [float(signal) for signal in signals], self._add_up)
        for source, job in enumerate(active):
            job.iterations += 1
            job.drawn += counts[source]
            self._last_counts[job.job_id] = counts[source]
            spell = self._spells.setdefault(job.job_id, Spell())
            spell.steps.append(step)
            loss = step.losses[source]
            if loss is not None:
                job.loss = loss
                spell.losses.append(loss)
        if around.stepped_s is not None and not self._node_s:
            gap_s = began_s - around.stepped_s
            around.inbox.tell(Switched(part=self._part.part, gap_s=gap_s, step_s=step.step_s))
        around.stepped_s = time.monotonic()
        self._node_s += step.step_s
        self._training_s += step.step_s
        return step

    def _batch(self, active: Sequence[Job]) -> tuple[list[tuple[int, int, int]], list[int]]:
        """The next global batch as (place, source, record index), and how many of it are of each source."""
        count = sum(job.batch_size for job in active)
        sizes = [len(job.loader.training) for job in active]
        number = active[0].iterations
        steps = max(job.order.workload.target.most_iterations for job in active)
        epochs = math.ceil(steps * count / sum(sizes))
        exponent = annealing_exponent(number * count // sum(sizes), epochs)
        sources = draw_sources(self._jobs[0].task.seed, number, count, shares(sizes, exponent))
        counts = [sources.count(source) for source in range(len(active))]
        streams = [
            iter(job.loader.stream.take(job.drawn, counts[source])) for source, job in enumerate(active)
        ]
        return [(place, source, next(streams[source])) for place, source in enumerate(sources)], counts

    def _add_up(self, vector: torch.Tensor) -> None:
        if self._group is not None:
            self._group.add_up(vector)

    @staticmethod
    def _verdict_of(step: Step) -> Verdict | None:
        keep, drop, _ = step.signals
        if drop:
            return "drop"
        return "keep" if keep else None

    def _new_trainer(self, active: Sequence[Job]) -> Trainer:
        assert self._adapter is not None, "it was opened"
        count = sum(job.batch_size for job in active)
        own = max(1, len(share(count, 0, self._part.membership.world)))
        trainer = Trainer(
            active[0].base,
            self._adapter,
            self._around.device,
            own,
            checkpoints_activations=active[0].order.workload.hyperparameters.gradient_checkpointing,
        )
        longest = max(
            (job.loader.training[record] for job in active for record in job.loader.stream.take(0, own)),
            key=lambda sequence: len(sequence.token_ids),
        )
        sample = Sample(0, 0, longest)
        trainer.micro_batch_size = choose_micro_batch(trainer, sample, own, self._settings)
        return trainer

    @property
    def _present_adapter(self) -> TrainedAdapter:
        assert self._adapter is not None, "it was opened"
        return self._adapter

    @property
    def _present_trainer(self) -> Trainer:
        assert self._trainer is not None, "a phase has begun"
        return self._trainer

    # Evaluation

    def _may_evaluate(self, active: Sequence[Job], counts: Sequence[int]) -> bool:
        """Whether the step to come ends at a fraction of an epoch that is worth an evaluation."""
        if self._evaluating_s > self._settings.evaluation_share * self._training_s:
            return False
        return any(
            _crosses(job.drawn, counts[source], len(job.loader.training) / _EVALUATIONS_PER_EPOCH)
            for source, job in enumerate(active)
        )

    def _evaluate(self, active: Sequence[Job], watched: Job | None, *, wanted: bool) -> dict[str, float]:
        """Measure the accuracy of the jobs, if it is time to; by job.

        It is at the end of an epoch of any of them, and when one is over."""
        due = wanted or any(self._is_due(job) for job in active)
        if not due:
            return {}
        started_s = time.monotonic()
        accuracies = {}
        for job in active:
            accuracy = self._accuracy(job)
            if accuracy is not None:
                accuracies[job.job_id] = accuracy
                self._tell_evaluation(job, accuracy, "own", job.epochs)
        if watched is not None and active[0].merged_epochs <= self._command.watched_epochs:
            accuracy = self._accuracy(watched)
            if accuracy is not None:
                self._tell_evaluation(watched, accuracy, "donor", active[0].merged_epochs)
        self._evaluating_s += time.monotonic() - started_s
        return accuracies

    def _is_due(self, job: Job) -> bool:
        """Whether the last step was the job's last, or has used up an epoch of its data."""
        last = self._last_counts.get(job.job_id, 0)
        return job.iterations >= job.order.workload.target.most_iterations or _crosses(
            job.drawn - last, last, len(job.loader.training)
        )

    def _accuracy(self, job: Job) -> float | None:
        validation = job.loader.validation
        if validation is None:
            return None
        count = min(len(validation), self._settings.evaluation_samples)
        membership = self._part.membership
        mine = share(count, membership.rank, membership.world)
        sums = torch.tensor(
            self._present_trainer.count_right([validation[index] for index in mine]), dtype=torch.float64
        ).to(self._around.device)
        self._add_up(sums)
        right, total = sums.tolist()
        return float(right / total)

    # Ends

    def _finish_those_done(self, active: Sequence[Job], accuracies: dict[str, float]) -> bool:
        """Publish the jobs that have met their targets; whether there are any."""
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
        if self.leads and left:
            # Those that go on must not fall behind those that are over.
            self._saves.save(left, self._present_adapter, self._node_s)
        for job in done:
            job.is_over = True
            if self.leads:
                self._saves.finish(job, self._present_adapter, is_trained_on=bool(left))
        return True

    def _hand_over(self, receiver: Job) -> None:
        """Have the receiver of a temporal merge start from what its donor has left."""
        donor = self._present_adapter.state()
        self._adapter = adapter_for("temporal", self._jobs, fresh_from(donor), self._around.device)
        assert self._adapter.task is receiver.task, "the donor is over"

    def _save_at_last(self, jobs: Sequence[Job]) -> None:
        if self.leads and self._adapter is not None:
            self._saves.save_at_last(jobs, self._adapter)

    def _fail(self, error: Exception) -> None:
        """Say why the task cannot go on, and keep what it has learned where it may go on elsewhere."""
        self._outcome = "failed"
        if isinstance(error, StaleWriterError):
            _log.info("task replaced task=%s: %s", self._command.task_id, error)
            return
        if isinstance(error, PeerLostError):
            error = self._why_peer_was_lost(error)
        if self._part.membership.world > 1 and not isinstance(error, TaskFailedError | PeerLostError):
            permanent = len(self._command.orders) == 1 and cannot_succeed_elsewhere(error)
            with suppress(OSError):
                self._folder.write_failure(self._command.generation, described(error), permanent)
        self._meeting = None  # those that are left do not wait for each other
        if not self.leads:
            return
        failures = self._failures(error)
        if self._trainer is not None and not isinstance(error, DivergedError | OSError):
            self._save_at_last(self._in_training())

        def tell() -> None:
            for order, text, permanent in failures:
                self._reports.failed(order, self._saves.samples.get(order.job_id, 0), text, permanent)

        self._keeper.at_last(tell)

    def _failures(self, error: Exception) -> list[tuple[JobOrder, str, bool]]:
        """What is said of each job that is not over."""
        over = {job.job_id for job in self._jobs if job.is_over}
        in_training = {job.job_id for job in self._in_training()} if self._jobs else set()
        failures = []
        for order in self._command.orders:
            if order.job_id in over:
                continue
            text, permanent = described(error), cannot_succeed_elsewhere(error)
            if isinstance(error, TaskFailedError):
                permanent = error.is_permanent
            elif isinstance(error, JobError) and error.job_id != order.job_id:
                text, permanent = f"{error.job_id}, with which it is merged: {text}", False
            elif isinstance(error, DivergedError):
                # In a shared run nobody knows whose data it was; a receiver has not been trained yet.
                permanent = order.job_id in in_training and self._command.mode != "spatial"
            failures.append((order, text[:MAX_TEXT_LENGTH], permanent))
        return failures

    def _why_peer_was_lost(self, error: PeerLostError) -> Exception:
        deadline_s = time.monotonic() + _NOTE_WAIT_S
        while time.monotonic() < deadline_s:
            note = self._folder.read_failure(self._command.generation)
            if note is not None:
                return TaskFailedError(*note)
            time.sleep(_POLL_S)
        return error

    def _end(self) -> None:
        """Have the last word said once all is written. The next task does not wait for it."""
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
                for order in self._command.orders:
                    kept = self._saves.samples.get(order.job_id, 0)
                    self._reports.failed(order, kept, described(error), permanent=False)
            needed_bytes = keeper.needed_bytes if error is not None and is_for_want_of_room(error) else None
            self._around.inbox.tell(Over(part=self._part.part, outcome=outcome, needed_bytes=needed_bytes))
            self._around.inbox.forget(self._part.part)

        keeper.at_last(close)

    # Reports

    def _start(self) -> None:
        """Say once that the jobs have started."""
        if self.leads and not self._is_started:
            for job in self._jobs:
                self._reports.started_soon(job)
        self._is_started = True

    def _tell_evaluation(
        self, job: Job, accuracy: float, phase: Literal["own", "donor"], epochs: float
    ) -> None:
        spell = self._spells.pop(job.job_id, Spell())
        if self.leads:
            partner = next((each.job_id for each in self._jobs if each is not job), None)
            step = self._measured(spell.steps) if spell.steps else None
            self._reports.evaluated_soon(job, partner, accuracy, phase, epochs, spell.losses, step)

    def _measured(self, steps: Sequence[Step]) -> MeasuredStep:
        trainer, world = self._present_trainer, self._part.membership.world
        count = sum(job.batch_size for job in self._in_training())
        return measured_step(
            steps, trainer.micro_batch_size, len(share(count, 0, world)), world, len(self._command.members)
        )

    # What ends it

    def _raise_if_halted(self) -> None:
        if self._around.inbox.verdict(self._part.part) is not None:
            raise HaltedError

    def _raise_if_told(self) -> None:
        note = self._folder.read_failure(self._command.generation)
        if note is not None:
            raise TaskFailedError(*note)

    def _raise_if_not_kept(self) -> None:
        if self._keeper.error is not None:
            raise self._keeper.error
        if self._keeper.is_replaced:
            raise StaleWriterError(f"task {self._command.task_id} was replaced")


def _crosses(drawn: int, count: int, size: float) -> bool:
    """Whether `count` further samples reach or pass a multiple of `size`."""
    return int((drawn + count) / size) > int(drawn / size)
