"""The pipeline switch: from one job to the next without waiting (Ymir, section 6.2, Figure 9).

Job A runs from rank 0 to the last one, so its last backward ends on the last rank first and on rank 0 last.
Job B runs the other way: its first stage is on the last rank, which can begin B's first forward while the
ranks before it still run A's last backward.

On each rank, as soon as its own last backward of A is done:

1. a thread loads B's part: adapter, moments, and the base's parameters of B's stage where they are not held;
2. another thread finishes A: it waits for the gradient norms of all ranks, clips, takes the last AdamW step,
   and stores A's part in host memory, from where rank 0 gathers it;
3. B's first forward begins when 1 is done, on ranks behind the first when its activations come.

The paper stores A before it loads B. Here A cannot be stored yet: the last update clips by the norm of the
whole gradient, which is known only when rank 0 has ended its backward. A's part and B's have memory of their
own, both are small, and so neither waits for the other.
"""

from concurrent.futures import Future
from dataclasses import dataclass

from executors.lora.task import TaskState
from executors.tuner.pipeline.group import Channel
from executors.tuner.pipeline.preparation import PreparedTask
from executors.tuner.pipeline.task import PipelineTask, StepResult, load_task


@dataclass(frozen=True)
class StoredTask:
    """What a job came to that was switched from.

    Attributes:
        step: its last step.
        state: its whole state on rank 0; None on other ranks.
    """

    step: StepResult
    state: TaskState | None


def switch(
    old: PipelineTask, prepared: PreparedTask, *, overlap: bool = True
) -> tuple[PipelineTask, "Future[StoredTask]"]:
    """Take a last step of one job and go over to the next; all ranks do so at the same time.

    For temporal transfer, where B starts from A's last adapter, there is nothing to overlap: A's state is
    needed whole. Take A's last `step`, gather its `state`, and prepare and load B from it.

    Args:
        old: A. It is not to be used any more.
        prepared: B, by `prepare_task`.
        overlap: if not, A is updated, stored and gathered before B is loaded, to compare with. The stored
            state and all later weights are the same, bit by bit.

    Returns:
        B, ready to `step`, and A's end, which is to be waited for before the pipeline is closed or switched
        once more. It fails with what `PipelineTask.update` and `PipelineTask.state` raise.

    Raises:
        StageLostError: another rank is gone.
        ValueError: A has used all its samples.
    """
    pipeline = old.pipeline
    old.accumulate()
    if not overlap:
        stored: Future[StoredTask] = Future()
        stored.set_result(_finish(old, pipeline.group.control))
        return load_task(pipeline, prepared), stored
    loading = pipeline.loads.submit(lambda: load_task(pipeline, prepared))
    stored = pipeline.stores.submit(lambda: _finish(old, pipeline.group.beside))
    new = loading.result()
    new.adopt()
    return new, stored


def _finish(task: PipelineTask, channel: Channel) -> StoredTask:
    try:
        result = task.update(channel)
        return StoredTask(result, task.store(channel))
    finally:
        task.close()
