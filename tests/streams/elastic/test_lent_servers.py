"""An elastic zone on servers that it has on loan."""

from typing import get_args

import pytest

from schemas.changes import NodeRegistered, NodeRetired
from schemas.decisions import JobRejected
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.outcomes import ServersCleared
from schemas.elastic.settings import Scenario
from schemas.elastic.staffing import ZoneStaffed
from schemas.loans import ReclaimEnded
from streams.cell.state_machine import Cell
from tests.support.elastic import CELL, GPUS, INTERVAL_S, submit, tick
from tests.support.elastic_loans import LENDER, LivelyBench, borrowing_cell, loaded, offered, reclaimed


def lent() -> LivelyBench:
    """A server of its own, and three on loan."""
    bench = LivelyBench(borrowing_cell(servers=1, lent=4))
    bench.exchange(loaded(0.0), offered("i0", "i1", "i2"))
    return bench


def staffed(bench: LivelyBench) -> list[ZoneStaffed]:
    return [d.outcome for d in bench.decisions if isinstance(d.outcome, ZoneStaffed)]


def workers(bench: LivelyBench) -> dict[str, dict[str, int]]:
    """Workers of job "j" by kind and server."""
    found: dict[str, dict[str, int]] = {}
    for server, node in bench.described["nodes"].items():
        for kind, count in node["workers"].get("j", {}).items():
            found.setdefault(kind, {})[server] = count
    return found


def test_loaned_servers_admit_no_larger_jobs() -> None:
    bench = lent()
    bench.twin = Cell.unpack(bench.cell.packed())
    (outcome,) = bench.send(submit("wide", workers=(GPUS + 1, GPUS + 1)))
    assert isinstance(outcome, JobRejected)
    assert outcome.reason == "larger_than_the_zone"


def test_reclaim_spares_job_on_retiring_server() -> None:
    bench = LivelyBench(borrowing_cell(servers=2, lent=3, scenario="ideal"))
    bench.exchange(loaded(0.0), submit("other", 10**6, gpus_per_worker=4), submit("j", 100_000, (4, 8)))
    bench.rounds(1, 1)
    bench.exchange(offered("i0"))
    bench.rounds(2, 3)
    on_both = bench.job("j")["members"]
    assert on_both.keys() == {"s1", "i0"}
    bench.exchange(NodeRetired(cell=CELL, node="s1"))
    bench.rounds(4, 4)
    bench.exchange(reclaimed(1, due_s=1_000.0))
    bench.rounds(5, 6)
    (cleared,) = [d.outcome for d in bench.decisions if isinstance(d.outcome, ServersCleared)]
    assert cleared.preempted == ()
    assert bench.job("j")["members"] == {"s1": 4}


@pytest.mark.parametrize("scenario", get_args(Scenario))
def test_job_spreads_to_equally_fast_loaned_servers(scenario: Scenario) -> None:
    bench = LivelyBench(borrowing_cell(servers=1, lent=3, scenario=scenario))
    bench.exchange(loaded(0.0), submit("j", 100_000, (2, 8)))
    bench.rounds(1, 2)
    assert bench.job("j")["members"] == {"s0": 4}
    bench.exchange(offered("i0", "i1"))
    bench.rounds(3, 3)
    assert workers(bench) == {"base": {"s0": 2}, "flexible": {"i0": 4, "i1": 2}}
    order = next(d.outcome for d in reversed(bench.decisions) if isinstance(d.outcome, WorkersAssigned))
    assert order.expected_samples_per_s == 8, "as on one pool"
    bench.exchange(loaded(0.5, 3 * INTERVAL_S), reclaimed(2, 6 * INTERVAL_S))
    bench.rounds(4, 5)
    assert bench.job("j")["members"] == {"s0": 4}


def test_job_spreads_to_equally_fast_training_servers() -> None:
    bench = lent()
    bench.exchange(submit("j", 10_000, (4, 16)))
    bench.rounds(1, 1)
    assert workers(bench)["base"].keys() <= {"i0", "i1", "i2"}
    bench.exchange(reclaimed(2, 4 * INTERVAL_S))
    bench.rounds(2, 4)
    assert bench.job("j")["workers"] == 8


def test_zone_reports_staffing_and_next_reclaim() -> None:
    bench = lent()
    bench.exchange(
        submit("firm", 60_000, (4, 4)), submit("solid", 30_000, (3, 3)), submit("roomy", 90_000, (2, 5))
    )
    bench.exchange(submit("late", 120_000, (4, 4)), submit("later", 200_000, (4, 4)))
    bench.rounds(1, 1)
    (said,) = staffed(bench)
    assert [(job.job_id, job.base_gpus, job.running_s) for job in said.queue] == [("later", 4, 50_000.0)]
    assert said.on_loan == 3


