"""An executor that trains nothing and reports as one that does."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.commands import RunOrder, SlotAssigned
from schemas.fleet import NodeHeartbeat, NodeOnline, RunFinished, RunProgressed, RunStarted
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

    def heartbeat(self) -> NodeHeartbeat:
        """What it says when there is nothing else to say."""
        return NodeHeartbeat(cell=self.cell, node=self.node)

    def carry_out(self, command: SlotAssigned) -> Iterator[tuple[float, Event]]:
        """What it reports of a slot, and when: each run's start, and its end with the slot or its work."""
        for order in command.runs:
            yield from self._run(command, order)

    def _run(self, command: SlotAssigned, order: RunOrder) -> Iterator[tuple[float, Event]]:
        start_s, end_s = command.slot_start_s, command.slot_end_s
        base = self.samples_done.get(order.job_id, 0)
        place = {"cell": self.cell, "node": self.node, "slot": command.slot, "job_id": order.job_id}
        yield start_s, RunStarted(**place, samples_done=base)
        done = min(base + self._reach(base, order), order.work_samples)
        self.samples_done[order.job_id] = done
        if done < order.work_samples:
            yield end_s, RunProgressed(**place, samples_done=done, loss=NO_LOSS, slot_complete=True)
            return
        yield (
            start_s + (end_s - start_s) * min((done - base) / (self.pace * order.quota_samples), 1.0),
            RunFinished(
                **place,
                samples_done=done,
                loss=NO_LOSS,
                adapter_path=f"{self.cell}/{order.job_id}",
                adapter_digest=hashlib.blake2b(order.job_id.encode(), digest_size=32).hexdigest(),
            ),
        )

    def _reach(self, base: int, order: RunOrder) -> int:
        """Samples trained in a whole slot: batch by batch, to the first one at or after the quota."""
        batch = order.hyperparameters.batch_size
        if self.pace < 1:
            return int(self.pace * order.quota_samples) // batch * batch
        return -(-(base + order.quota_samples) // batch) * batch - base
