"""The pipeline switch: from one job to the next without an idle pipeline (Ymir, section 6.2, Figure 9).

Job A runs from rank 0 to the last one, so its last backward ends on the last rank first and on rank 0 last.
Job B runs the other way: its first stage is on the last rank, which can begin B's first forward while the
ranks before it still run A's last backward.

All ranks must begin to prepare B, and leave A, at the same step. So each rank sends its progress with B along
with every step of A, and acts on the sums, which are the same on all ranks. On each rank, as soon as its own
last backward of A is done:

1. a thread loads B's part: adapter and moments;
2. another thread finishes A: it waits for the gradient norms of all ranks, clips, does the last AdamW step,
   and stores A's part in host memory, from where rank 0 gathers it;
3. B's first forward begins after 1, and on ranks behind the first when its activations arrive.

The paper stores A before it loads B. Here A cannot be stored yet: the last update clips by the norm of the
whole gradient, which is complete only after rank 0's backward. A's part and B's have memory of their own and
are small, so neither waits for the other.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from executors.lora.lora_task import TaskState
from executors.tuner.opening import BackgroundOpening
from executors.tuner.pipeline.group import Channel
from executors.tuner.pipeline.partition import Direction
from executors.tuner.pipeline.pipeline_rank import PipelineRank
from executors.tuner.pipeline.pipeline_task import PipelineTask, StepResult, load_task
from executors.tuner.pipeline.preparation import PreparedTask
from executors.tuner.task_rank import Succession


class Prepares(Protocol):
    """A task that can take over a pipeline."""

    def prepare(self, pipeline: PipelineRank, direction: Direction, channel: Channel) -> PreparedTask:
        """Prepare the task before it is loaded."""


T = TypeVar("T", bound=Prepares)

FindSuccessor = Callable[[], BackgroundOpening[T] | None]
"""Returns the opening of the next task; None while this rank has none."""


class Successions(Generic[T]):
    """Progress of one rank with the next task of its pipeline.

    Attributes:
        stage: progress common to all ranks, as of the last step.
    """

    def __init__(self, pipeline: PipelineRank, direction: Direction, find: "FindSuccessor[T]") -> None:
        """Start without a next task; the present task runs in `direction`."""
        self.stage: Succession = "none"
        self._pipeline = pipeline
        self._direction: Direction = "reverse" if direction == "forward" else "forward"
        self._find = find
        self._preparing: Future[PreparedTask] | None = None

    def signals(self) -> tuple[float, float, float, float]:
        """Signals that this rank sends with a step: whether the next task is known, will not begin, is open,
        is prepared."""
        opening, preparing = self._find(), self._preparing
        if opening is None:
            return 0.0, 0.0, 0.0, 0.0
        is_prepared, has_failed = False, False
        if preparing is not None and preparing.done():
            is_prepared, has_failed = True, preparing.exception() is not None
        in_vain = opening.is_in_vain or has_failed
        return 1.0, float(in_vain), float(opening.is_open), float(is_prepared)

    def receive(self, sums: Sequence[float]) -> None:
        """Receive the sums of all ranks' signals of a step. Ranks may receive the next task at different
        steps."""
        known, in_vain, opened, prepared = sums
        world = self._pipeline.world
        if not known or in_vain:
            self.stage = "none"
            return
        self.stage = "ready" if prepared == world else "coming"
        if opened == world and self._preparing is None:
            successor, pipeline = self._opened(), self._pipeline
            self._preparing = pipeline.loads.submit(
                lambda: successor.prepare(pipeline, self._direction, pipeline.group.background)
            )

    def prepared(self) -> tuple[T, PreparedTask]:
        """Return the next task, if it is `ready`."""
        assert self._preparing is not None, "it is ready"
        return self._opened(), self._preparing.result()

    def settle(self) -> None:
        """Wait for the end of all preparations of the next task."""
        if self._preparing is not None:
            with suppress(Exception):  # the next task raises its own error
                self._preparing.result()

    def _opened(self) -> T:
        opening = self._find()
        assert opening is not None, "it was opened"
        return opening.result()


@dataclass(frozen=True)
class StoredTask:
    """Result of a job after a switch.

    Attributes:
        step: its last step.
        state: its whole state on rank 0; None on other ranks.
    """

    step: StepResult
    state: TaskState | None


def switch(old: PipelineTask, prepared: PreparedTask) -> tuple[PipelineTask, "Future[StoredTask]"]:
    """Do the last step of one job and switch to the next; all ranks do so at the same time.

    Temporal transfer has no overlap: B starts from A's last adapter, and needs A's whole state. Run A's last
    `step`, gather its `state`, and prepare and load B from it.

    Args:
        old: A, which may not be used afterwards.
        prepared: B, from `prepare_task`.

    Returns:
        B, ready to `step`, and A's end, which must be awaited before the pipeline is closed or switched
        again. It raises the errors of `PipelineTask.update` and `PipelineTask.state`.

    Raises:
        ValueError: A has used all its samples.
    """
    pipeline = old.pipeline
    old.accumulate()
    loading = pipeline.loads.submit(lambda: load_task(pipeline, prepared))
    stored = pipeline.stores.submit(lambda: _finish(old, pipeline.group.background))
    new = loading.result()
    new.adopt()
    return new, stored


def _finish(task: PipelineTask, channel: Channel) -> StoredTask:
    try:
        result = task.update(channel)
        return StoredTask(result, task.store(channel))
    finally:
        task.close()