def test_staffing_is_reported_at_most_every_ten_rounds() -> None:
    bench = lent()
    bench.exchange(submit("a", 60_000))
    bench.rounds(1, 1)
    assert len(staffed(bench)) == 1
    bench.exchange(submit("b", 60_000))
    bench.rounds(2, 10)
    assert len(staffed(bench)) == 1
    bench.rounds(11, 11)
    assert len(staffed(bench)) == 2
    bench.rounds(12, 30)
    assert len(staffed(bench)) == 2
    assert bench.send(tick(31 * INTERVAL_S)) == []


def test_predicted_reclaim_matches_actual_one() -> None:
    bench = lent()
    bench.exchange(
        submit("own", 300, (4, 4)), submit("wide", 60_000, (4, 4)), submit("other", 90_000, (3, 3))
    )
    bench.rounds(1, 1)
    (said,) = staffed(bench)
    assert (said.on_loan, said.harmless_returns) == (3, 1)
    one_more, two_more = said.next_reclaims
    assert (one_more.servers, two_more.servers) == (2, 3)
    outcomes = bench.exchange(loaded(0.5, INTERVAL_S), reclaimed(2, 4 * INTERVAL_S)) + bench.rounds(2, 2)
    (cleared,) = [outcome for outcome in outcomes if isinstance(outcome, ServersCleared)]
    assert cleared.servers == one_more.preempting
    assert cleared.preempted == one_more.preempts
    assert cleared.spared_jobs == len(two_more.preempts) - len(one_more.preempts) == 1


def test_reclaimed_server_is_not_counted_again() -> None:
    bench = lent()
    bench.exchange(submit("firm", 60_000, (4, 4)), submit("other", 90_000, (4, 4)))
    bench.rounds(1, 1)
    bench.exchange(loaded(0.5, INTERVAL_S), reclaimed(1, 4 * INTERVAL_S))
    bench.rounds(2, 11)
    assert [(said.on_loan, said.harmless_returns) for said in staffed(bench)] == [(3, 2), (2, 1)]


def test_base_workers_are_replaced_instead_of_preemption() -> None:
    bench = LivelyBench(borrowing_cell(servers=1, lent=3))
    bench.exchange(loaded(0.0), offered("i0"), submit("j", 90_000, (4, 8)))
    bench.rounds(1, 1)
    assert workers(bench) == {"base": {"i0": 4}, "flexible": {"s0": 4}}
    bench.rounds(2, 11)
    assert staffed(bench)[-1].harmless_returns == 1
    bench.exchange(reclaimed(1, due_s=14 * INTERVAL_S))
    outcomes = bench.rounds(12, 12)
    (cleared,) = [outcome for outcome in outcomes if isinstance(outcome, ServersCleared)]
    assert (cleared.preempted, cleared.scaled_in) == ((), ("j",))
    assert workers(bench) == {"base": {"s0": 4}}
    job = bench.job("j")
    assert (job["pool"], job["flexible_pool"], job["workers"]) == ("training", None, 4)


@pytest.mark.parametrize("dues_s", [(190.0, 200.0), (200.0, 190.0), (200.0, 200.0)])
@pytest.mark.parametrize("kept", [None, "i0", "i1"])
def test_overdue_reclaims_are_in_due_order(dues_s: tuple[float, float], kept: str | None) -> None:
    """The jobs on both servers do not stop, and an operator may retire one of the two and keep it after
    all."""
    bench = LivelyBench(borrowing_cell(servers=1, lent=3))
    bench.exchange(loaded(0.0), offered("i0", "i1"))
    bench.exchange(*(submit(id, 10**5, (GPUS, GPUS)) for id in ("a", "b", "c")))
    bench.rounds(1, 1)
    bench.send(reclaimed(1, dues_s[0], "r1"), reclaimed(1, dues_s[1], "r2"))
    if kept is not None:
        again = NodeRegistered(cell=CELL, node=kept, zone=LENDER, gpu_type="V100", tariff="flat")
        bench.send(NodeRetired(cell=CELL, node=kept), again)
    outcomes = bench.send(tick(240.0))
    overdue = [one for one in outcomes if isinstance(one, ReclaimEnded)]
    assert [one.status for one in overdue] == ["overdue", "overdue"]
    by_due = sorted(zip(dues_s, ("r1", "r2"), strict=True))
    assert [one.reclaim_id for one in overdue] == [id for _, id in by_due]
