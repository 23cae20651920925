"""A rank of a pipeline: its place among the others, its connections, and its work during the training."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from executors.tuner.pipeline.group import StageGroup
from executors.tuner.pipeline.partition import Direction, stage_of
from executors.tuner.pipeline.structure import Structure

Result = TypeVar("Result")


class Sideline:
    """Runs actions one after another while the calling thread trains.

    On a CPU, torch's copies and products in the thread run parallel to those of the training, since they
    release the interpreter. On CUDA, the copies have a stream of their own, so that the device's copy engines
    work while its processors compute.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        # A new thread has torch's default number of CPU threads, and sums may depend on that number.
        self._executor = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix=name,
            initializer=torch.set_num_threads,
            initargs=(torch.get_num_threads(),),
        )
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, action: Callable[[], Result]) -> "Future[Result]":
        """Run an action after all device work that the calling thread has submitted so far. The result is
        complete only after all device work of the action."""
        stream = self._stream
        if stream is None:
            return self._executor.submit(action)
        before = torch.cuda.current_stream(stream.device).record_event()

        def run() -> Result:
            with torch.cuda.stream(stream):
                stream.wait_event(before)
                result = action()
            stream.synchronize()
            return result

        return self._executor.submit(run)

    def close(self) -> None:
        """Drop actions that have not begun. An action that has begun ends by itself, at the latest when its
        peers are gone."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class PipelineRank:
    """One rank of a task whose ranks each compute one stage of the model, which every rank has as a whole.

    A switch to another task keeps it: only adapter, moments and data are loaded. Close it when the rank
    leaves or anything fails: the others detect that at once.

    The ranks may form several pipelines of `stages` neighbours each, which share a task's batches.

    Attributes:
        rank: rank of this process, from 0.
        world: number of ranks.
        stages: stages of each pipeline.
        position: place of this rank in its pipeline, from 0.
        replica: number of its pipeline, from 0.
        device: device of this rank.
        structure: the entire model.
        partition: the layers of each stage.
        group: the connections.
        loads: loads tasks to the device during the training.
        stores: finishes tasks and copies them to host memory during the training of the next.
    """

    def __init__(
        self,
        structure: Structure,
        partition: Sequence[range],
        group: StageGroup,
        device: torch.device,
    ) -> None:
        self.rank = group.rank
        self.world = group.world
        self.stages = group.stages
        self.replica, self.position = divmod(group.rank, group.stages)
        self.device = device
        self.structure = structure
        self.partition = tuple(partition)
        self.group = group
        self.loads = Sideline("load", device)
        self.stores = Sideline("store", device)

    @property
    def replicas(self) -> int:
        return self.world // self.stages

    def stage(self, direction: Direction) -> int:
        """Return the stage that this rank runs for tasks of a direction."""
        return stage_of(self.position, self.stages, direction)

    def rank_of(self, stage: int, direction: Direction) -> int:
        """Return the rank that runs a stage in this rank's pipeline."""
        return self.replica * self.stages + stage_of(stage, self.stages, direction)

    def close(self) -> None:
        """Leave the pipeline. Tasks that are being finished are dropped."""
        self.loads.close()
        self.stores.close()
        self.group.close()
