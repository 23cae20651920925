"""Problem P in hindsight: the instance of a ledger's events, with the state at the arrival of each bid."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from schemas.auction.bids import Task, VendorLeft, VendorQuoted, bid_micros_of
from schemas.base import Event
from schemas.cells import CellConfigured, Zone
from schemas.clock import ClockTicked
from schemas.jobs import JobSubmitted
from solvers.auction.market.demand import Demand, UnplannableError
from solvers.auction.market.fleet import Calendar, Fleet
from solvers.auction.market.window import vendor_options
from solvers.auction.offline.instance import Instance, OfferedTask


def instances_of(events: Iterable[Event], withdrawn: Collection[str] = ()) -> dict[str, Instance]:
    """Return the instance of each zone of a cell: its bids, with windows and vendors' offers at their
    arrival.

    Nodes are always empty and up, as for the certificate. Left out are bids that the cell does not decide:
    bids before its configuration, for an unknown zone, with an id decided before, or without any plan to
    search. Bids whose deadline is before their first possible slot are left out as well.

    Args:
        events: events of one cell, each once, in the order of its ledger; other kinds are ignored.
        withdrawn: ids of the jobs withdrawn with the consent of the cell (`job.withdrawn`). Not every request
            is granted, and other jobs stay in the instance.
    """
    hindsight: _Hindsight | None = None
    for event in events:
        if hindsight is not None:
            hindsight.apply(event)
        elif isinstance(event, CellConfigured):
            hindsight = _Hindsight(event)
    if hindsight is None:
        return {}
    return {zone: hindsight.instance(zone, withdrawn) for zone in hindsight.zones}


@dataclass
class _HindsightZone:
    zone: Zone
    fleet: Fleet
    tasks: list[OfferedTask] = field(default_factory=list)


class _Hindsight:
    """State of the zones of a cell at the arrival of a bid."""

    def __init__(self, cell: CellConfigured) -> None:
        self._cell = cell
        self._calendar = Calendar(cell.epoch_s, cell.slot_s)
        self.zones = {zone.id: _HindsightZone(zone, Fleet.of(cell, zone)) for zone in cell.zones}
        self._quotes: dict[str, VendorQuoted] = {}
        self._first_slot = 0
        self._decided: set[str] = set()

    def apply(self, event: Event) -> None:
        """Apply the next event."""
        match event:
            case ClockTicked():
                # Time never goes back: an earlier tick changes nothing.
                self._first_slot = max(self._first_slot, self._calendar.slot_at(event.time_s) + 1)
            case VendorQuoted() if event.vendor in self._cell.vendors:
                self._quotes[event.vendor] = event
            case VendorLeft():
                self._quotes.pop(event.vendor, None)
            case JobSubmitted() if event.zone in self.zones and event.job_id not in self._decided:
                self._decided.add(event.job_id)
                self._offer(event, self.zones[event.zone])

    def instance(self, zone_id: str, withdrawn: Collection[str]) -> Instance:
        """Return the instance of a zone, from the first slot of any of its tasks to the last."""
        zone = self.zones[zone_id]
        tasks = [task for task in zone.tasks if task.job_id not in withdrawn]
        first = min((task.first_slot for task in tasks), default=0)
        slots = range(first, max((task.last_slot for task in tasks), default=-1) + 1)
        classes = zone.fleet.classes
        full_costs = [c.full_cost_micros(np.arange(slots.start, slots.stop), self._calendar) for c in classes]
        samples = [classes[index].capacity_samples for index in zone.fleet.class_of_row]
        gib = [classes[index].capacity_gib for index in zone.fleet.class_of_row]
        return Instance(
            fleet=zone.fleet,
            first_slot=first,
            full_costs=np.stack(full_costs, axis=1),
            free_samples=np.tile(np.array(samples), (len(slots), 1)),
            free_gib=np.tile(np.array(gib), (len(slots), 1)),
            tasks=tasks,
        )

    def _offer(self, bid: JobSubmitted, zone: _HindsightZone) -> None:
        task, slot_s = Task.of(bid), self._calendar.slot_s
        try:
            demand = Demand.of(task.workload, task.workload.work_samples, zone.zone, zone.fleet, slot_s)
            options = vendor_options(self._quotes, task.workload, slot_s)
        except UnplannableError:
            return
        last_slot = min(
            self._calendar.last_slot_by(task.deadline_s), self._first_slot + zone.zone.horizon_slots - 1
        )
        if last_slot >= self._first_slot:
            zone.tasks.append(
                OfferedTask(
                    bid.job_id, bid_micros_of(bid), demand, tuple(options), self._first_slot, last_slot
                )
            )
