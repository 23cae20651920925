"""Executors that train their assigned samples, and no faster: for tests of a cell alone."""

from collections.abc import Iterable, Iterator

from schemas.base import Event, Outcome
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.lora_commands import RunOrder, SlotAssigned


class QuotaRuns:
    """The runs of one slot. Each of them trains its quota in just the whole slot."""

    def __init__(self, cell: str, slot_s: float, orders: tuple[tuple[str, RunOrder], ...] = ()) -> None:
        self._cell = cell
        self._slot_s = slot_s
        self._orders = orders

    def next(self, outcomes: Iterable[Outcome]) -> "QuotaRuns":
        """Return the runs of the slot that begins, from the decisions made then."""
        orders = tuple(
            (command.node, order)
            for command in outcomes
            if isinstance(command, SlotAssigned)
            for order in command.runs
        )
        return QuotaRuns(self._cell, self._slot_s, orders)

    def without(self, *nodes: str) -> "QuotaRuns":
        """Return the runs that continue when nodes are lost."""
        left = tuple((node, order) for node, order in self._orders if node not in nodes)
        return QuotaRuns(self._cell, self._slot_s, left)

    def reports(self) -> Iterator[Event]:
        """All that they report by the end of the slot."""
        for node, order in self._orders:
            run = {"cell": self._cell, "node": node, "run_id": order.run_id, "job_id": order.job_id}
            done = min(order.resume_samples + order.quota_samples, order.work_samples)
            yield RunStarted(**run, samples_done=order.resume_samples, dataset_samples=order.dataset.samples)
            if done < order.work_samples:
                yield RunProgressed(**run, samples_done=done, loss=1.0, node_s=self._slot_s, complete=True)
            else:
                path = f"{self._cell}/{order.job_id}"
                yield RunFinished(
                    **run, samples_done=done, loss=0.1, adapter_path=path, adapter_digest="0" * 64
                )
