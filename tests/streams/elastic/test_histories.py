"""Random histories of an elastic zone: whatever happens, what must hold holds, and every job ends."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base import Event
from schemas.changes import NodeCordoned, NodeRegistered, NodeRetired, NodeUncordoned, ZoneConfigured
from schemas.elastic.workload import ElasticTerms
from schemas.fleet import NodeOnline, NodeSilent
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.jobs import JobQuoteRequested
from tests.streams.cell.loan_specification import LoanSpecification
from tests.support.elastic import (
    CELL,
    INTERVAL_S,
    LENDER,
    NOTICE_S,
    ZONE,
    ElasticBench,
    ObedientNodes,
    elastic_cell,
    failed,
    submit,
    tick,
    withdraw,
    workload,
)
from tests.support.examples import examples

STEPS = 60
USERS = ("ann", "ben", "cid")
LENDABLE = 3


class History:
    """One history, and what it takes to go on with it."""

    def __init__(self, rng: random.Random, servers: int, **policy: object) -> None:
        self.rng = rng
        self.bench = ElasticBench()
        self.nodes = ObedientNodes()
        self.specification = LoanSpecification()
        self.down: set[str] = set()
        self.time_s = 0.0
        self.jobs = 0
        policy["patience_s"] = rng.choice([60.0, 600.0, 21_600.0])
        self.send(elastic_cell(servers, LENDABLE, rng.choice(["T4", "V100"]), **policy), tick(0.0))
        self.send(InferenceLoadReported(cell=CELL, zone=LENDER, time_s=0.0, load=0.0))

    @property
    def live(self) -> list[str]:
        return list(self.bench.cell.jobs.live)

    @property
    def servers(self) -> list[str]:
        layout = self.bench.cell.nodes.layout
        return [node for node, zone in layout.zone_of.items() if zone == ZONE]

    def send(self, *events: Event) -> None:
        for event in events:
            before_s = self.bench.cell.time_s or 0.0
            outcomes = self.bench.send(event)
            self.specification.check(before_s, self.bench.cell.time_s or 0.0, NOTICE_S, outcomes)
            self.nodes.obey(outcomes)

    def tick(self, step_s: float) -> None:
        self.time_s += step_s
        self.send(tick(self.time_s))

    def step(self) -> None:
        rng = self.rng
        match rng.choice(["job", "job", "tick", "tick", *3 * ["report"], "end", "trouble", "loan", "ask"]):
            case "job":
                self.jobs += 1
                fewest = rng.choice([1, 1, 2, 3, 6])
                workers = (fewest, rng.choice([fewest, fewest, 2 * fewest, fewest + 5]))
                self.send(
                    submit(
                        f"j{self.jobs}",
                        rng.choice([30, 300, 3_000]),
                        workers,
                        user=rng.choice(USERS),
                        gpus_per_worker=rng.choice([1, 1, 1, 2, 4]),
                        keeps_checkpoints=rng.random() < 0.5,
                        fungible=rng.random() < 0.5,
                    )
                )
            case "tick":
                self.tick(rng.choice([10.0, INTERVAL_S, 2 * INTERVAL_S]))
            case "report" if self.nodes.due:
                self.send(self.nodes.next_report(rng.choice(sorted(self.nodes.due))))
            case "end" if self.nodes.leading:
                self.nodes.end(rng.choice(sorted(self.nodes.leading)))
            case "trouble":
                self.trouble()
            case "loan":
                self.loan()
            case "ask":
                self.ask()

    def ask(self) -> None:
        """A quote, or a change of the zone that is granted or refused."""
        rng, number = self.rng, len(self.bench.ledger)
        if rng.random() < 0.7:
            fewest = rng.choice([1, 2, 6])
            asked = workload(rng.choice([30, 3_000]), (fewest, fewest), gpus_per_worker=rng.choice([1, 2, 4]))
            self.send(
                JobQuoteRequested(
                    cell=CELL,
                    quote_id=f"q{number}",
                    user="ann",
                    zone=ZONE,
                    workload=asked,
                    terms=ElasticTerms(),
                )
            )
            return
        zone = next(zone for zone in self.bench.cell.configuration.zones if zone.id == ZONE)
        gpus = rng.choice([1, 2, 4, 4, 4])
        types = tuple(each.model_copy(update={"gpus": gpus}) for each in zone.gpu_types)
        self.send(ZoneConfigured(cell=CELL, zone=zone.model_copy(update={"gpu_types": types})))

    def loan(self) -> None:
        """Send an event of the inference side; the cell decides whether it is consistent."""
        rng = self.rng
        number = len(self.bench.ledger)
        of_lender = {"cell": CELL, "zone": LENDER}
        match rng.choice(["load", "offer", "offer", "reclaim", "reclaim"]):
            case "load":
                load = rng.choice([0.0, 0.2, 0.5, 1.0])
                self.send(InferenceLoadReported(**of_lender, time_s=self.time_s, load=load))
            case "offer":
                servers = rng.sample([f"i{index}" for index in range(LENDABLE)], rng.randint(1, LENDABLE))
                self.send(CapacityOffered(**of_lender, offer_id=f"o{number}", servers=tuple(servers)))
            case "reclaim":
                self.send(
                    CapacityReclaimed(
                        **of_lender,
                        reclaim_id=f"r{number}",
                        servers=rng.randint(1, 2),
                        due_s=self.time_s + NOTICE_S,
                    )
                )

    def trouble(self) -> None:
        rng, nodes = self.rng, self.nodes
        kind = rng.choice(["lose", "return", "fail", "withdraw", "retire", "register", "cordon", "uncordon"])
        node = rng.choice(self.servers)
        if kind == "lose" and node not in self.down:
            self.down.add(node)
            nodes.lose(node)
            self.send(NodeSilent(cell=CELL, node=node, silent_s=60.0))
        elif kind == "return" and self.down:
            self.come_back(rng.choice(sorted(self.down)))
        elif kind == "fail" and nodes.leading:
            command = nodes.leading.pop(rng.choice(sorted(nodes.leading)))
            self.send(failed(command, permanent=rng.random() < 0.3))
        elif kind == "withdraw" and self.live:
            job_id = rng.choice(self.live)
            self.send(withdraw(job_id, self.bench.cell.jobs.live[job_id].user))
        elif kind == "retire":
            self.send(NodeRetired(cell=CELL, node=node))
        elif kind == "register":
            name = f"n{len(self.bench.ledger)}"
            self.send(NodeRegistered(cell=CELL, node=name, zone=ZONE, gpu_type="V100", tariff="flat"))
            self.come_back(name)
        elif kind == "cordon":
            self.send(NodeCordoned(cell=CELL, node=node))
        elif kind == "uncordon":
            self.send(NodeUncordoned(cell=CELL, node=node))

    def come_back(self, node: str) -> None:
        self.down.discard(node)
        self.nodes.lost.discard(node)
        if node in self.servers:
            self.send(NodeOnline(cell=CELL, node=node, base_model="any", runners=("elastic",)))

    def come_to_rest(self) -> None:
        """Everything that can help helps, for as long as it takes."""
        for node in self.servers:
            if node in self.down:
                self.come_back(node)
            self.send(NodeUncordoned(cell=CELL, node=node))
        for _ in range(40 + 10 * len(self.live)):
            while self.nodes.due:
                self.send(self.nodes.next_report(min(self.nodes.due)))
            for job_id in sorted(self.nodes.leading):
                self.nodes.end(job_id)
            if not self.live:
                return
            self.tick(INTERVAL_S)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(25), deadline=None)
def test_invariants_hold_for_fungible_jobs_without_loans(seed):
    rng = random.Random(seed)
    history = History(rng, servers=rng.randint(1, 4), scheme="opportunistic")
    for _ in range(STEPS):
        history.step()


@pytest.mark.parametrize("scheme", ["lyra", "afs", "gandiva", "fifo", "pollux"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(25), deadline=None)
def test_every_job_ends_and_frees_its_servers(scheme, seed):
    rng = random.Random(seed)
    history = History(rng, servers=rng.randint(1, 4), scheme=scheme)
    for _ in range(STEPS):
        history.step()
    history.come_to_rest()
    assert history.live == []
    nodes = history.bench.described["nodes"]
    assert not any(node["held"] for node in nodes.values())
    assert history.bench.zone.free_to_leave(list(nodes)) == list(nodes)
    history.tick(INTERVAL_S)
    assert not history.bench.cell.nodes.leaving, "all are back"
