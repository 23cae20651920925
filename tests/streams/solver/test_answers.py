"""Which records ask for a solve, and what their answers look like on Kafka."""

import pytest

from schemas.auction.batches import BatchSolution, SolvedPlan
from schemas.auction.settings import TitanPolicy
from schemas.codec import MAX_VALUE_BYTES, Decision, InvalidRecordError, decode_event
from schemas.registry import EVENTS_BY_TOPIC
from schemas.solves import SolveFinished, SolveRequested
from schemas.topics import DECISIONS
from streams.kafka.records import ReadRecord
from streams.solver.answers import PendingSolve, answer_record, answer_to, pending_solve
from tests.support.cells import Bench, bid, tick, zone

TIME = "2026-01-02T03:04:05.678Z"


@pytest.fixture
def bench() -> Bench:
    bench = Bench.configured(zones=(zone(policy=TitanPolicy(kind="titan")),))
    bench.send(tick(0), bid(), tick(0.6))
    return bench


def record(decision: Decision, headers=None) -> ReadRecord:
    headers = decision.headers() if headers is None else headers
    return ReadRecord(DECISIONS, 0, 0, None, decision.cell.encode(), decision.canonical, headers)


def test_of_a_cells_decisions_its_requests_are_taken_alone(bench):
    taken = [pending_solve(record(decision)) for decision in bench.decisions]
    wanted = [isinstance(decision.outcome, SolveRequested) for decision in bench.decisions]
    assert [pending is not None for pending in taken] == wanted
    assert wanted.count(True) == 1
    assert len(wanted) > 1
    assert taken[wanted.index(True)] == PendingSolve(
        "c", bench.decisions[-1].outcome, f"solved-c-3-0-{bench.decisions[-1].chain[:16]}"
    )


def test_a_decision_without_headers_is_known_by_its_value(bench):
    without = [pending_solve(record(decision, headers=())) for decision in bench.decisions]
    assert without == [pending_solve(record(decision)) for decision in bench.decisions]


@pytest.mark.parametrize(
    ("value", "headers", "reason"),
    [
        pytest.param(b"\xff", (), "not JSON", id="bytes"),
        pytest.param(None, (), "not JSON", id="no value"),
        pytest.param(b'{"type":"t"}', (), "no decision: id: Field required", id="no decision"),
        pytest.param(b"{}", [("ce_type", b"t")], "unknown decision type b't'", id="an unknown type"),
        pytest.param(b"{}", [("ce_type", b"\xff")], "unknown decision type", id="a type that is no text"),
        pytest.param(b"{}", [("ce_type", SolveRequested.TYPE.encode())], "no decision", id="no request"),
    ],
)
def test_a_record_that_is_no_decision_is_refused_with_the_reason(value, headers, reason):
    with pytest.raises(InvalidRecordError, match=reason):
        pending_solve(ReadRecord(DECISIONS, 0, 0, None, b"c", value, headers))


def test_an_answer_is_the_event_that_intake_reads_on_its_topic(bench):
    pending = pending_solve(record(bench.decisions[-1]))
    answer = answer_to(pending, None, 1.5)
    sent = answer_record("prefix", pending, answer, TIME)
    envelope = decode_event(sent.value, sent.headers)
    assert (sent.topic, sent.key, sent.partition) == ("prefix.solves.finished", b"c", None)
    assert type(envelope.event) in EVENTS_BY_TOPIC["solves.finished"]
    assert (envelope.event, envelope.time, envelope.source) == (answer, TIME, "solver")


def test_an_answer_given_twice_has_one_id_and_other_requests_have_others(bench):
    bench.send(bid("later"), tick(1.6))
    pendings = [pending_solve(record(decision)) for decision in bench.decisions]
    ids = [pending.event_id for pending in pendings if pending is not None]
    again = [pending_solve(record(decision)) for decision in bench.decisions]
    assert ids == [pending.event_id for pending in again if pending is not None]
    assert len(set(ids)) == 2


def test_an_answer_without_solution_decides_the_bids_at_once(bench):
    pending = pending_solve(record(bench.decisions[-1]))
    (rejected,) = bench.send(answer_to(pending, None, 0.0))
    assert (rejected.job_id, rejected.reason) == ("j", "solver_found_nothing")


def long_solution(plans: int, node_slots: int) -> BatchSolution:
    many = tuple(
        SolvedPlan(
            job_id=f"j{number}", node_slots=tuple((slot, f"n{number % 7}") for slot in range(node_slots))
        )
        for number in range(plans)
    )
    return BatchSolution(status="optimal", plans=many, bound_micros=None)


def answered(solution: BatchSolution) -> SolveFinished:
    asked = SolveRequested.model_construct(zone="z", request_id="batch-1")
    return answer_to(PendingSolve("c", asked, "e"), solution, 0.5)


def size(answer: SolveFinished) -> int:
    return len(answer.model_dump_json().encode())


def test_a_solution_that_fits_into_an_event_stays_as_it_is():
    solution = long_solution(100, 20)
    assert answered(solution).solution is solution


@pytest.mark.parametrize("node_slots", [1, 33, 900])
def test_of_a_solution_too_long_for_an_event_the_most_plans_that_fit_are_kept(node_slots):
    solution = long_solution(2_000_000 // (11 * node_slots + 20), node_slots)
    assert len(solution.model_dump_json()) > MAX_VALUE_BYTES
    answer = answered(solution)
    kept = answer.solution
    assert kept.plans == solution.plans[: len(kept.plans)]
    assert kept.status == "feasible"
    longer = kept.model_copy(update={"plans": solution.plans[: len(kept.plans) + 1]})
    assert size(answer) <= MAX_VALUE_BYTES < size(answer.model_copy(update={"solution": longer}))
