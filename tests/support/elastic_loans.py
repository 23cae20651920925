"""An elastic zone that borrows servers, with nodes that carry out commands at once."""

from collections.abc import Iterator

from schemas.base import Event, Outcome
from schemas.cells import Borrower, CellConfigured, GpuType, Lending, Node, Zone
from schemas.decisions import NodeStatusChanged
from schemas.fleet import NodeOnline
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from streams.policies.inference.kind import InferencePolicy
from tests.support.elastic import (
    CELL,
    GPUS,
    INTERVAL_S,
    ZONE,
    ElasticBench,
    ObedientNodes,
    elastic_cell,
    tick,
)

LENDER = "inf"
NOTICE_S = 2 * INTERVAL_S


def borrowing_cell(servers: int = 1, lent: int = 3, **policy: object) -> CellConfigured:
    """Servers s0, s1, ... of the elastic zone, and i0, i1, ... of one that may lend all but one of them, as
    fast as the others."""
    configured = elastic_cell(servers, **policy)
    lender = Zone(
        id=LENDER,
        base_model="served",
        base_model_memory_gib=0.5,
        gpu_types=(GpuType(name="V100", samples_per_s=400.0, memory_gib=128.0, gpus=GPUS),),
        nodes=tuple(Node(id=f"i{number}", gpu_type="V100", tariff="flat") for number in range(lent)),
        policy=InferencePolicy(),
        lending=Lending(headroom=0.0, notice_s=NOTICE_S, borrowers=(Borrower(zone=ZONE),)),
    )
    return configured.model_copy(update={"zones": (*configured.zones, lender)})


class LivelyBench(ElasticBench):
    """Sends each report of a node about its commands at once."""

    def __init__(self, configured: CellConfigured) -> None:
        super().__init__()
        self.nodes = ObedientNodes()
        self.exchange(configured, tick(0.0))

    def exchange(self, *events: Event) -> list[Outcome]:
        """Send events, and the nodes' reports to the decisions; return all outcomes."""
        outcomes: list[Outcome] = []
        for event in events:
            outcomes += self._exchange(event)
        return outcomes

    def rounds(self, first: int, last: int) -> list[Outcome]:
        """The ticks of these rounds of allocation."""
        return self.exchange(*(tick(number * INTERVAL_S) for number in range(first, last + 1)))

    def end(self, job_id: str) -> list[Outcome]:
        """A job's work is done."""
        self.nodes.end(job_id)
        return list(self._reports())

    def _exchange(self, event: Event) -> Iterator[Outcome]:
        outcomes = self.send(event)
        self.nodes.obey(outcomes)
        yield from outcomes
        for outcome in outcomes:
            if isinstance(outcome, NodeStatusChanged) and outcome.reason == "awaited":
                yield from self._exchange(
                    NodeOnline(cell=CELL, node=outcome.node, base_model="any", runners=("elastic",))
                )
        yield from self._reports()

    def _reports(self) -> Iterator[Outcome]:
        while self.nodes.due:
            yield from self._exchange(self.nodes.next_report(min(self.nodes.due)))


def loaded(load: float, time_s: float = 0.0) -> InferenceLoadReported:
    return InferenceLoadReported(cell=CELL, zone=LENDER, time_s=time_s, load=load)


def offered(*servers: str, id: str = "o1") -> CapacityOffered:
    return CapacityOffered(cell=CELL, zone=LENDER, offer_id=id, servers=servers)


def reclaimed(servers: int, due_s: float, id: str = "r1") -> CapacityReclaimed:
    return CapacityReclaimed(cell=CELL, zone=LENDER, reclaim_id=id, servers=servers, due_s=due_s)
