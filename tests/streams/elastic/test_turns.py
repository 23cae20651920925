"""Order of jobs that have waited for too long, and the servers held for them."""

import pytest

from infra.views.elastic.view import ElasticView
from schemas.base import Outcome
from schemas.changes import NodeCordoned, NodeRetired, NodeUncordoned
from schemas.decisions import JobAdmitted, JobQuoted, JobRejected
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.staffing import ZoneStaffed
from schemas.elastic.workload import ElasticTerms
from schemas.fleet import NodeOnline
from schemas.inference import CapacityOffered, InferenceLoadReported
from schemas.jobs import JobQuoteRequested
from streams.cell.state_machine import Cell
from tests.streams.elastic.flood import PATIENCE_S, turns_of, zone_of
from tests.support.cells import Bench
from tests.support.elastic import (
    CELL,
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
from tests.support.room import limit_room


def test_only_servers_free_first_are_held():
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


def test_turn_lasts_until_job_starts():
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


def test_impatient_job_in_idle_zone_gets_turn():
    bench = zone_of()
    bench.send(submit("long", 90_000, (5, 5)), tick(60.0))
    bench.send(submit("wide", 900, (8, 8)), tick(120.0))
    assert turns_of(bench) == {}
    outcomes = bench.send(tick(120.0 + PATIENCE_S), tick(180.0 + PATIENCE_S))
    assert list(turns_of(bench)) == ["wide"]
    (staffed,) = (each for each in outcomes if isinstance(each, ZoneStaffed))
    assert ElasticView().words(staffed)[1] == (
        "wide has waited for too long and comes before shorter jobs; held for it until "
        "1970-01-01T05:12:00.000Z: s1, s0"
    )


def test_held_servers_change_when_one_leaves():
    bench = zone_of()
    run = orders(
        bench.send(submit("a", 3_000, gpus_per_worker=3), submit("b", 9_000, gpus_per_worker=3), tick(60.0))
    )
    bench.send(*map(started, run))
    bench.send(submit("wide", 600, gpus_per_worker=4, user="ben"), tick(120.0), tick(180.0 + PATIENCE_S))
    (held,) = turns_of(bench)["wide"]
    (there,) = (order for order in run if order.node == held)
    bench.send(NodeRetired(cell=CELL, node=held), finished(there))
    assert held not in bench.described["nodes"]
    request = JobQuoteRequested(
        cell=CELL, quote_id="q", user="u", zone=ZONE, workload=workload(30), terms=ElasticTerms()
    )
    (quoted,) = bench.send(request)
    assert isinstance(quoted, JobQuoted)
    bench.send(tick(240.0 + PATIENCE_S))
    assert turns_of(bench) == {"wide": ("s0" if held == "s1" else "s1",)}


def test_job_exceeding_loaned_workers_awaits_training_servers():
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


def test_quote_uses_unheld_servers():
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


def test_quote_counts_jobs_becoming_impatient_before():
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


def test_later_users_get_no_earlier_turn():
    bench = zone_of()
    bench.send(submit("runs", 8 * 900_000, (8, 8), user="bob"), tick(60.0))
    bench.send(submit("first", 8 * 900, (8, 8)), submit("second", 8 * 900, (8, 8)))
    bench.send(tick(120.0), tick(180.0 + PATIENCE_S))
    assert list(turns_of(bench)) == ["first"]
    bench.send(withdraw("first"), NodeCordoned(cell=CELL, node="s1"), tick(240.0 + PATIENCE_S))
    bench.send(submit("later", 8 * 600, (8, 8), user="cid"), tick(240.0 + 2 * PATIENCE_S))
    bench.send(NodeUncordoned(cell=CELL, node="s1"), tick(300.0 + 2 * PATIENCE_S))
    assert list(turns_of(bench)) == ["second"]


def test_long_unstartable_job_gets_next_turn():
    bench = zone_of()
    bench.send(submit("runs", 4 * 900_000, (4, 4), user="bob"), tick(60.0))
    bench.send(submit("wide", 8 * 900, (8, 8), user="ann"))
    bench.send(tick(120.0), tick(180.0 + PATIENCE_S))
    assert list(turns_of(bench)) == ["wide"]
    bench.send(NodeCordoned(cell=CELL, node="s1"), submit("half", 4 * 9_000, (4, 4), user="cid"))
    bench.send(tick(240.0 + PATIENCE_S))
    assert turns_of(bench) == {}
    bench.send(NodeUncordoned(cell=CELL, node="s1"), submit("other", 8 * 600, (8, 8), user="cid"))
    bench.send(tick(240.0 + 2 * PATIENCE_S))
    assert list(turns_of(bench)) == ["wide"]


def test_one_user_leaves_room_for_others():
    bench = Bench()
    bench.send(elastic_cell(), tick(0.0))
    limit_room(bench.cell, bench.cell.configuration.live_jobs_bytes // 100)
    flood = [bench.send(submit(f"flood-{number}", user="flooder"))[0] for number in range(200)]
    taken = sum(isinstance(each, JobAdmitted) for each in flood)
    assert 20 < taken < 100
    refused = flood[taken]
    assert isinstance(refused, JobRejected)
    assert refused.reason == "cell_full"
    assert (refused.facts["case"], refused.facts["user"]) == ("jobs_of_user", "flooder")
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
    assert restored.zones[ZONE].describe()["held_bytes"] == bench.described["held_bytes"]


def orders(outcomes: list[Outcome]) -> list[WorkersAssigned]:
    """Return the orders to the leaders of jobs."""
    return [
        each for each in outcomes if isinstance(each, WorkersAssigned) and each.node == each.members[0].node
    ]
