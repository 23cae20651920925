"""A task whose ranks each have a stage of the model: one pipeline, or several that share every batch."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta

import torch

from executors.gang.meeting import Meeting
from executors.gang.messages import Membership
from executors.lora.lora_task import AdapterState
from executors.lora.resident import new_state
from executors.lora.shared_base import SharedBase
from executors.tuner.faults import fault_in, fault_of
from executors.tuner.opening import OpenTask, TrainingJob, task_state
from executors.tuner.pipeline.group import Channel, StageGroup
from executors.tuner.pipeline.partition import Direction
from executors.tuner.pipeline.pipeline_rank import PipelineRank
from executors.tuner.pipeline.pipeline_task import PipelineTask, load_task
from executors.tuner.pipeline.preparation import PipelinePlan, PreparedTask, prepare_task
from executors.tuner.pipeline.structure import partition_by_parameters, structure_of
from executors.tuner.pipeline.succession import FindSuccessor, StoredTask, Successions, switch
from executors.tuner.reports import measured_step
from executors.tuner.settings import TunerSettings
from executors.tuner.task_rank import LastStep, Succession, agree_on_positions
from executors.tuner.training import TrainingStep, raise_if_diverged
from schemas.merging.reports import MeasuredStep
from schemas.merging.settings import STAGES_PER_PIPELINE

_MICRO_BATCHES = 2 * STAGES_PER_PIPELINE
"""Micro-batches per step, if it has as many sequences: a pipeline then idles for 3 of 11 parts of it."""


class Stages:
    """See `TaskRank`. Each rank has the whole base model, and computes the layers of its stage."""

    can_reunite = False  # each has only a piece of the adapter

    def __init__(
        self,
        opened: OpenTask,
        base: SharedBase,
        membership: Membership,
        nodes: int,
        settings: TunerSettings,
        device: torch.device,
        find_successor: "FindSuccessor[Stages]" = lambda: None,
    ) -> None:
        """Check the partition of the model.

        Args:
            find_successor: returns the task that is to take over the ranks, once the node has it.

        Raises:
            JobError: the model cannot be cut.
        """
        self.jobs = opened.jobs
        (self._job,) = opened.jobs
        self._state = opened.state
        self._membership = membership
        self._nodes = nodes
        self._settings = settings
        self._device = device
        self._find_successor = find_successor
        with fault_of(self._job.job_id), fault_in("pipeline"):
            self._structure = structure_of(base)
            self._partition = partition_by_parameters(self._structure, STAGES_PER_PIPELINE)
        self._size = -(-self._share_size // _MICRO_BATCHES)
        if device.type != "cuda":
            self._size = min(self._size, settings.micro_batch_size)
        self._pipeline: PipelineRank | None = None
        self._task: PipelineTask | None = None
        self._successions: Successions[Stages] | None = None
        self._before: Future[StoredTask] | None = None
        """End of the task from which the ranks were taken over."""

    @property
    def is_joined(self) -> bool:
        """See `TaskRank`, also for all methods below."""
        return self._pipeline is not None

    @property
    def succession(self) -> Succession:
        return "none" if self._successions is None else self._successions.stage

    def join(self, meeting: Meeting | None) -> None:
        assert meeting is not None, "a stage is not alone"
        group = StageGroup(
            meeting.store(timedelta(seconds=self._settings.join_timeout_s)),
            self._membership.rank,
            self._membership.world,
            STAGES_PER_PIPELINE,
            self._device,
            self._settings.join_timeout_s,
            self._settings.peer_timeout_s,
        )
        self._pipeline = PipelineRank(self._structure, self._partition, group, self._device)

    def agree(self) -> None:
        pipeline = self._connected
        prepared = self.prepare(pipeline, "forward", pipeline.group.control)
        self._adopt(pipeline, load_task(pipeline, prepared))

    def prepare(self, pipeline: PipelineRank, direction: Direction, channel: Channel) -> PreparedTask:
        """Prepare the task before it is loaded; all ranks do so at the same time.

        Raises:
            JobError: their data differ.
            StageLostError: a rank is lost.
        """
        agree_on_positions(lambda numbers: _gathered(channel, numbers), self.jobs)
        job, state = self._job, None
        if pipeline.rank == 0:
            own = self._state or new_state(job.task, job.layout, job.loader.digest)
            state = task_state(job, own, job.position)
        plan = PipelinePlan(
            job.task,
            self._micro_batches,
            direction,
            frozen_layers=job.base.frozen_layers,
            checkpoints_activations=job.order.workload.hyperparameters.gradient_checkpointing,
        )
        return prepare_task(pipeline, plan, job.loader.training, state, channel)

    def leave(self) -> None:
        pipeline = self._pipeline
        if pipeline is None:
            return
        if self._successions is not None:
            self._successions.settle()
        if self._before is not None:
            with suppress(Exception):  # the error is reported by the thread that stores the task
                self._before.result()
        pipeline.close()
        self._pipeline = self._task = self._successions = None

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        return _gathered(self._connected.group.control, numbers)

    def begin(self, active: Sequence[TrainingJob]) -> None:
        """Do nothing: there is one phase."""

    @property
    def micro_batch_size(self) -> int:
        return self._size

    @micro_batch_size.setter
    def micro_batch_size(self, size: int) -> None:
        self._size = size
        self._trained.divide(self._micro_batches)

    def upcoming(self) -> list[int]:
        return [self._job.batch_size]

    def step(self, signals: Sequence[float]) -> TrainingStep:
        successions = self._successions
        assert successions is not None, "the ranks are connected"
        started_s = time.monotonic()
        result = self._trained.step([*signals, *successions.signals()])
        step_s = time.monotonic() - started_s
        number = self._job.iterations
        raise_if_diverged("loss", result.loss, number)
        raise_if_diverged("gradient norm", result.gradient_norm, number)
        successions.receive(result.signals[len(signals) :])
        return TrainingStep((result.loss,), result.signals[: len(signals)], step_s, result.exchange_s)

    def rehearse(self) -> None:
        self._trained.accumulate()

    def count_right(self, job: TrainingJob, count: int) -> tuple[int, int]:
        evaluation = self._trained.evaluate([job.validation[index] for index in range(count)])
        return evaluation.right, evaluation.tokens

    def measured(self, steps: Sequence[TrainingStep]) -> MeasuredStep:
        return measured_step(
            steps, self._size, self._share_size, self._membership.world, self._nodes, self._job.base
        )

    @property
    def state_bytes(self) -> int:
        return 4 * self._trained.part.adapter.gradient.nbytes

    def state(self) -> AdapterState | None:
        return self._trained.state()

    def last_state(self) -> Callable[[], AdapterState] | None:
        state = self._trained.state()
        return None if state is None else lambda: state

    def remains(self) -> Callable[[], AdapterState] | None:
        return None

    def leave_to_successor(self) -> LastStep:
        """See `TaskRank`, and `switch`: the next task runs in the other direction."""
        assert self._successions is not None, "the ranks are connected"
        pipeline, old = self._connected, self._trained
        successor, prepared = self._successions.prepared()
        new, stored = switch(old, prepared)
        self._pipeline = self._task = self._successions = None
        successor._adopt(pipeline, new)
        successor._before = stored

        def end() -> StoredTask:
            try:
                return stored.result()
            except (RuntimeError, ValueError) as error:
                raise OSError(f"the last step is lost: {error}") from error

        def wait() -> None:
            end()

        def state() -> AdapterState:
            found = end().state
            assert found is not None, "it is for the leader"
            return found

        return LastStep(old.computed_s, wait, state)

    @property
    def _share_size(self) -> int:
        """Return the most sequences of a step that a pipeline has."""
        return -(-self._job.batch_size * STAGES_PER_PIPELINE // self._membership.world)

    @property
    def _micro_batches(self) -> int:
        return -(-self._share_size // self._size)

    @property
    def _connected(self) -> PipelineRank:
        assert self._pipeline is not None, "the ranks are connected"
        return self._pipeline

    @property
    def _trained(self) -> PipelineTask:
        assert self._task is not None, "the ranks have agreed"
        return self._task

    def _adopt(self, pipeline: PipelineRank, task: PipelineTask) -> None:
        self._pipeline, self._task = pipeline, task
        self._successions = Successions(pipeline, task.plan.direction, self._find_successor)


def _gathered(channel: Channel, numbers: Sequence[int]) -> list[list[int]]:
    return [[int(number) for number in row] for row in channel.exchange(numbers)]
