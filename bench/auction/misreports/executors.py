"""Executors that behave as real ones do: what a run needs decides what happens, not what its bid said."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from bench.auction.misreports.worlds import CELL, SLOT_S, Task
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from schemas.lora_commands import MEMORY_TOLERANCE_GIB, RunOrder, SlotAssigned


class TrueExecutors:
    """The nodes of a zone, with one store of checkpoints.

    A run trains batch by batch to the first one at or after its quota, or as far as the task's true speed
    leads within the slot; it ends with the slot, since others may have had the node before it.
    """

    def __init__(self, tasks: Mapping[str, Task], type_of: Mapping[str, str]) -> None:
        """Executors of nodes of these GPU types.

        Args:
            tasks: what is true of each job.
        """
        self._tasks = tasks
        self._type_of = type_of
        self._done: dict[str, int] = {}
        self._ends: list[RunReport] = []

    def fork(self, tasks: Mapping[str, Task]) -> "TrueExecutors":
        """The same runs, to go on from on their own."""
        other = TrueExecutors(tasks, self._type_of)
        other._done, other._ends = dict(self._done), list(self._ends)
        return other

    def begin(self, command: SlotAssigned) -> Iterator[RunStarted]:
        """Begin the runs of a node, and have their ends at hand for `end`."""
        for order in command.runs:
            task, place = self._tasks[order.job_id], _place(command, order)
            base = self._done.get(order.job_id, 0)
            self._ends.append(self._end(command, order, base))
            yield RunStarted(**place, samples_done=base, dataset_samples=task.dataset_samples)

    def end(self) -> Iterator[RunReport]:
        """The ends of all runs that were begun."""
        ends, self._ends = self._ends, []
        yield from ends

    def _end(self, command: SlotAssigned, order: RunOrder, base: int) -> RunReport:
        task, place = self._tasks[order.job_id], _place(command, order)
        limit_gib = order.memory_limit_gib
        if limit_gib is not None and task.memory_gib > limit_gib + MEMORY_TOLERANCE_GIB:
            return RunFailed(
                **place, samples_done=base, error="memory", permanent=True, memory_gib=task.memory_gib
            )
        speed = task.speed_samples_per_s[self._type_of[command.node]]
        within = math.floor(speed * SLOT_S)
        batch = order.hyperparameters.batch_size
        goal = -(-(base + order.quota_samples) // batch) * batch - base
        reached = goal if within >= order.quota_samples else within
        done = min(base + reached, order.work_samples)
        self._done[order.job_id] = done
        if done == order.work_samples:
            return RunFinished(
                **place,
                samples_done=done,
                loss=0.0,
                adapter_path=f"{CELL}/{order.job_id}",
                adapter_digest="0" * 64,
            )
        memory_gib = None if limit_gib is None else task.memory_gib
        node_s = min((done - base) / speed, SLOT_S)
        return RunProgressed(
            **place, samples_done=done, loss=0.0, node_s=node_s, memory_gib=memory_gib, complete=True
        )


def _place(command: SlotAssigned, order: RunOrder) -> dict[str, Any]:
    return {"cell": CELL, "node": command.node, "run_id": order.run_id, "job_id": order.job_id}
