"""Problems for solvers, and the records that answer them. Pure."""

from dataclasses import dataclass

from schemas.codec import MAX_VALUE_BYTES, Decision, Envelope
from schemas.kind import Problem, Solution
from schemas.questions import decode_posed
from schemas.solves import SolveFinished, SolveRequested
from schemas.topics import SOLVES_FINISHED, topic_name
from streams.kafka.records import ReadRecord, SentRecord

SOURCE = "solver"
_CHAIN_DIGITS = 16


@dataclass(frozen=True)
class PendingSolve:
    """Request without an answer, and its problem."""

    cell: str
    request: SolveRequested
    problem: Problem
    event_id: str
    """Id of the answer. It follows from the request, so that a repeated answer is one event for the cell. It
    contains a part of the decision's chain, which is unknown before the request: no earlier event can have
    the id."""


def pending_solve(record: ReadRecord) -> PendingSolve:
    """Return the request in a record of the topic of problems.

    Raises:
        InvalidRecordError: the record is invalid, such as a problem with another digest than the decision's.
    """
    posed = decode_posed(record.value)
    return PendingSolve(posed.decision.cell, posed.request, posed.problem, _event_id(posed.decision))


def answer_to(pending: PendingSolve, solution: Solution | None, solve_s: float) -> SolveFinished:
    """Return the answer to a request, with as much of the solution as fits into an event."""
    answer = SolveFinished(
        cell=pending.cell,
        zone=pending.request.zone,
        request_id=pending.request.request_id,
        solution=solution,
        solve_s=solve_s,
    )
    excess_bytes = len(answer.model_dump_json().encode()) - MAX_VALUE_BYTES
    if solution is None or excess_bytes <= 0:
        return answer
    return answer.model_copy(update={"solution": solution.shortened(excess_bytes)})


def answer_record(topic_prefix: str, pending: PendingSolve, answer: SolveFinished, time: str) -> SentRecord:
    """Return the event that answers a request, for the topic that intake reads. `time` is RFC 3339."""
    envelope = Envelope(pending.event_id, SOURCE, time, answer)
    topic = topic_name(topic_prefix, SOLVES_FINISHED)
    return SentRecord(topic, pending.cell.encode(), envelope.value, envelope.headers())


def _event_id(decision: Decision) -> str:
    return f"solved-{decision.id}-{decision.chain[:_CHAIN_DIGITS]}"
