"""Nobody waits for ever, whatever others submit."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.views.elastic.view import ElasticView
from schemas.base import Outcome
from schemas.changes import NodeCordoned, NodeUncordoned
from schemas.decisions import JobAdmitted, JobQuoted, JobRejected
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.outcomes import JobResized
from schemas.elastic.staffing import ZoneStaffed
from schemas.elastic.workload import ElasticTerms
from schemas.jobs import JobQuoteRequested
from streams.cell.cell import Cell
from tests.support.cells import Bench
from tests.support.elastic import (
    CELL,
    GPUS,
    INTERVAL_S,
    ZONE,
    ElasticBench,
    elastic_cell,
    finished,
    started,
    submit,
    tick,
    withdraw,
    workload,
)
from tests.support.examples import examples

PATIENCE_S = 600.0


def zone_of(servers: int = 2, **policy) -> ElasticBench:
    bench = ElasticBench()
    bench.send(elastic_cell(servers, patience_s=PATIENCE_S, **policy), tick(0.0))
    return bench


class Flood:
    """One user who submits two jobs of one to three minutes for each GPU in every round, and nodes that do
    them."""

    def __init__(self, bench: ElasticBench, gpus: int) -> None:
        self.bench, self.gpus = bench, gpus
        self.time_s, self.jobs = 0.0, 0
        self.ends: dict[str, tuple[float, WorkersAssigned]] = {}
        self.started_s: dict[str, float] = {}

    def round(self) -> list[Outcome]:
        """Another minute."""
        self.time_s += INTERVAL_S
        for job_id, (end_s, order) in list(self.ends.items()):
            if end_s <= self.time_s:
                del self.ends[job_id]
                self.bench.send(
                    *(finished(order.model_copy(update={"node": each.node})) for each in order.members)
                )
        for _ in range(2 * self.gpus):
            self.jobs += 1
            self.bench.send(submit(f"flood-{self.jobs}", 60 + 37 * self.jobs % 120, user="flooder"))
        outcomes = self.bench.send(tick(self.time_s))
        for order in outcomes:
            if isinstance(order, WorkersAssigned) and order.node == order.members[0].node:
                self.bench.send(started(order))
                work_s = order.workload.work_samples / order.workload.min_workers
                self.ends[order.job_id] = (self.time_s + work_s, order)
                self.started_s.setdefault(order.job_id, self.time_s)
        return outcomes


def test_a_job_that_shorter_ones_overtake_starts_once_its_patience_is_over():
    flood = Flood(zone_of(), gpus=8)
    flood.round()
    flood.bench.send(submit("long", 3_000, user="ann"))
    while "long" not in flood.started_s:
        outcomes = flood.round()
    assert flood.started_s["long"] == INTERVAL_S + PATIENCE_S
    (change,) = (each for each in outcomes if isinstance(each, JobResized) and each.job_id == "long")
    assert change.detail == "it had waited for too long, and came first"


@pytest.mark.parametrize("workers", [(8, 1), (2, 4)])
def test_servers_are_held_for_a_job_that_needs_them_whole(workers):
    count, size = workers
    flood = Flood(zone_of(), gpus=8)
    flood.round()
    flood.bench.send(submit("wide", 3_000, (count, count), user="ann", gpus_per_worker=size))
    while "wide" not in flood.started_s:
        flood.round()
    # Then the jobs that run there must end.
    waited_s = flood.started_s["wide"] - INTERVAL_S - PATIENCE_S
    assert 0 < waited_s <= 5 * INTERVAL_S


def test_without_patience_a_wide_job_waits_as_long_as_small_ones_come():
    bench = ElasticBench()
    bench.send(elastic_cell(2), tick(0.0))
    flood = Flood(bench, gpus=8)
    flood.round()
    bench.send(submit("wide", 3_000, (2, 2), user="ann", gpus_per_worker=4))
    for _ in range(60):
        flood.round()
    assert "wide" not in flood.started_s


def test_only_the_servers_that_will_be_free_first_are_held():
    bench = zone_of(servers=3)
    bench.send(
        *(
            submit(f"j{number}", work_s, gpus_per_worker=3)
            for number, work_s in enumerate((9_000, 30_000, 90_000))
        )
    )
    bench.send(*map(started, orders(bench.send(tick(60.0)))))
    bench.send(submit("wide", 300_000, gpus_per_worker=4))
    bench.send(tick(120.0), tick(120.0 + PATIENCE_S))
    assert (bench.zone._turns.job_id, bench.zone._turns.held) == ("wide", ("s0",))
    # A GPU of each server is idle.
    bench.send(*(submit(f"long-{number}", 30_000) for number in range(4)))
    places = {order.job_id: order.node for order in orders(bench.send(tick(180.0 + PATIENCE_S)))}
    assert places == {"long-0": "s1", "long-1": "s2"}
    # The job there has 8,220 s left by then, and 8,160 s a round later.
    bench.send(submit("too-long", 8_300))
    assert orders(bench.send(tick(240.0 + PATIENCE_S))) == []
    bench.send(submit("brief", 8_100))
    places = {order.job_id: order.node for order in orders(bench.send(tick(300.0 + PATIENCE_S)))}
    assert places == {"brief": "s0"}


def test_the_turn_goes_from_user_to_user():
    bench = zone_of()
    bench.send(submit("runs", 900_000, (8, 8), user="bob"), tick(60.0))
    bench.send(*(submit(f"bob-{number}", 9_000, (8, 8), user="bob") for number in range(3)), tick(120.0))
    bench.send(*(submit(f"ann-{number}", 90_000, (8, 8), user="ann") for number in range(2)))
    bench.send(submit("cid-0", 900_000, (8, 8), user="cid"), tick(180.0 + PATIENCE_S))
    turns = []
    for number in range(1, 7):
        turns.append(bench.zone._turns.job_id)
        bench.send(withdraw(turns[-1], user=turns[-1][:3]), tick(180.0 + PATIENCE_S + 60.0 * number))
    assert turns == ["bob-0", "ann-0", "cid-0", "bob-1", "ann-1", "bob-2"]


def test_a_job_that_cannot_start_at_present_leaves_the_turn_to_others():
    flood = Flood(zone_of(), gpus=8)
    flood.round()
    flood.bench.send(submit("both", 60, (2, 2), user="ann", gpus_per_worker=4))
    flood.bench.send(submit("wide", 60, (1, 1), user="ben", gpus_per_worker=4))
    flood.bench.send(NodeCordoned(cell=CELL, node="s1"))
    while "wide" not in flood.started_s:
        flood.round()
    assert flood.started_s["wide"] <= INTERVAL_S + PATIENCE_S + 5 * INTERVAL_S
    assert "both" not in flood.started_s
    flood.bench.send(NodeUncordoned(cell=CELL, node="s1"))
    while "both" not in flood.started_s:
        flood.round()
    assert flood.started_s["both"] <= flood.started_s["wide"] + 6 * INTERVAL_S


def test_servers_are_not_held_for_the_end_of_a_job_that_is_late_for_long():
    """It declared a minute, and runs on and on."""
    flood = Flood(zone_of(), gpus=8)
    flood.bench.send(submit("liar", 60, user="liar"))
    flood.round()
    flood.ends.pop("liar")
    flood.bench.send(submit("wide", 60, (1, 1), user="ben", gpus_per_worker=4))
    while "wide" not in flood.started_s:
        flood.round()
    assert flood.started_s["wide"] <= INTERVAL_S + PATIENCE_S + 5 * INTERVAL_S


def test_one_wide_job_costs_others_little_while_servers_are_held_for_it():
    flood = Flood(zone_of(servers=3), gpus=0)
    flood.bench.send(submit("month", 30 * 86_400, user="ann"))
    flood.round()
    flood.gpus = 12
    flood.bench.send(submit("wide", 60, (3, 3), user="ben", gpus_per_worker=4))
    for _ in range(60):
        flood.round()
    assert len(flood.bench.zone._turns.held) == 3
    assert len(flood.ends) == 12, "all GPUs are in use"


def test_who_has_the_turn_keeps_it_until_it_starts():
    bench = zone_of()
    first = orders(bench.send(submit("first", 90_000, (4, 4), user="ann"), tick(60.0)))
    second = orders(bench.send(submit("second", 900, (4, 4), user="bob"), tick(120.0)))
    bench.send(*map(started, [*first, *second]))
    bench.send(submit("wide", 900, (8, 8), user="cid"), submit("another", 9_000, user="ann"))
    bench.send(tick(180.0 + PATIENCE_S))
    assert bench.zone._turns.job_id == "wide"
    bench.send(finished(first[0]))
    assert orders(bench.send(tick(240.0 + PATIENCE_S))) == []
    bench.send(finished(second[0]))
    (begun,) = {order.job_id for order in orders(bench.send(tick(300.0 + PATIENCE_S)))}
    assert begun == "wide"
    bench.send(tick(360.0 + PATIENCE_S))
    assert bench.zone._turns.job_id == "another"


def test_a_job_that_becomes_impatient_in_a_zone_where_nothing_happens_is_given_the_turn():
    bench = zone_of()
    bench.send(submit("long", 90_000, (5, 5)), tick(60.0))
    bench.send(submit("wide", 900, (8, 8)), tick(120.0))
    assert bench.zone._turns.job_id is None
    outcomes = bench.send(tick(120.0 + PATIENCE_S), tick(180.0 + PATIENCE_S))
    assert bench.zone._turns.job_id == "wide"
    (staffed,) = (each for each in outcomes if isinstance(each, ZoneStaffed))
    assert ElasticView().words(staffed)[2] == (
        "wide has waited for too long and comes before shorter jobs; held for it: s1, s0"
    )


def test_a_quote_counts_who_has_the_turn():
    bench = zone_of()
    bench.send(submit("long", 90_000, (8, 8)), *[tick(60.0)])
    bench.send(submit("longer", 180_000, (8, 8)), tick(120.0), tick(180.0 + PATIENCE_S))
    request = JobQuoteRequested(
        cell=CELL, quote_id="q", user="u", zone=ZONE, workload=workload(600), terms=ElasticTerms()
    )
    (quoted,) = bench.send(request)
    assert isinstance(quoted, JobQuoted)
    assert quoted.evidence.start_s > 90_000 / 8 + 180_000 / 8


def test_a_quote_counts_on_servers_that_are_not_held():
    bench = zone_of()
    bench.send(
        *(submit(f"j{number}", work_s, gpus_per_worker=3) for number, work_s in enumerate((9_000, 30_000)))
    )
    bench.send(*map(started, orders(bench.send(tick(60.0)))))
    bench.send(submit("wide", 60, gpus_per_worker=4), tick(120.0), tick(180.0 + PATIENCE_S))
    assert bench.zone._turns.held == ("s0",)
    quotes = [
        JobQuoteRequested(
            cell=CELL, quote_id=f"q{size}", user="u", zone=ZONE, workload=long, terms=ElasticTerms()
        )
        for size, long in ((1, workload(20_000)), (4, workload(20_000, gpus_per_worker=4)))
    ]
    starts = [quoted.evidence.start_s for quoted in bench.send(*quotes)]
    # A GPU of s1 is idle; all of s0 is only once those before it are done.
    assert starts[0] == 240.0 + PATIENCE_S
    assert starts[1] > 9_000


@pytest.mark.parametrize("scheme", ["fifo", "afs", "pollux"])
def test_schemes_that_are_compared_with_give_no_turns(scheme):
    bench = zone_of(scheme=scheme)
    bench.send(submit("long", 90_000, (5, 5)), tick(60.0), submit("wide", 900, (8, 8)))
    bench.send(tick(120.0), tick(180.0 + PATIENCE_S))
    assert bench.zone._turns.job_id is None


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(100), deadline=None)
def test_whatever_one_user_floods_the_jobs_of_others_start_in_time(seed):
    """Each job is overtaken until its patience is over, and then waits for whoever has the turn before it and
    for those that run on its servers."""
    rng = random.Random(seed)
    servers = rng.randint(2, 3)
    flood = Flood(zone_of(servers), gpus=GPUS * servers)
    latest_s: dict[str, float] = {}
    for number in range(12):
        flood.round()
        if rng.random() < 0.3:
            size = rng.choice([1, 2, 4])
            workers = rng.randint(1, servers * (GPUS // size))
            most = workers + rng.choice([0, 0, 2])
            work_s = rng.randint(60, 900) * workers
            job_id = f"honest-{number}"
            flood.bench.send(
                submit(job_id, work_s, (workers, most), user=f"user-{number}", gpus_per_worker=size)
            )
            latest_s[job_id] = flood.time_s + PATIENCE_S
    # Of those that are given the turn one after the other, each may run 900 s.
    rounds = int((PATIENCE_S + (len(latest_s) + 1) * 1_080) / INTERVAL_S)
    for _ in range(rounds):
        flood.round()
        if flood.started_s.keys() >= latest_s.keys():
            break
    assert flood.started_s.keys() >= latest_s.keys()


def test_one_user_fills_no_more_of_a_cell_than_is_left_for_others():
    bench = Bench()
    bench.send(elastic_cell(), tick(0.0))
    limit = bench.cell.zones[ZONE]._workforce._live._limit_admitted
    bench.cell.zones[ZONE]._workforce._live._limit_admitted = limit // 100
    flood = [bench.send(submit(f"flood-{number}", user="flooder"))[0] for number in range(200)]
    taken = sum(isinstance(each, JobAdmitted) for each in flood)
    assert 20 < taken < 100
    refused = flood[taken]
    assert isinstance(refused, JobRejected)
    assert refused.reason == "cell_full"
    assert refused.detail.startswith("jobs of user flooder hold")
    others = [bench.send(submit(f"other-{number}", user=f"u{number}"))[0] for number in range(10)]
    assert all(isinstance(each, JobAdmitted) for each in others)
    again = [bench.send(submit(f"second-{number}", user="second"))[0] for number in range(200)]
    assert sum(isinstance(each, JobAdmitted) for each in again) > taken // 3


def test_a_restored_zone_counts_users_as_before():
    bench = Bench()
    bench.send(elastic_cell(), tick(0.0))
    bench.send(*(submit(f"j{number}", user=f"u{number % 2}") for number in range(6)))
    bench.send(withdraw("j0", user="u0"))
    restored = Cell.unpack(bench.cell.packed())
    assert restored.zones[ZONE]._workforce._held == bench.cell.zones[ZONE]._workforce._held


def orders(outcomes: list[Outcome]) -> list[WorkersAssigned]:
    """To the leaders of jobs."""
    return [
        each for each in outcomes if isinstance(each, WorkersAssigned) and each.node == each.members[0].node
    ]
