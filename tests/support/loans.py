"""A cell in which inference lends servers to two zones under the auction, and events of inference."""

from typing import Any

from schemas.cells import Borrower, CellConfigured, Lending, Node, Zone
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from streams.policies.inference.kind import InferencePolicy
from tests.support.cells import EPOCH_S, SLOT_S, configuration, zone

SERVERS = tuple(f"s{number}" for number in range(1, 10))
"""Servers of zone "inf"; all but the last two are fast."""
NOTICE_S = 4 * SLOT_S


def lender(**changes: Any) -> Zone:
    """Zone "inf": nine servers, headroom for one, lent with a notice of four slots to "z" and, twice as many,
    to "y"."""
    fields: dict[str, Any] = {
        "id": "inf",
        "base_model": "served",
        "nodes": tuple(
            Node(id=server, gpu_type="fast" if server < "s8" else "slow", tariff="t") for server in SERVERS
        ),
        "policy": InferencePolicy(),
        "lending": Lending(
            headroom=0.1,
            notice_s=NOTICE_S,
            borrowers=(Borrower(zone="z"), Borrower(zone="y", weight=2.0)),
        ),
    }
    return zone(**{**fields, **changes})


def lending_cell(**changes: Any) -> CellConfigured:
    """Zone "z" of three nodes, zone "y" of one, which has only the type of fast nodes, and the lender of
    `changes`."""
    fast, _ = zone().gpu_types
    other = zone(id="y", gpu_types=(fast,), nodes=(Node(id="y1", gpu_type="fast", tariff="t"),))
    return configuration(zones=(zone(), other, lender(**changes)))


def reported(load: float, slot: float = 0, serving: tuple[str, ...] = ()) -> InferenceLoadReported:
    return InferenceLoadReported(
        cell="c", zone="inf", time_s=EPOCH_S + slot * SLOT_S, load=load, serving=serving
    )


def offered(*servers: str, id: str = "o") -> CapacityOffered:
    return CapacityOffered(cell="c", zone="inf", offer_id=id, servers=servers)


def reclaimed(servers: int, due_slot: float, id: str = "r") -> CapacityReclaimed:
    return CapacityReclaimed(
        cell="c", zone="inf", reclaim_id=id, servers=servers, due_s=EPOCH_S + due_slot * SLOT_S
    )
