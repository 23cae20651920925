"""A server that is back from a loan counts as its owner's own at once, under policies that run gangs."""

from typing import Any

import pytest

from schemas.base import Event, Outcome
from schemas.cells import Borrower, CellConfigured, Lending, Node, Zone
from schemas.decisions import JobAdmitted, JobRejected, NodeMoved
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from streams.policies.inference.kind import InferencePolicy
from tests.support import elastic, moe
from tests.support.twins import TwinBench

BORROWER = "other"
NOTICE_S = 60.0


def lending_to_another(configured: CellConfigured) -> CellConfigured:
    """The cell of one zone, which may lend all its nodes but one to an inference zone."""
    (zone,) = configured.zones
    terms = Lending(headroom=0.0, notice_s=NOTICE_S, borrowers=(Borrower(zone=BORROWER),))
    borrower = Zone(
        id=BORROWER,
        base_model="served",
        base_model_memory_gib=0.5,
        gpu_types=zone.gpu_types,
        nodes=(Node(id="b0", gpu_type=zone.nodes[0].gpu_type, tariff="flat"),),
        policy=InferencePolicy(),
    )
    return configured.model_copy(update={"zones": (zone.model_copy(update={"lending": terms}), borrower)})


CASES = [
    pytest.param(
        elastic.ElasticBench, elastic.elastic_cell(3), elastic.submit("j", workers=(12, 12)), id="elastic"
    ),
    pytest.param(moe.MoeBench, moe.moe_cell(3), moe.submit("j", moe.training(ranks=6)), id="experts"),
]
"""A zone of three nodes, and a job that needs all of their GPUs."""


def lent_out(bench: TwinBench, configured: CellConfigured) -> list[str]:
    """Two of the zone's nodes are on loan."""
    (zone,) = configured.zones
    lent = [node.id for node in zone.nodes[:2]]
    place: dict[str, Any] = {"cell": configured.cell, "zone": zone.id}
    offer: list[Event] = [
        InferenceLoadReported(**place, time_s=0.0, load=0.0),
        CapacityOffered(**place, offer_id="o", servers=tuple(lent)),
    ]
    moved = bench.send(lending_to_another(configured), elastic.tick(0.0), *offer)
    assert [one.node for one in moved if isinstance(one, NodeMoved)] == lent
    return lent


def reclaim_servers(bench: TwinBench, configured: CellConfigured, servers: int) -> list[Outcome]:
    reclaim = CapacityReclaimed(
        cell=configured.cell, zone=configured.zones[0].id, reclaim_id="r", servers=servers, due_s=NOTICE_S
    )
    return bench.send(reclaim)


@pytest.mark.parametrize(("bench", "configured", "job"), CASES)
def test_returned_servers_count_as_own(bench: Any, configured: CellConfigured, job: Event) -> None:
    bench = bench()
    lent_out(bench, configured)
    reclaim_servers(bench, configured, servers=2)
    (admitted,) = bench.send(job)
    assert isinstance(admitted, JobAdmitted)


@pytest.mark.parametrize(("bench", "configured", "job"), CASES)
def test_servers_still_on_loan_do_not_count(bench: Any, configured: CellConfigured, job: Event) -> None:
    bench = bench()
    lent_out(bench, configured)
    reclaim_servers(bench, configured, servers=1)
    (rejected,) = bench.send(job)
    assert isinstance(rejected, JobRejected)
    assert rejected.reason == "larger_than_the_zone"
