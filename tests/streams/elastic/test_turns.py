"""Nobody waits for ever, whatever others submit."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.views.elastic.view import ElasticView
from schemas.base import Outcome
from schemas.changes import NodeCordoned, NodeRetired, NodeUncordoned
from schemas.decisions import JobAdmitted, JobQuoted, JobRejected
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.outcomes import JobResized
from schemas.elastic.staffing import ZoneStaffed
from schemas.elastic.workload import ElasticTerms
from schemas.fleet import NodeOnline
from schemas.inference import CapacityOffered, InferenceLoadReported
from schemas.jobs import JobQuoteRequested
from streams.cell.cell import Cell
from tests.support.cells import Bench
from tests.support.elastic import (
    CELL,
    GPUS,
    INTERVAL_S,
    LENDER,
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


def turns_of(bench: ElasticBench) -> dict[str, tuple[str, ...]]:
    """Jobs that have a turn, and the servers that are held for each."""
    return {turn.job_id: turn.held for turn in bench.zone._turns.all}


class Flood:
    """One user who submits two jobs of one to three minutes for each GPU in every round, while fewer than
    four wait, and nodes that do them. Or jobs that are declared to take so long, and take longer."""

    def __init__(self, bench: ElasticBench, gpus: int, declared_s: int = 0, real_s: int = 0) -> None:
        self.bench, self.gpus = bench, gpus
        self.declared_s, self.real_s = declared_s, real_s
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
        waiting = len(self.bench.zone._workforce.waiting)
        for _ in range(min(2 * self.gpus, max(4 * self.gpus - waiting, 0))):
            self.jobs += 1
            declared_s = self.declared_s or 60 + 37 * self.jobs % 120
            self.bench.send(submit(f"flood-{self.jobs}", declared_s, user="flooder"))
        outcomes = self.bench.send(tick(self.time_s))
        for order in outcomes:
            if isinstance(order, WorkersAssigned) and order.node == order.members[0].node:
                self.bench.send(started(order))
                work_s = order.workload.work_samples / order.workload.min_workers
                if self.real_s and order.job_id.startswith("flood"):
                    work_s = self.real_s
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
    assert turns_of(bench) == {"wide": ("s0",)}
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
        turns += turns_of(bench)
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
    assert list(turns_of(bench)) == ["wide"]
    bench.send(finished(first[0]))
    assert orders(bench.send(tick(240.0 + PATIENCE_S))) == []
    bench.send(finished(second[0]))
    (begun,) = {order.job_id for order in orders(bench.send(tick(300.0 + PATIENCE_S)))}
    assert begun == "wide"
    bench.send(tick(360.0 + PATIENCE_S))
    assert list(turns_of(bench)) == ["another"]


def test_a_job_that_becomes_impatient_in_a_zone_where_nothing_happens_is_given_the_turn():
    bench = zone_of()
    bench.send(submit("long", 90_000, (5, 5)), tick(60.0))
    bench.send(submit("wide", 900, (8, 8)), tick(120.0))
    assert turns_of(bench) == {}
    outcomes = bench.send(tick(120.0 + PATIENCE_S), tick(180.0 + PATIENCE_S))
    assert list(turns_of(bench)) == ["wide"]
    (staffed,) = (each for each in outcomes if isinstance(each, ZoneStaffed))
    assert ElasticView().words(staffed)[2] == (
        "wide has waited for too long and comes before shorter jobs; held for it until "
        "1970-01-01T05:12:00.000Z: s1, s0"
    )


def test_a_job_that_waits_for_a_month_does_not_keep_the_turns_of_others():
    """One user holds all servers, with a long job and one that needs them all, and floods what is held with
    jobs that end in time."""
    flood = Flood(zone_of(servers=3), gpus=0)
    flood.bench.send(submit("month", 30 * 86_400, user="flooder"))
    flood.round()
    flood.bench.send(submit("all", 60, (3, 3), user="flooder", gpus_per_worker=4))
    while not turns_of(flood.bench):
        flood.round()
    assert {job: len(held) for job, held in turns_of(flood.bench).items()} == {"all": 3}
    flood.gpus = 12
    flood.round()
    flood.bench.send(
        submit("whole", 300, gpus_per_worker=4, user="ben"), submit("longish", 30_000, user="cid")
    )
    since_s = flood.time_s
    while not {"whole", "longish"} <= flood.started_s.keys():
        flood.round()
    assert flood.started_s["whole"] <= since_s + PATIENCE_S + 5 * INTERVAL_S
    assert flood.started_s["longish"] <= flood.started_s["whole"] + 6 * INTERVAL_S
    assert "all" in turns_of(flood.bench)


def test_four_jobs_have_turns_at_a_time_each_of_another_user():
    flood = Flood(zone_of(servers=3), gpus=0)
    flood.bench.send(submit("month", 30 * 86_400, user="ann"))
    flood.round()
    wide = [
        submit(f"{user}-{number}", 60, (3, 3), user=user, gpus_per_worker=4)
        for number in range(2)
        for user in ("ben", "cid", "dan", "eve", "fay")
    ]
    flood.bench.send(*wide)
    for _ in range(30):
        flood.round()
    assert list(turns_of(flood.bench)) == ["ben-0", "cid-0", "dan-0", "eve-0"]


@pytest.mark.parametrize(("workers", "size"), [(2, 4), (1, 4), (8, 1)])
@pytest.mark.parametrize(("declared_s", "real_s"), [(60, 180), (60, 7_200), (600, 1_500)])
def test_jobs_that_run_longer_than_declared_delay_a_turn_and_do_not_prevent_it(
    workers, size, declared_s, real_s
):
    flood = Flood(zone_of(), gpus=1, declared_s=declared_s, real_s=real_s)
    for _ in range(5):
        flood.round()
    flood.bench.send(submit("wide", 300, (workers, workers), user="ben", gpus_per_worker=size))
    since_s = flood.time_s
    while "wide" not in flood.started_s:
        flood.round()
    # Those that run when its patience is over, and those that start until the promised time.
    assert flood.started_s["wide"] - since_s <= PATIENCE_S + 2 * real_s + declared_s + 5 * INTERVAL_S


def test_other_servers_are_held_where_those_that_were_promised_are_late_for_long():
    """A job declares half an hour, and runs on and on; the job on the other server has an hour to go."""
    flood = Flood(zone_of(), gpus=0)
    flood.bench.send(submit("liar", 1_800, user="liar", gpus_per_worker=3))
    flood.bench.send(submit("honest", 5_400, user="ann", gpus_per_worker=3))
    flood.round()
    flood.ends.pop("liar")
    flood.bench.send(submit("wide", 60, user="ben", gpus_per_worker=4))
    held = []
    while "wide" not in flood.started_s:
        flood.round()
        held += [servers for servers in turns_of(flood.bench).values() if [servers] != held[-1:]]
    assert held == [("s0",), ("s1",)]
    assert flood.started_s["wide"] == INTERVAL_S + 5_400


def test_other_servers_are_held_where_one_leaves_and_quotes_know_no_more_of_it():
    bench = zone_of()
    run = orders(
        bench.send(submit("a", 3_000, gpus_per_worker=3), submit("b", 9_000, gpus_per_worker=3), tick(60.0))
    )
    bench.send(*map(started, run))
    bench.send(submit("wide", 600, gpus_per_worker=4, user="ben"), tick(120.0), tick(180.0 + PATIENCE_S))
    (held,) = turns_of(bench)["wide"]
    (there,) = (order for order in run if order.node == held)
    bench.send(NodeRetired(cell=CELL, node=held), finished(there))
    assert held not in bench.zone._workforce.cluster.servers()
    request = JobQuoteRequested(
        cell=CELL, quote_id="q", user="u", zone=ZONE, workload=workload(30), terms=ElasticTerms()
    )
    (quoted,) = bench.send(request)
    assert isinstance(quoted, JobQuoted)
    bench.send(tick(240.0 + PATIENCE_S))
    assert turns_of(bench) == {"wide": ("s0" if held == "s1" else "s1",)}


def test_a_job_whose_workers_would_be_too_many_on_loaned_servers_waits_for_training_servers():
    """400 workers are 1,200 on T4 servers, of which a job may have 1,024."""
    bench = ElasticBench()
    cell = elastic_cell(7, lendable=24, patience_s=PATIENCE_S)
    own, lender = (
        zone.model_copy(
            update={"gpu_types": tuple(each.model_copy(update={"gpus": 64}) for each in zone.gpu_types)}
        )
        for zone in cell.zones
    )
    first = lender.nodes[0].model_copy(update={"gpu_type": "V100"})
    lender = lender.model_copy(update={"nodes": (first, *lender.nodes[1:])})
    bench.send(cell.model_copy(update={"zones": (own, lender)}), tick(0.0))
    bench.send(InferenceLoadReported(cell=CELL, zone=LENDER, time_s=0.0, load=0.0))
    bench.send(submit("runs", 448 * 3_000, (448, 448), user="ann"), tick(60.0))
    lent = tuple(node.id for node in lender.nodes)
    bench.send(CapacityOffered(cell=CELL, zone=LENDER, offer_id="o", servers=lent))
    bench.send(*(NodeOnline(cell=CELL, node=node, base_model="any", runners=("elastic",)) for node in lent))
    bench.send(submit("wide", 400 * 60, (400, 400), user="ben", fungible=True), tick(120.0))
    bench.send(tick(180.0 + PATIENCE_S))
    assert len(turns_of(bench)["wide"]) == 7


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
    assert turns_of(bench) == {"wide": ("s0",)}
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


def test_a_quote_counts_jobs_whose_patience_ends_before_the_start():
    bench = zone_of()
    bench.send(submit("runs", 8 * 3_000, (8, 8), user="ann"), tick(60.0))
    longer = [submit(f"long-{number}", 8 * 9_000, (8, 8), user=f"u{number}") for number in range(10)]
    bench.send(*longer, tick(120.0))
    request = JobQuoteRequested(
        cell=CELL, quote_id="q", user="u", zone=ZONE, workload=workload(2_400, (8, 8)), terms=ElasticTerms()
    )
    (quoted,) = bench.send(request)
    assert isinstance(quoted, JobQuoted)
    assert 60.0 + 3_000 + 10 * 9_000 <= quoted.evidence.start_s <= 60.0 + 3_000 + 10 * 9_000 + 11 * INTERVAL_S


@pytest.mark.parametrize("scheme", ["fifo", "afs", "pollux"])
def test_schemes_that_are_compared_with_give_no_turns(scheme):
    bench = zone_of(scheme=scheme)
    bench.send(submit("long", 90_000, (5, 5)), tick(60.0), submit("wide", 900, (8, 8)))
    bench.send(tick(120.0), tick(180.0 + PATIENCE_S))
    assert turns_of(bench) == {}


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(100), deadline=None)
def test_whatever_one_user_floods_the_jobs_of_others_start_in_time(seed):
    """Each job is overtaken until its patience is over, and then waits for whoever has the turn before it and
    for those that run on its servers."""
    rng = random.Random(seed)
    servers = rng.randint(2, 3)
    declared_s, real_s = rng.choice([(0, 0), (60, 60), (60, 600), (600, 1_800)])
    flood = Flood(zone_of(servers), GPUS * servers, declared_s, real_s)
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
    # Of those that are given a turn one after the other, each waits for what runs there, and may run 900 s.
    a_turn_s = declared_s + max(real_s, 180) + 900
    rounds = int((PATIENCE_S + (len(latest_s) + 1) * a_turn_s) / INTERVAL_S)
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
