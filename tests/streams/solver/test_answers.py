"""Problems for solvers, and their answers, on Kafka."""

import hashlib
import json
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from schemas.auction.batches import BatchProblem, BatchSolution, SolvedPlan
from schemas.auction.settings import TitanPolicy
from schemas.codec import MAX_VALUE_BYTES, Decision, InvalidRecordError, decode_decision, decode_event
from schemas.documents import json_schemas
from schemas.questions import SolvePosed
from schemas.registry import EVENTS_BY_TOPIC
from schemas.solves import Question, SolveFinished, SolveRequested
from streams.kafka.records import ReadRecord
from streams.replay.replay import DecisionRecord, verify
from streams.solver.answers import PendingSolve, answer_record, answer_to, pending_solve
from streams.worker.publication import Publication
from tests.support.cells import Bench, bid, tick, zone

TIME = "2026-01-02T03:04:05.678Z"


@pytest.fixture
def bench() -> Bench:
    bench = Bench.configured(zones=(zone(policy=TitanPolicy(kind="titan")),))
    bench.send(tick(0), bid(), tick(0.6))
    return bench


def requests(bench: Bench) -> list[Decision]:
    return [decision for decision in bench.decisions if isinstance(decision.outcome, SolveRequested)]


def posed(bench: Bench) -> list[ReadRecord]:
    """Records that a worker publishes for solvers."""
    publication = Publication("p", {})
    sent = [record for decision in bench.decisions for record in publication.records(decision)]
    return [
        ReadRecord(record.topic, 0, 0, None, record.key, record.value, record.headers)
        for record in sent
        if record.topic == "p.solves.requested"
    ]


def test_a_solver_reads_the_request_and_its_problem(bench):
    (decision,), (record,) = requests(bench), posed(bench)
    problem = decision.outcome.problem
    assert [bid.job_id for bid in problem.bids] == ["j"]
    assert pending_solve(record) == PendingSolve(
        "c", decision.outcome, problem, f"solved-{decision.id}-{decision.chain[:16]}"
    )


def test_what_is_posed_fits_its_schema(bench):
    (record,) = posed(bench)
    Draft202012Validator(json_schemas()[SolvePosed.TYPE]).validate(json.loads(record.value))
    SolvePosed.model_validate_json(record.value)
    assert dict(record.headers)["ce_type"].decode() == SolvePosed.TYPE


def test_log_has_digest_instead_of_problem(bench):
    (decision,) = requests(bench)
    encoded = decision.outcome.problem.model_dump_json().encode()
    assert encoded not in decision.canonical
    assert decision.outcome.question == Question(
        kind="batch",
        digest=hashlib.blake2b(encoded, digest_size=32).hexdigest(),
        size_bytes=len(encoded),
        counts={"bids": 1},
    )
    read = decode_decision(decision.canonical)
    assert read == decision
    with pytest.raises(ValueError, match="request batch-1 of zone z was read from a log"):
        _ = read.outcome.problem


def test_replay_proves_what_was_asked(bench):
    """The digest follows from the ledger, so another one in the log is another decision."""
    (decision,) = requests(bench)
    other = decision.outcome.about(decision.outcome.problem.model_copy(update={"relative_gap": 0.5}))
    altered = Decision(decision.id, "c", decision.cause, decision.time_s, other, decision.chain)
    found = [DecisionRecord(each.canonical, each.id) for each in bench.decisions]
    assert verify(bench.ledger, found).ok
    verdict = verify(bench.ledger, [*found[:-1], DecisionRecord(altered.canonical, "altered")])
    assert [difference.kind for difference in verdict.differences] == ["altered"]


@pytest.mark.parametrize("byte", [b"1", b" "])
def test_a_problem_of_another_digest_is_refused(bench, byte):
    (record,) = posed(bench)
    head, between, problem = record.value.partition(b',"problem":')
    altered = problem.replace(b":", b":" + byte, 1)
    with pytest.raises(
        InvalidRecordError, match=r"the problem has not the digest [0-9a-f]{64} of decision c-3-0"
    ):
        pending_solve(replace(record, value=head + between + altered))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(b"\xff", "not a decision and a problem", id="bytes"),
        pytest.param(None, "not a decision and a problem", id="no value"),
        pytest.param(b'{"decision":{"type":"t"}}', "not a decision and a problem", id="no problem"),
        pytest.param(b'{"decision":{"type":"t"},"problem":{}}', "no decision: id", id="no decision"),
    ],
)
def test_record_without_problem_is_refused_with_reason(value, reason):
    with pytest.raises(InvalidRecordError, match=reason):
        pending_solve(ReadRecord("p.solves.requested", 0, 0, None, b"c", value, ()))


def test_a_decision_that_asks_for_nothing_is_refused(bench):
    other = next(each for each in bench.decisions if not isinstance(each.outcome, SolveRequested))
    value = b'{"decision":' + other.canonical + b',"problem":{}}'
    with pytest.raises(InvalidRecordError, match=f"decision {other.id} requests no solution"):
        pending_solve(ReadRecord("p.solves.requested", 0, 0, None, b"c", value, ()))


def test_answer_is_event_of_intake_topic(bench):
    pending = pending_solve(posed(bench)[-1])
    answer = answer_to(pending, None, 1.5)
    sent = answer_record("prefix", pending, answer, TIME)
    envelope = decode_event(sent.value, sent.headers)
    assert (sent.topic, sent.key, sent.partition) == ("prefix.solves.finished", b"c", None)
    assert type(envelope.event) in EVENTS_BY_TOPIC["solves.finished"]
    assert (envelope.event, envelope.time, envelope.source) == (answer, TIME, "solver")


def test_answer_has_one_id_per_request(bench):
    bench.send(bid("later"), tick(1.6))
    ids = [pending_solve(record).event_id for record in posed(bench)]
    assert ids == [pending_solve(record).event_id for record in posed(bench)]
    assert len(set(ids)) == 2


def test_answer_without_solution_decides_bids(bench):
    pending = pending_solve(posed(bench)[-1])
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
    problem = BatchProblem(relative_gap=0.01, first_slot=0, classes=(), bids=())
    asked = SolveRequested.of("z", "batch-1", 1.0, problem)
    return answer_to(PendingSolve("c", asked, problem, "e"), solution, 0.5)


def size(answer: SolveFinished) -> int:
    return len(answer.model_dump_json().encode())


def test_fitting_solution_is_unchanged():
    solution = long_solution(100, 20)
    assert answered(solution).solution is solution


@pytest.mark.parametrize("node_slots", [1, 33, 900])
def test_oversized_solution_keeps_most_plans_that_fit(node_slots):
    solution = long_solution(2_000_000 // (11 * node_slots + 20), node_slots)
    assert len(solution.model_dump_json()) > MAX_VALUE_BYTES
    answer = answered(solution)
    kept = answer.solution
    assert kept.plans == solution.plans[: len(kept.plans)]
    assert kept.status == "feasible"
    longer = kept.model_copy(update={"plans": solution.plans[: len(kept.plans) + 1]})
    assert size(answer) <= MAX_VALUE_BYTES < size(answer.model_copy(update={"solution": longer}))
