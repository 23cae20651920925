"""Decisions of the policy, in a process that has it installed next to the product."""

import msgpack
import pytest

from schemas.base import Outcome
from schemas.cells import Borrower, Lending, Node
from schemas.changes import NodeCordoned, NodeRetired
from schemas.codec import Decision, decode_decision
from schemas.decisions import (
    EventIgnored,
    JobAdmitted,
    JobCompleted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeMoved,
    NodeStatusChanged,
)
from schemas.fleet import NodeOnline, RefusedRun
from schemas.jobs import JobSubmitted
from schemas.solves import SolveFinished
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from streams.replay.replay import DecisionRecord, verify
from tests.small_gang.kind import LineAssigned, LineChanged, LinePolicy, LineReleased, LineTerms, LineWorkload
from tests.support.cells import (
    Bench,
    configuration,
    failed,
    finished,
    offline,
    progressed,
    refused,
    started,
    tick,
    withdraw,
    zone,
)
from tests.support.loans import NOTICE_S, lender, offered, reclaimed, reported

WORK_SAMPLES = 200
POLICY = LinePolicy()


class RestoredBench(Bench):
    """Checks the invariants after each event, and restores the cell."""

    def handle_entry(self, entry: LedgerEvent) -> list[Decision]:
        decisions = self.cell.handle(entry)
        assert list(self.cell.broken_invariants()) == []
        self.cell = Cell.restore(self.cell.snapshot())
        return decisions


@pytest.fixture
def bench() -> RestoredBench:
    """Three nodes: a1, a2 and b1."""
    bench = RestoredBench()
    bench.send(configuration(zones=(zone(policy=POLICY),)))
    return bench


def submitted(job_id: str = "j", processes: int = 2) -> JobSubmitted:
    work = LineWorkload(processes=processes, work_samples=WORK_SAMPLES)
    return JobSubmitted(cell="c", job_id=job_id, user="u", zone="z", workload=work, terms=LineTerms())


def online(node: str) -> NodeOnline:
    return NodeOnline(cell="c", node=node, base_model="other", runners=("line",))


def assigned(outcomes: list[Outcome]) -> list[tuple[str, str, int]]:
    """Job, node and generation of each assignment."""
    orders = [each for each in outcomes if isinstance(each, LineAssigned)]
    return [(each.job_id, each.node, each.generation) for each in orders]


