"""Zones of rigid gangs, by what every policy has of their bases."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from schemas.base import Outcome
from schemas.decisions import JobRejected
from schemas.elastic.outcomes import QueuedJob
from schemas.facts import NO_FACTS, Fact
from schemas.fleet import RunProgressed
from streams.cell.jobs import Job
from streams.cell.layout import Layout
from streams.cell.live_bytes import LiveBytes
from streams.cell.node_record import PlannedReclaim
from streams.cell.nodes import NodeChange, NodePool
from streams.cell.outcomes import Outcomes
from streams.cell.profiles import ProfileStore, ZoneProfiles
from streams.policies.gang.gangs import Cause, Why
from streams.policies.gang.rigid import RigidGang, RigidGangs, RigidZone
from streams.policies.policy import ZoneContext
from tests.streams.gang.policies import COMPLETE, Changed, Released
from tests.support.elastic import GPU_TYPES, GPUS, ElasticTerms, elastic_cell, workload
from tests.support.twins import ZONE

NODES = ("s0", "s1", "s2")
OWN_GPUS = len(NODES) * GPUS
GANG_BYTES = 1_000
MEMBER_BYTES = 100


@dataclass
class SizedGang(RigidGang):
    """A gang of as many ranks as its workload has workers."""

    @property
    def ranks(self) -> int:
        return cast(Any, self.job.workload).max_workers

    @property
    def state_bytes(self) -> int:
        return GANG_BYTES + MEMBER_BYTES * len(self.members)


class SizedGangs(RigidGangs[SizedGang, str]):
    """Gangs of a policy that adds nothing but a reserve."""

    reserve = 0

    @property
    def reserved_gpus(self) -> int:
        return self.reserve

    def _order_start(self, job: SizedGang) -> None:
        """Add no order: the decision `Changed` is enough here."""

    def _changed(self, job: SizedGang, width_before: int, why: Why[str]) -> Outcome:
        return Changed(job_id=job.job_id, generation=job.generation, reason=why.reason)

    def _released(self, job: SizedGang, node: str, generation: int, why: Why[str]) -> Outcome:
        reason = job.release_reason(why.reason)
        return Released(job_id=job.job_id, node=node, generation=generation, reason=reason)

    def _why(self, job: SizedGang, cause: Cause, facts: Mapping[str, Fact] = NO_FACTS) -> Why[str]:
        return Why(cause, facts)


class SizedZone(RigidZone[SizedGang, str]):
    """A zone of a policy that adds nothing."""

    def __init__(self, context: ZoneContext, gangs: SizedGangs) -> None:
        super().__init__(context, gangs, SizedGang)
        self._configure(context)

    def _admit(self, gang: SizedGang) -> QueuedJob:
        return QueuedJob(jobs_waiting=0, running_s=0.0)


class Bench:
    """A zone with the rest of its cell."""

    def __init__(self, limit_bytes: int = 10**9) -> None:
        self.cell = elastic_cell(len(NODES))
        self.pool = NodePool(Layout(self.cell))
        self.jobs: dict[str, Job] = {}
        self.context = ZoneContext(
            self.cell,
            self.cell.zones[0],
            self.jobs,
            LiveBytes(limit_bytes),
            self.pool.loans,
            self.pool,
            Outcomes(),
            ZoneProfiles(ProfileStore(), ZONE),
        )
        self.gangs, self.zone = self.fresh()

    def fresh(self) -> tuple[SizedGangs, SizedZone]:
        """Return an empty zone."""
        gangs = SizedGangs(self.context)
        return gangs, SizedZone(self.context, gangs)

    def submit(self, job_id: str, ranks: int, user: str = "u") -> list[Outcome]:
        job = Job(job_id, user, ZONE, workload(10, (1, ranks)), ElasticTerms())
        self.zone.submitted(job)
        if job_id in self.gangs.jobs:
            self.jobs[job_id] = job
        return self.context.outcomes.drain()

    def start(self, *sizes: tuple[str, int]) -> None:
        """Start jobs one after another."""
        for job_id, ranks in sizes:
            self.submit(job_id, ranks)
            assert self.gangs.start(self.gangs.jobs[job_id])

    def leave(self, node: str) -> list[Outcome]:
        """Have a node leave the zone, and return the decisions."""
        self.pool.send_off(node, "retired")
        return self.see_leaving(node)

    def reclaim(self, server: str, due_s: float) -> list[Outcome]:
        """Reclaim a server on loan, and return the decisions."""
        self.pool.reclaim(server, PlannedReclaim(ZONE, "r", due_s), 0.0)
        return self.see_leaving(server)

    def see_leaving(self, node: str) -> list[Outcome]:
        """Show the zone that a node is leaving, and return the decisions."""
        self.context.outcomes.drain()
        self.zone.nodes_changed(NodeChange(node, "leaving"))
        return self.context.outcomes.drain()

    def end(self, job_id: str, node: str) -> None:
        """Report the end of a run on a node."""
        place = {"cell": "c", "node": node, "run_id": f"1/{job_id}", "job_id": job_id}
        self.zone.run_changed(self.jobs[job_id], RunProgressed(**place, samples_done=0, **COMPLETE))

    def members(self, job_id: str) -> dict[str, int]:
        return self.zone.describe()["jobs"][job_id]["members"]

    def servers(self, count: int, **fields: Any) -> ZoneContext:
        """Return a configuration with fewer servers, or other ones."""
        zone = self.context.zone
        return replace(self.context, zone=zone.model_copy(update={"nodes": zone.nodes[:count], **fields}))


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    assert list(bench.zone.broken_invariants()) == []


def test_full_cell_rejects_a_job() -> None:
    (rejected,) = Bench(limit_bytes=GANG_BYTES).submit("j", 1)
    assert (type(rejected), rejected.reason) == (JobRejected, "cell_full")


def test_size_is_refused_before_room() -> None:
    (rejected,) = Bench(limit_bytes=GANG_BYTES).submit("j", OWN_GPUS + 1)
    assert (rejected.reason, rejected.facts["own_gpus"]) == ("larger_than_the_zone", OWN_GPUS)


def test_leaving_nodes_do_not_count_for_new_jobs(bench: Bench) -> None:
    bench.leave("s0")
    (rejected,) = bench.submit("j", OWN_GPUS)
    assert rejected.facts == {"ranks": OWN_GPUS, "own_gpus": OWN_GPUS - GPUS}


def test_jobs_of_node_are_by_arrival(bench: Bench) -> None:
    bench.start(("b", 1), ("a", 1))
    assert [job.job_id for job in bench.gangs.jobs_on("s0")] == ["b", "a"]


def test_arrivals_go_on_after_a_restore(bench: Bench) -> None:
    bench.submit("a", 1)
    bench.submit("b", 1)
    state = bench.zone.state()
    bench.gangs, bench.zone = bench.fresh()
    bench.zone.restore(state)
    bench.submit("c", 1)
    assert [job.arrival for job in bench.gangs.jobs.values()] == [0, 1, 2]


def test_starts_count_their_bytes(bench: Bench) -> None:
    bench.submit("j", 2 * GPUS)
    before_bytes = bench.context.live.total
    assert bench.gangs.start(bench.gangs.jobs["j"])
    assert bench.context.live.total == before_bytes + 2 * MEMBER_BYTES


@pytest.mark.parametrize("event", ["submitted", "node", "configuration"])
def test_events_change_possible_assignments(bench: Bench, event: str) -> None:
    bench.gangs.note_assignment()
    match event:
        case "submitted":
            bench.submit("j", 1)
        case "node":
            bench.zone.nodes_changed(NodeChange("s0", "cordoned"))
        case "configuration":
            bench.zone.reconfigured(bench.context)
    assert bench.zone.state()["has_changed"]


@pytest.mark.parametrize(
    ("running", "waiting", "free"),
    [
        ((), (), ["s0", "s1", "s2"]),
        ((), (4,), ["s0", "s1"]),
        ((), (4, 12), []),
        ((4,), (), ["s1", "s2"]),
        ((1, 1), (8,), ["s1"]),
    ],
)
def test_nodes_that_no_job_needs_may_leave(
    bench: Bench, running: tuple[int, ...], waiting: tuple[int, ...], free: list[str]
) -> None:
    bench.start(*((f"r{number}", ranks) for number, ranks in enumerate(running)))
    for number, ranks in enumerate(waiting):
        bench.submit(f"w{number}", ranks)
    assert bench.zone.free_to_leave(NODES) == free


def test_servers_with_fewest_jobs_return_first(bench: Bench) -> None:
    bench.start(("a", 2), ("b", 2), ("c", 4))
    assert bench.zone.choose_returns(NODES, 2, 0.0) == ["s2", "s1"]


def test_due_node_returns_without_room_elsewhere(bench: Bench) -> None:
    bench.start(("j", 2 * GPUS), ("k", 1))
    bench.pool.begin_loan("s0", ZONE, notice_s=60.0, time_s=0.0)
    bench.zone.reconfigured(bench.context)
    assert bench.reclaim("s0", due_s=60.0) == [
        Changed(job_id="j", generation=1, reason="preempted"),
        *(Released(job_id="j", node=node, generation=1, reason="preempted") for node in ("s0", "s1")),
    ]


def test_leaving_node_keeps_a_job_without_other_room(bench: Bench) -> None:
    bench.start(("j", 2 * GPUS), ("k", 1))
    assert bench.leave("s0") == []
    assert bench.zone.describe()["leaving"] == {"s0": None}


def test_job_moves_to_just_enough_room(bench: Bench) -> None:
    bench.start(("j", 2 * GPUS))
    bench.gangs.reserve = 1
    assert bench.leave("s0") == [], "a GPU of the room elsewhere is for another job"
    bench.gangs.reserve = 0
    assert bench.see_leaving("s0")[0] == Changed(job_id="j", generation=1, reason="preempted")
    assert bench.see_leaving("s0") == [], "its ranks are to end already"
    for node in ("s0", "s1"):
        bench.end("j", node)
    assert bench.gangs.start(bench.gangs.jobs["j"])
    assert bench.members("j") == {"s1": GPUS, "s2": GPUS}


def test_needed_node_takes_jobs_although_it_leaves(bench: Bench) -> None:
    bench.submit("j", OWN_GPUS)
    bench.leave("s0")
    assert bench.gangs.start(bench.gangs.jobs["j"])


@pytest.mark.parametrize(
    ("sizes", "context", "promise"),
    [
        ((8,), lambda bench: bench.servers(2), None),
        (
            (12, 1, 9),
            lambda bench: bench.servers(2),
            {"case": "jobs_never_run", "jobs": 2, "job_id": "j0", "ranks": 12, "own_gpus": 8},
        ),
        (
            (12,),
            lambda bench: replace(bench.context, loans={"s2": None}),
            {"case": "jobs_never_run", "jobs": 1, "job_id": "j0", "ranks": 12, "own_gpus": 8},
        ),
    ],
)
def test_admitted_jobs_keep_enough_own_gpus(
    bench: Bench, sizes: tuple[int, ...], context: Any, promise: dict[str, object] | None
) -> None:
    for number, ranks in enumerate(sizes):
        bench.submit(f"j{number}", ranks)
    assert bench.zone.broken_promise(context(bench)) == promise


def test_held_gpus_stay_on_their_node(bench: Bench) -> None:
    bench.start(("j", 3))
    smaller = tuple(each.model_copy(update={"gpus": 2}) for each in GPU_TYPES)
    facts = {"case": "gpus_in_use", "node": "s0", "gpus": 2, "held_gpus": 3}
    assert bench.zone.broken_promise(bench.servers(3, gpu_types=smaller)) == facts
    fitting = tuple(each.model_copy(update={"gpus": 3}) for each in GPU_TYPES)
    assert bench.zone.broken_promise(bench.servers(3, gpu_types=fitting)) is None


def test_invariants_name_what_is_broken() -> None:
    bench = Bench()
    bench.start(("j", 1))
    bench.gangs.jobs["j"].leader = "s1"
    bench.jobs["k"] = Job("k", "u", ZONE, workload(10), ElasticTerms())
    assert list(bench.zone.broken_invariants()) == [
        "the zone keeps 1 jobs, and 2 of its jobs are live",
        "job j has no leader among ['s0']",
    ]
