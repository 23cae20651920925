"""The simulated runner of fine-tuning tasks: it sends the same reports, but trains nothing."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from infra.simulation.event_queue import Moments
from infra.simulation.gangs import VirtualReports
from infra.simulation.merging.truth import AccuracyAfter, SyntheticTruth, Truth
from schemas.commands import Command
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.merging.commands import (
    JobOrder,
    LoaderPrewarmed,
    ProfileOrdered,
    TaskAssigned,
    TaskReleased,
)
from schemas.merging.reports import MeasuredStep, TaskEvaluated, TaskProfiled
from schemas.merging.workload import TuningWorkload

_ROUNDING = 1e-9


@dataclass
class _Progress:
    """Progress of a job, on any node."""

    accuracy: AccuracyAfter
    epochs: float = 0.0
    """Epochs of its own data, along that curve."""
    receiver: str | None = None
    """Job that learns from it in a temporal merge."""
    merged_at: float = 0.0
    """Its epochs at the start of that merge."""
    is_over: bool = False
    """Whether it has finished; a run that begins nevertheless reports that again."""


@dataclass
class _Running:
    """A task on its nodes."""

    command: TaskAssigned
    began_s: float
    jobs: list[str]
    """Jobs that are trained now."""
    since_s: float = 0.0
    epoch_s: dict[str, float] = field(default_factory=dict)
    """Seconds of an epoch of each of them."""


class VirtualTuner(VirtualReports):
    """See `VirtualReports`.

    Accuracies are measured at the ends of epochs, where jobs reach their targets, and at the last iteration.
    """

    def __init__(
        self,
        cell: str,
        pace: float,
        truth: Truth | None = None,
        release_s: float = 0.0,
        slowness_at: Callable[[float], float] = lambda _time_s: 1.0,
    ) -> None:
        """Make the runner.

        Args:
            release_s: time from the command that releases a task to the report of its end, in which its
                checkpoint is written and nothing is trained (s).
            slowness_at: returns a factor for the steps of an epoch that begins at a time (s), for a machine
                whose speed changes.
        """
        super().__init__(cell, pace)
        self._release_s = release_s
        self._slowness_at = slowness_at
        self._truth: Truth = SyntheticTruth() if truth is None else truth
        self._jobs: dict[str, _Progress] = {}
        self._finished_workloads: dict[str, TuningWorkload] = {}
        """Workloads of finished jobs whose adapters may be reused."""
        self._tasks: dict[str, _Running] = {}
        """Running tasks by id."""
        self._warm: set[str] = set()
        """Nodes with the base model loaded."""
        self._prewarmed: set[tuple[str, str]] = set()

    def reports(self, command: Command, time_s: float) -> Moments:
        match command:
            case ProfileOrdered():
                yield from self._profile(command, time_s)
            case TaskAssigned() if command.node == command.members[0].node:
                yield from self._train(command, time_s)
            case TaskReleased():
                yield from self._release(command, time_s)
            case LoaderPrewarmed():
                self._prewarmed.add((command.node, command.order.job_id))

    def is_current(self, command: TaskAssigned) -> bool:
        task = self._tasks.get(command.task_id)
        return task is not None and task.command is command

    def _profile(self, command: ProfileOrdered, time_s: float) -> Moments:
        workload = command.order.workload
        step = self._step(workload, (command.gpus,), time_s)
        start_s = time_s + self._truth.start_s(workload, command.node in self._warm, is_prewarmed=False)
        self._warm.add(command.node)
        iterations = max(min(command.iterations, int(command.limit_s / step.step_s)), 1)
        profile = self._truth.profile(workload, iterations)
        includes_epoch = workload.validation_path is not None and iterations >= workload.iterations_per_epoch
        yield (
            start_s + iterations * step.step_s + profile.other_s,
            TaskProfiled(
                **self._run_of(command, command.order),
                samples_done=0,
                losses=profile.losses,
                embedding=profile.embedding,
                accuracy=profile.accuracy,
                accuracy_after_epoch=_accuracy(self._truth.alone(workload)(1.0)) if includes_epoch else None,
                steps=(step, *profile.more_steps),
                memory_gib=profile.memory_gib,
                loader_s=profile.loader_s,
                dataset_samples=workload.dataset.samples,
            ),
        )

    def _train(self, command: TaskAssigned, time_s: float) -> Moments:
        nodes = [member.node for member in command.members]
        first, *receivers = orders = list(command.orders)
        self._fence(command)
        start_s = time_s + self._truth.start_s(
            first.workload,
            all(node in self._warm for node in nodes),
            (nodes[0], first.job_id) in self._prewarmed,
        )
        self._warm.update(nodes)
        self._prewarmed.discard((nodes[0], first.job_id))
        task = _Running(command, time_s, [])
        self._tasks[command.task_id] = task
        if command.mode == "spatial":
            for order, other in ((orders[0], orders[1]), (orders[1], orders[0])):
                self._set_curve(order, self._truth.merged("spatial", order.workload, other.workload))
            yield from self._run(task, orders, start_s)
        else:
            source = first.starts_from
            donor = None if source is None else self._finished_workloads[source.job_id]
            self._set_curve(
                first,
                self._truth.alone(first.workload)
                if donor is None
                else self._truth.merged("temporal", first.workload, donor),
            )
            yield from self._run(task, [first], start_s)
            for order in receivers:
                if self.is_current(task.command):
                    self._set_curve(order, self._truth.merged("temporal", order.workload, first.workload))
                    yield from self._run(task, [order], task.since_s)
        if self.is_current(task.command):
            del self._tasks[command.task_id]

    def _fence(self, command: TaskAssigned) -> None:
        """End tasks that still train one of these jobs on silent nodes, so that they write no more
        checkpoints."""
        job_ids = {order.job_id for order in command.orders}
        for task_id, task in list(self._tasks.items()):
            if not job_ids.isdisjoint(order.job_id for order in task.command.orders):
                del self._tasks[task_id]

    def _set_curve(self, order: JobOrder, accuracy: AccuracyAfter) -> None:
        """Set a job's curve, if it has no progress or its progress is not to be used."""
        if order.resume_iterations == 0 or order.job_id not in self._jobs:
            self._jobs[order.job_id] = _Progress(accuracy)

    def _run(self, task: _Running, orders: list[JobOrder], start_s: float) -> Moments:
        """Train jobs until each has reached its target, epoch by epoch."""
        placement = tuple(sorted((member.gpus for member in task.command.members), reverse=True))
        left = {order.job_id: order for order in orders}
        task.jobs, task.epoch_s = list(left), {}
        for order in orders:
            yield start_s, None
            self._note_donor(task, order)
            place = self._run_of(task.command, order)
            yield start_s, RunStarted(**place, samples_done=self._samples(order))
            if self._jobs[order.job_id].is_over:
                del left[order.job_id]
                yield start_s, self._finished(task, order)
                if not self.is_current(task.command):
                    return
        task.since_s = start_s
        while left:
            task.jobs = list(left)
            task.epoch_s = self._epoch_s(list(left.values()), placement, task.since_s)
            stops = {id: self._next_stop(order) for id, order in left.items()}
            next_s = {
                id: task.since_s + max(stop - self._jobs[id].epochs, 0.0) * task.epoch_s[id]
                for id, stop in stops.items()
            }
            end_s = min(next_s.values())
            yield end_s, None
            for job_id in left:
                self._jobs[job_id].epochs += (end_s - task.since_s) / task.epoch_s[job_id]
            task.since_s = end_s
            for job_id, order in [pair for pair in left.items() if next_s[pair[0]] <= end_s + _ROUNDING]:
                self._jobs[job_id].epochs = stops[job_id]
                yield from self._evaluated(task, order, placement, end_s, len(left) == 2)
                if not self.is_current(task.command):
                    return
                if self._is_done(order):
                    del left[job_id]
                    task.jobs = list(left)
                    yield end_s, self._finished(task, order)
                    if not self.is_current(task.command):
                        return

    def _note_donor(self, task: _Running, order: JobOrder) -> None:
        """Note the receiver of a job whose training begins, if there is one."""
        command, job = task.command, self._jobs[order.job_id]
        receiver = command.orders[1].job_id if command.mode == "temporal" else None
        if order is command.orders[0] and job.receiver != receiver:
            job.receiver, job.merged_at = receiver, job.epochs

    def _evaluated(
        self,
        task: _Running,
        order: JobOrder,
        placement: tuple[int, ...],
        time_s: float,
        is_joint: bool,
    ) -> Moments:
        job = self._jobs[order.job_id]
        partner = next((other for other in task.command.orders if other.job_id != order.job_id), None)
        yield (
            time_s,
            TaskEvaluated(
                **self._run_of(task.command, order),
                samples_done=self._samples(order),
                iterations=self._iterations(order),
                epochs=job.epochs,
                loss=None,
                accuracy=_accuracy(job.accuracy(job.epochs)),
                phase="own",
                partner=None if partner is None else partner.job_id,
                step=None if is_joint else self._step(order.workload, placement, time_s),
            ),
        )
        since = job.epochs - job.merged_at
        if partner is not None and job.receiver == partner.job_id and since <= task.command.watched_epochs:
            receiver_accuracy = self._truth.as_receiver(partner.workload, order.workload)
            if receiver_accuracy is None:
                return
            yield (
                time_s,
                TaskEvaluated(
                    **self._run_of(task.command, partner),
                    samples_done=0,
                    iterations=0,
                    epochs=since,
                    loss=None,
                    accuracy=_accuracy(receiver_accuracy(job.epochs)),
                    phase="donor",
                    partner=order.job_id,
                    step=None,
                ),
            )

    def _finished(self, task: _Running, order: JobOrder) -> RunFinished:
        self._jobs[order.job_id].is_over = True
        place = self._run_of(task.command, order)
        adapter: dict[str, str] = {}
        if order.workload.reusable:
            self._finished_workloads[order.job_id] = order.workload
            digest = hashlib.blake2b(order.run_id.encode(), digest_size=32).hexdigest()
            adapter = {"adapter_path": order.job_id, "adapter_digest": digest}
        return RunFinished(**place, samples_done=self._samples(order), loss=None, **adapter)

    def _release(self, command: TaskReleased, time_s: float) -> Moments:
        task = self._tasks.get(command.task_id)
        if task is None or task.command.generation != command.generation:
            return
        if command.node != task.command.members[0].node:
            return
        del self._tasks[command.task_id]
        for order in task.command.orders:
            job = self._jobs.get(order.job_id)
            if job is not None and order.job_id in task.jobs and task.epoch_s:
                held_s = max(time_s - task.since_s, 0.0)
                job.epochs += held_s / task.epoch_s[order.job_id]
            if job is not None and command.reason == "undone" and order.job_id in command.job_ids:
                job = self._jobs[order.job_id] = _Progress(self._truth.alone(order.workload))
            waits = task.command.mode == "temporal" and order is not task.command.orders[0]
            if job is None or job.is_over or (waits and order.job_id not in task.jobs):
                continue
            place = self._run_of(task.command, order)
            samples, node_s = self._samples(order), max(time_s - task.began_s, 0.0)
            yield (
                time_s + self._release_s,
                RunProgressed(**place, samples_done=samples, node_s=node_s, complete=True),
            )

    def _epoch_s(self, orders: list[JobOrder], placement: tuple[int, ...], time_s: float) -> dict[str, float]:
        """Return the seconds of an epoch of each job's own data; for two jobs in one run, a step has one of
        each."""
        steps_s = [self._step(order.workload, placement, time_s).step_s for order in orders]
        if len(orders) == 1:
            (order,), (step_s,) = orders, steps_s
            return {order.job_id: order.workload.iterations_per_epoch * step_s}
        samples = sum(order.workload.dataset.samples for order in orders)
        batch = sum(order.workload.hyperparameters.batch_size for order in orders)
        epoch_s = math.ceil(samples / batch) * sum(steps_s)
        return {order.job_id: epoch_s for order in orders}

    def _next_stop(self, order: JobOrder) -> float:
        """Return the epochs of a job at the end of its present one, or at its last iteration if that is
        sooner."""
        workload = order.workload
        last = workload.target.most_iterations / workload.iterations_per_epoch
        return min(math.floor(self._jobs[order.job_id].epochs + _ROUNDING) + 1.0, last)

    def _is_done(self, order: JobOrder) -> bool:
        job, target = self._jobs[order.job_id], order.workload.target
        met = target.accuracy is not None and job.accuracy(job.epochs) >= target.accuracy
        return met or self._iterations(order) >= target.most_iterations

    def _iterations(self, order: JobOrder) -> int:
        done = self._jobs[order.job_id].epochs * order.workload.iterations_per_epoch
        return min(int(done + _ROUNDING), order.workload.target.most_iterations)

    def _samples(self, order: JobOrder) -> int:
        return self._iterations(order) * order.workload.hyperparameters.batch_size

    def _step(self, workload: TuningWorkload, placement: tuple[int, ...], time_s: float) -> MeasuredStep:
        step, factor = self._truth.step(workload, placement), self._slowness_at(time_s) / self._pace
        times_s = {"step_s": step.step_s * factor, "exchange_s": step.exchange_s * factor}
        return step.model_copy(update=times_s)

    def _run_of(self, command: TaskAssigned | ProfileOrdered, order: JobOrder) -> dict[str, Any]:
        return self.run_fields(command.node, order.run_id, order.job_id)


def _accuracy(value: float) -> float:
    return min(max(value, 0.0), 1.0)