def released(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    """Node and reason of each release."""
    return [(each.node, each.reason) for each in outcomes if isinstance(each, LineReleased)]


def types(outcomes: list[Outcome]) -> list[type[Outcome]]:
    return [type(each) for each in outcomes]


def test_a_job_starts_on_open_nodes(bench: RestoredBench) -> None:
    (admitted,) = bench.send(submitted())
    assert isinstance(admitted, JobAdmitted)
    changed, *orders = bench.send(tick(1))
    assert (type(changed), changed.generation, changed.reason) == (LineChanged, 1, "started")
    assert assigned(orders) == [("j", "a1", 1), ("j", "a2", 1)]
    assert {(each.members, each.resume_samples) for each in orders} == {((("a1", 1), ("a2", 1)), 0)}
    assert decode_decision(bench.decisions[-1].canonical).outcome == orders[-1]


def test_jobs_start_in_the_order_of_their_submission(bench: RestoredBench) -> None:
    bench.send(submitted("first"), submitted("second"), submitted("third", processes=1))
    assert [job_id for job_id, *_ in assigned(bench.send(tick(1)))] == ["first", "first"]
    assert bench.send(tick(2)) == [], "the third job does not overtake the second"
    bench.send(finished("a2", 1, job_id="first"), finished("a1", 1, job_id="first"))
    assert assigned(bench.send(tick(3))) == [("second", "a1", 1), ("second", "a2", 1), ("third", "b1", 1)]


def test_a_cordoned_node_gets_no_process(bench: RestoredBench) -> None:
    bench.send(NodeCordoned(cell="c", node="a1"), submitted())
    assert assigned(bench.send(tick(1))) == [("j", "a2", 1), ("j", "b1", 1)]


def test_a_job_larger_than_the_zone_is_rejected(bench: RestoredBench) -> None:
    (rejected,) = bench.send(submitted(processes=4))
    assert (type(rejected), rejected.reason) == (JobRejected, "larger_than_the_zone")
    assert rejected.facts == {"ranks": 4, "own_gpus": 3}


def test_a_job_completes_once_all_members_have_ended(bench: RestoredBench) -> None:
    bench.send(submitted(), tick(1))
    assert bench.send(finished("a1", 1)) == []
    (completed,) = bench.send(progressed("a2", 1, WORK_SAMPLES))
    assert (type(completed), completed.samples_done, completed.node) == (JobCompleted, WORK_SAMPLES, "a1")


def test_job_of_lost_node_resumes_from_checkpoint(bench: RestoredBench) -> None:
    bench.send(submitted(), tick(1), started("a1", 1, 0), progressed("a1", 1, 80, complete=False))
    down, changed, *orders = bench.send(offline("a1"))
    assert isinstance(down, NodeStatusChanged)
    assert (changed.reason, changed.facts) == ("node_lost", {"node": "a1", "status": "down"})
    assert released(orders) == [("a1", "node_lost"), ("a2", "node_lost")]
    assert assigned(bench.send(tick(2))) == [], "ranks of the first generation have not ended"
    bench.send(progressed("a2", 1, 80))
    orders = bench.send(tick(3))
    assert assigned(orders) == [("j", "a2", 2), ("j", "b1", 2)]
    assert {each.resume_samples for each in orders if isinstance(each, LineAssigned)} == {80}


def test_a_restarted_node_has_lost_its_ranks(bench: RestoredBench) -> None:
    bench.send(submitted(), online("a1"), tick(1))
    assert LineChanged in types(bench.send(online("a1")))
    bench.send(progressed("a2", 1, 0))
    assert assigned(bench.send(tick(2))) == [("j", "a1", 2), ("j", "a2", 2)]


def test_three_failures_end_a_job(bench: RestoredBench) -> None:
    bench.send(submitted())
    for generation in (1, 2, 3):
        assert len(assigned(bench.send(tick(generation)))) == 2
        outcomes = bench.send(failed("a1", generation, 0, permanent=False))
        assert released(outcomes) == [("a2", "failed" if generation == 3 else "node_lost")]
        last = bench.send(failed("a2", generation, 0, permanent=False))
    (refunded,) = last
    assert (type(refunded), refunded.reason) == (JobRefunded, "run_failed")


def test_a_refused_job_waits_before_it_starts_again(bench: RestoredBench) -> None:
    bench.send(submitted(processes=1), tick(0))
    run = RefusedRun(run_id="1/j", job_id="j")
    bench.send(refused("a1").model_copy(update={"runs": (run,)}))
    assert assigned(bench.send(tick(0.4))) == []
    assert assigned(bench.send(tick(0.8))) == [("j", "a1", 2)]


def test_a_withdrawn_job_ends_with_its_last_rank(bench: RestoredBench) -> None:
    bench.send(submitted(), tick(1))
    assert released(bench.send(withdraw())) == [("a1", "withdrawn"), ("a2", "withdrawn")]
    (ignored,) = bench.send(withdraw())
    assert (type(ignored), ignored.reason) == (EventIgnored, "job_ending")
    assert bench.send(progressed("a1", 1, 40)) == []
    assert types(bench.send(progressed("a2", 1, 40))) == [JobWithdrawn]


def test_a_waiting_job_is_withdrawn_at_once(bench: RestoredBench) -> None:
    bench.send(submitted())
    assert types(bench.send(withdraw())) == [JobWithdrawn]
    assert bench.send(tick(1)) == []


def test_a_retired_node_leaves_without_its_job(bench: RestoredBench) -> None:
    bench.send(submitted(), tick(1))
    assert released(bench.send(NodeRetired(cell="c", node="a1"))) == [
        ("a1", "preempted"),
        ("a2", "preempted"),
    ]
    assert NodeMoved in types(bench.send(progressed("a1", 1, 40), progressed("a2", 1, 40)))
    assert assigned(bench.send(tick(3))) == [("j", "a2", 2), ("j", "b1", 2)]


def test_a_node_that_a_job_needs_stays(bench: RestoredBench) -> None:
    bench.send(submitted(processes=3), NodeRetired(cell="c", node="a1"))
    assert [node for _, node, _ in assigned(bench.send(tick(1)))] == ["a1", "a2", "b1"]
    assert bench.send(tick(2)) == []
    outcomes = bench.send(finished("a1", 1), *(progressed(node, 1, WORK_SAMPLES) for node in ("a2", "b1")))
    assert NodeMoved in types(outcomes)


def test_loaned_server_returns_without_its_job() -> None:
    lending = Lending(headroom=0.1, notice_s=NOTICE_S, borrowers=(Borrower(zone="z"),))
    bench = RestoredBench()
    bench.send(configuration(zones=(zone(policy=POLICY), lender(lending=lending))), tick(0))
    bench.send(reported(0.0), offered("s1"), online("s1"))
    (rejected,) = bench.send(submitted("large", processes=4))
    assert rejected.facts == {"ranks": 4, "own_gpus": 3}
    bench.send(submitted("own", processes=3), submitted("guest", processes=1))
    assert assigned(bench.send(tick(1)))[-1] == ("guest", "s1", 1)
    assert released(bench.send(reclaimed(1, due_slot=6))) == [("s1", "preempted")]
    assert NodeMoved in types(bench.send(progressed("s1", 1, 40, job_id="guest")))
    assert assigned(bench.send(tick(3))) == []


def test_a_silent_run_fails_after_the_timeout(bench: RestoredBench) -> None:
    bench.send(submitted(processes=1), tick(0))
    outcomes = [each for slot in range(1, 12) for each in bench.send(tick(slot))]
    changed = next(each for each in outcomes if isinstance(each, LineChanged))
    assert (changed.reason, changed.facts["case"]) == ("run_failed", "silent")


def test_unknown_report_and_answer_are_ignored(bench: RestoredBench) -> None:
    bench.send(submitted(), tick(1))
    (stale,) = bench.send(progressed("b1", 1, 40))
    assert (type(stale), stale.reason) == (EventIgnored, "stale_report")
    answer = SolveFinished(cell="c", zone="z", request_id="r", solution=None, solve_s=0.1)
    assert [each.reason for each in bench.send(answer)] == ["unknown_solve"]


def test_log_is_independent_of_restores(bench: RestoredBench) -> None:
    bench.send(submitted(), submitted("k"), tick(1), started("a1", 1, 0), progressed("a1", 1, 8, False))
    bench.send(offline("a1"), progressed("a2", 1, 8), tick(2), withdraw("k"), tick(3), finished("a2", 2))
    bench.send(progressed("b1", 2, WORK_SAMPLES), tick(4))
    records = [DecisionRecord(decision.canonical, "log") for decision in bench.decisions]
    verdict = verify(bench.ledger, records)
    assert (verdict.ok, verdict.decisions) == (True, len(records))


def test_job_stays_within_counted_snapshot_bytes() -> None:
    nodes = tuple(Node(id=f"{number}".rjust(128, "n"), gpu_type="fast", tariff="t") for number in range(8))
    bench = RestoredBench()
    bench.send(configuration(zones=(zone(policy=POLICY, nodes=nodes),)), submitted(processes=8), tick(1))
    bench.send(*(progressed(node.id, 1, WORK_SAMPLES) for node in nodes[1:]))
    assert len(bench.described["jobs"]["j"]["done"]) == 7
    packed = msgpack.packb([bench.cell.jobs.state()["live"], bench.zone.state()["jobs"]])
    assert len(packed) <= bench.cell.live_jobs_bytes
