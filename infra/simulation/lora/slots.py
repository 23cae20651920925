"""The simulated LoRA runner of a cell's nodes: it sends the same reports, but trains nothing."""

import hashlib
import heapq
import math
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from schemas.base import Event
from schemas.commands import Command
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.lora_commands import RunOrder, SlotAssigned

NO_LOSS = 0.0
"""Loss in reports, as nothing is trained; no summary shows it."""


class VirtualSlots:
    """Simulated runner, as in `VirtualRunner`. Nodes share checkpoints, so a job resumes on any node."""

    def __init__(self, cell: str, pace: float) -> None:
        self._cell = cell
        self._pace = pace
        self._samples_done: dict[str, int] = {}
        """Samples done by job."""

    def carry_out(
        self, command: Command, time_s: float, until_s: float = math.inf
    ) -> Iterator[tuple[float, Event]]:
        """Yield each run's start, and its end with the slot or its work.

        A run that does not end by `until_s`, when the node is lost, reports no end and leaves no checkpoint.
        """
        if isinstance(command, SlotAssigned):
            runs = [self._run(command, order, until_s) for order in command.runs]
            for report_s, report in heapq.merge(*runs, key=itemgetter(0)):
                yield max(report_s, time_s), report

    def _run(self, command: SlotAssigned, order: RunOrder, until_s: float) -> Iterator[tuple[float, Event]]:
        start_s, end_s = command.slot_start_s, command.slot_end_s
        base = self._samples_done.get(order.job_id, 0)
        place: dict[str, Any] = {
            "cell": self._cell,
            "node": command.node,
            "run_id": order.run_id,
            "job_id": order.job_id,
        }
        yield start_s, RunStarted(**place, samples_done=base)
        done = min(base + self._reach(base, order), order.work_samples)
        finished = done == order.work_samples
        report_s = end_s
        if finished:
            report_s = start_s + (end_s - start_s) * min(
                (done - base) / (self._pace * order.quota_samples), 1.0
            )
        if report_s > until_s:
            return
        self._samples_done[order.job_id] = done
        if not finished:
            # A slow node must not lower a task's measured speed: missing samples count as time off the node.
            node_s = (end_s - start_s) * min((done - base) / order.quota_samples, 1.0)
            yield (
                report_s,
                RunProgressed(**place, samples_done=done, loss=NO_LOSS, node_s=node_s, complete=True),
            )
            return
        yield (
            report_s,
            RunFinished(
                **place,
                samples_done=done,
                loss=NO_LOSS,
                adapter_path=f"{self._cell}/{order.user}/{order.job_id}",
                adapter_digest=hashlib.blake2b(order.job_id.encode(), digest_size=32).hexdigest(),
            ),
        )

    def _reach(self, base: int, order: RunOrder) -> int:
        """Return the samples of a whole slot: whole batches, to the first one at or after the quota."""
        batch = order.hyperparameters.batch_size
        if self._pace < 1:
            return int(self._pace * order.quota_samples) // batch * batch
        return -(-(base + order.quota_samples) // batch) * batch - base
