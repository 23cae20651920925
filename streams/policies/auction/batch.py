"""A batch of bids: its state while it waits, its problem for a solver, and the placements of its plans."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from schemas.auction.batches import BatchProblem, OfferedBid, OfferedNodes, SolvedPlan
from schemas.auction.settings import TitanPolicy
from schemas.cells import Zone
from schemas.facts import Facts
from schemas.solves import SolveRequested
from solvers.auction.market.demand import Demand
from solvers.auction.market.fleet import GIB_QUANTUM, Calendar, Fleet, NodeClass
from solvers.auction.market.market import Market, Placement
from solvers.auction.market.window import VendorOption
from solvers.auction.mechanism.mechanism import Counted, Request
from streams.cell.jobs import Job
from streams.policies.auction.admission import Bid
from streams.policies.auction.planned_job import ZONE_BYTES


@dataclass(frozen=True)
class WaitingBid:
    """A bid that is not decided yet."""

    bid: Bid
    request: Request
    """Request at the bid's arrival, with the drawn vendor as its only option."""
    counted: Counted
    """Its part of the dual bound by now."""

    @property
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot, in the cell and in the zone."""
        return self.bid.job.state_bytes + ZONE_BYTES


def packed(bids: Mapping[str, WaitingBid]) -> list[list[Any]]:
    """Return bids in types that msgpack writes. Amounts may exceed 64 bits, so they are text."""
    return [
        [
            job_id,
            [waiting.request.first_slot, waiting.request.last_slot],
            [option.vendor, str(option.price_micros), option.delay_slots],
            str(waiting.counted.gain_micros),
        ]
        for job_id, waiting in bids.items()
        for option in waiting.request.options
    ]


def unpacked(
    state: list[list[Any]], jobs: Mapping[str, Job], zone: Zone, fleet: Fleet, calendar: Calendar
) -> dict[str, WaitingBid]:
    """Return the bids that `packed` was given, by job, of the same zone."""
    bids = {}
    for job_id, (first_slot, last_slot), (vendor, price_micros, delay_slots), gain_micros in state:
        bid = Bid.of(jobs[job_id])
        bids[job_id] = WaitingBid(
            bid,
            Request(
                id=job_id,
                demand=demand_of(bid, zone, fleet, calendar),
                options=[VendorOption(vendor, int(price_micros), delay_slots)],
                first_slot=first_slot,
                last_slot=last_slot,
            ),
            Counted(int(gain_micros)),
        )
    return bids


def demand_of(bid: Bid, zone: Zone, fleet: Fleet, calendar: Calendar) -> Demand:
    """Return the demand of a bid's task in the present zone.

    Raises:
        UnplannableError: if no plan can be searched for it.
    """
    return Demand.of(bid.workload, bid.workload.work_samples, zone, fleet, calendar.slot_s)


def slots_for(request: Request, market: Market) -> int:
    """Return the number of slots of the market's window for a request; 0 or less if it is too late."""
    first_slot = max(request.first_slot, market.first_slot)
    return min(request.last_slot + 1, market.first_slot + market.horizon_slots) - first_slot


def batch_request(
    zone: str, request_id: str, policy: TitanPolicy, market: Market, bids: Collection[WaitingBid]
) -> SolveRequested:
    """Return a request to schedule bids: their tasks, and the room from the next slot to the last
    deadline."""
    last_slot = market.first_slot + market.horizon_slots - 1
    offered = tuple(_offered_bid(bid, market.first_slot, last_slot) for bid in bids)
    slots = max(bid.last_slot for bid in offered) + 1 - market.first_slot
    return SolveRequested.of(
        zone=zone,
        request_id=request_id,
        time_limit_s=policy.time_limit_s,
        problem=BatchProblem(
            relative_gap=policy.relative_gap,
            first_slot=market.first_slot,
            classes=tuple(
                _offered_nodes(market, index, node_class, slots)
                for index, node_class in enumerate(market.fleet.classes)
            ),
            bids=offered,
        ),
        job_ids=[bid.job_id for bid in offered],
    )


def placement_of_plan(plan: SolvedPlan, request: Request, market: Market) -> Placement | Facts:
    """Return the placement of a task by a solver's plan, with or without room; or the fault of the plan.

    The vendor begins when the plan is applied, so training begins after its delay from now.
    """
    slots = tuple(slot for slot, _ in plan.node_slots)
    ready_slot = market.first_slot + request.options[0].delay_slots
    last_slot = min(request.last_slot, market.first_slot + market.horizon_slots - 1)
    if not all(early < late for early, late in pairwise(slots)):
        return {"case": "slots_do_not_ascend"}
    if slots[0] < ready_slot or slots[-1] > last_slot:
        return {
            "case": "slots_out_of_range",
            "plan_first_slot": slots[0],
            "plan_last_slot": slots[-1],
            "ready_slot": ready_slot,
            "last_slot": last_slot,
        }
    fleet = market.fleet
    if unknown := sorted({node for _, node in plan.node_slots} - fleet.row_of.keys()):
        return {"case": "unknown_nodes", "nodes": tuple(unknown)}
    rows = tuple(fleet.row_of[node] for _, node in plan.node_slots)
    samples = [int(request.demand.samples[fleet.class_of_row[row]]) for row in rows]
    if min(samples) == 0:
        return {"case": "node_does_not_fit"}
    if sum(samples) < request.demand.work_samples:
        return {
            "case": "too_few_samples",
            "samples": sum(samples),
            "work_samples": request.demand.work_samples,
        }
    return Placement(slots, rows)


def _offered_bid(waiting: WaitingBid, first_slot: int, horizon_end: int) -> OfferedBid:
    request = waiting.request
    (option,) = request.options
    return OfferedBid(
        job_id=request.id,
        bid_micros=waiting.bid.bid_micros,
        work_samples=request.demand.work_samples,
        slot_samples=tuple(request.demand.samples.tolist()),
        memory_quanta=int(request.demand.memory_gib * GIB_QUANTUM),
        vendor=option.vendor,
        vendor_micros=option.price_micros,
        ready_slot=first_slot + option.delay_slots,
        last_slot=min(request.last_slot, horizon_end),
    )


def _offered_nodes(market: Market, index: int, node_class: NodeClass, slots: int) -> OfferedNodes:
    rows = slice(node_class.start, node_class.stop)
    is_open = np.arange(slots)[:, np.newaxis] < market.open_slots(0, slots)[rows]
    samples = np.where(is_open, market.free_samples[:slots, rows], 0.0).astype(np.int64)
    quanta = np.where(is_open, market.free_gib[:slots, rows] * GIB_QUANTUM, 0.0).astype(np.int64)
    return OfferedNodes(
        nodes=market.fleet.nodes[rows],
        capacity_samples=int(node_class.capacity_samples),
        capacity_quanta=int(node_class.capacity_gib * GIB_QUANTUM),
        full_cost_micros=tuple(market.full_costs[:slots, index].tolist()),
        free_samples=tuple(map(tuple, samples.tolist())),
        free_quanta=tuple(map(tuple, quanta.tolist())),
    )
