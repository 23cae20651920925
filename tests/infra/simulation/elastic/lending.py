"""A cell of elastic jobs and of servers for inference, and the events sent to it."""

from typing import Any

from infra.workloads.timed import TimedEvent
from schemas.base import Event
from schemas.cells import Borrower, CellConfigured, GpuType, Lending, Node, Zone
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from streams.policies.inference.kind import InferencePolicy
from tests.support.elastic import CELL, GPUS, ZONE, elastic_cell

LENDER = "i"
NOTICE_S = 300.0


def lending_cell(servers: int, lent_servers: int, headroom: float = 0.0, **policy: Any) -> CellConfigured:
    """Zone "z" of training servers s0, s1, ..., and zone "i" of slower servers t0, t1, ..., which lends."""
    cell = elastic_cell(servers, **policy)
    lender = Zone(
        id=LENDER,
        base_model="any",
        base_model_memory_gib=0.5,
        gpu_types=(GpuType(name="T4", samples_per_s=4.0 / 3, memory_gib=64.0, gpus=GPUS),),
        nodes=tuple(Node(id=f"t{number}", gpu_type="T4", tariff="flat") for number in range(lent_servers)),
        policy=InferencePolicy(),
        lending=Lending(headroom=headroom, notice_s=NOTICE_S, borrowers=(Borrower(zone=ZONE),)),
    )
    return cell.model_copy(update={"zones": (*cell.zones, lender)})


def at(time_s: float, event: Event) -> TimedEvent[Event]:
    return TimedEvent(time_s, event)


def load(time_s: float, load: float) -> TimedEvent[Event]:
    return at(time_s, InferenceLoadReported(cell=CELL, zone=LENDER, time_s=time_s, load=load))


def offer(time_s: float, *servers: str) -> TimedEvent[Event]:
    return at(time_s, CapacityOffered(cell=CELL, zone=LENDER, offer_id=f"o{time_s:.0f}", servers=servers))


def reclaim(time_s: float, servers: int, due_s: float) -> TimedEvent[Event]:
    return at(
        time_s,
        CapacityReclaimed(cell=CELL, zone=LENDER, reclaim_id=f"r{time_s:.0f}", servers=servers, due_s=due_s),
    )
