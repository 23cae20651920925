"""The pipeline switch: from one job to the next without an idle pipeline (Ymir, section 6.2, Figure 9).

Job A runs from rank 0 to the last one, so its last backward ends on the last rank first and on rank 0 last.
Job B runs the other way: its first stage is on the last rank, which can begin B's first forward while the
ranks before it still run A's last backward.

On each rank, as soon as its own last backward of A is done:

1. a thread loads B's part: adapter, moments, and the base's parameters of B's stage if they are not held;
2. another thread finishes A: it waits for the gradient norms of all ranks, clips, does the last AdamW step,
   and stores A's part in host memory, from where rank 0 gathers it;
3. B's first forward begins after 1, and on ranks behind the first when its activations arrive.

The paper stores A before it loads B. Here A cannot be stored yet: the last update clips by the norm of the
whole gradient, which is complete only after rank 0's backward. A's part and B's have memory of their own and
are small, so neither waits for the other.
"""

from concurrent.futures import Future
from dataclasses import dataclass

from executors.lora.task import TaskState
from executors.tuner.pipeline.group import Channel
from executors.tuner.pipeline.preparation import PreparedTask
from executors.tuner.pipeline.task import PipelineTask, StepResult, load_task


@dataclass(frozen=True)
class StoredTask:
    """Result of a job after a switch.

    Attributes:
        step: its last step.
        state: its whole state on rank 0; None on other ranks.
    """

    step: StepResult
    state: TaskState | None


def switch(
    old: PipelineTask, prepared: PreparedTask, *, overlap: bool = True
) -> tuple[PipelineTask, "Future[StoredTask]"]:
    """Do the last step of one job and switch to the next; all ranks do so at the same time.

    Temporal transfer has no overlap: B starts from A's last adapter, and needs A's whole state. Run A's last
    `step`, gather its `state`, and prepare and load B from it.

    Args:
        old: A, which may not be used afterwards.
        prepared: B, from `prepare_task`.
        overlap: if false, A is updated, stored and gathered before B is loaded, for comparison. The stored
            state and all later weights are the same, bit by bit.

    Returns:
        B, ready to `step`, and A's end, which must be awaited before the pipeline is closed or switched
        again. It raises the errors of `PipelineTask.update` and `PipelineTask.state`.

    Raises:
        StageLostError: another rank is lost.
        ValueError: A has used all its samples.
    """
    pipeline = old.pipeline
    old.accumulate()
    if not overlap:
        stored: Future[StoredTask] = Future()
        stored.set_result(_finish(old, pipeline.group.control))
        return load_task(pipeline, prepared), stored
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
