"""An executor that trains nothing and reports as one that does."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.commands import RunOrder, SlotAssigned
from schemas.fleet import NodeOnline, RunFinished, RunProgressed, RunStarted
from schemas.registry import Event

NO_LOSS = 0.0
"""Nothing is trained, so no loss is measured; no summary shows it."""


@dataclass
class VirtualExecutor:
    """One node. As a zone's executors share their checkpoints, `samples_done` is that of all nodes."""

    cell: str
    node: str
    base_model: str
    pace: float
    """Its speed, as a part of the speed that the zone plans with."""
    samples_done: dict[str, int] = field(repr=False)
    """By job."""

    def online(self) -> NodeOnline:
        """What it says when it starts."""
        return NodeOnline(cell=self.cell, node=self.node, base_model=self.base_model)

    def carry_out(self, command: SlotAssigned, until_s: float = math.inf) -> Iterator[tuple[float, Event]]:
        """What it reports of a slot, and when: each run's start, and its end with the slot or its work.

        A run that does not end by `until_s`, when the node is lost, reports no end and leaves no checkpoint.
        """
        for order in command.runs:
            yield from self._run(command, order, until_s)

    def _run(self, command: SlotAssigned, order: RunOrder, until_s: float) -> Iterator[tuple[float, Event]]:
        start_s, end_s = command.slot_start_s, command.slot_end_s
        base = self.samples_done.get(order.job_id, 0)
        place = {"cell": self.cell, "node": self.node, "slot": command.slot, "job_id": order.job_id}
        yield start_s, RunStarted(**place, samples_done=base)
        done = min(base + self._reach(base, order), order.work_samples)
        finished = done == order.work_samples
        report_s = end_s
        if finished:
            report_s = start_s + (end_s - start_s) * min(
                (done - base) / (self.pace * order.quota_samples), 1.0
            )
        if report_s > until_s:
            return
        self.samples_done[order.job_id] = done
        if not finished:
            # A slow node is no slow task: what it was too slow for counts as time that the run did not have.
            node_s = (end_s - start_s) * min((done - base) / order.quota_samples, 1.0)
            yield (
                report_s,
                RunProgressed(**place, samples_done=done, loss=NO_LOSS, node_s=node_s, slot_complete=True),
            )
            return
        yield (
            report_s,
            RunFinished(
                **place,
                samples_done=done,
                loss=NO_LOSS,
                adapter_path=f"{self.cell}/{order.user}/{order.job_id}",
                adapter_digest=hashlib.blake2b(order.job_id.encode(), digest_size=32).hexdigest(),
            ),
        )

    def _reach(self, base: int, order: RunOrder) -> int:
        """Samples trained in a whole slot: batch by batch, to the first one at or after the quota."""
        batch = order.hyperparameters.batch_size
        if self.pace < 1:
            return int(self.pace * order.quota_samples) // batch * batch
        return -(-(base + order.quota_samples) // batch) * batch - base
