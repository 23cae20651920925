"""The decisions that ask for a solve, and the records that answer them. Pure."""

from dataclasses import dataclass

from schemas.codec import MAX_VALUE_BYTES, Decision, Envelope, InvalidRecordError, decode_decision
from schemas.kind import Solution
from schemas.registry import DECISION_TYPES
from schemas.solves import SolveFinished, SolveRequested
from schemas.topics import SOLVES_FINISHED, topic_name
from streams.kafka.records import ReadRecord, SentRecord

SOURCE = "solver"
_CHAIN_DIGITS = 16


@dataclass(frozen=True)
class PendingSolve:
    """A request that waits for its answer, and the decision that it is."""

    cell: str
    request: SolveRequested
    event_id: str
    """Of the answer. It follows from the request, so that an answer given twice is one event to the cell, and
    holds a part of the decision's chain, which is unknown before the request is made: no event sent earlier
    can bear the id."""


def pending_solve(record: ReadRecord) -> PendingSolve | None:
    """The request in a record of the decisions topic; None where it is another decision.

    Raises:
        InvalidRecordError: it is no decision, or of no known type.
    """
    kind = dict(record.headers).get("ce_type")
    if kind is not None and kind != SolveRequested.TYPE.encode():
        if kind.decode(errors="replace") in DECISION_TYPES:
            return None
        raise InvalidRecordError(f"unknown decision type {kind[:128]!r}")
    decision = decode_decision(record.value or b"")
    if not isinstance(decision.outcome, SolveRequested):
        return None
    return PendingSolve(decision.cell, decision.outcome, _event_id(decision))


def answer_to(pending: PendingSolve, solution: Solution | None, solve_s: float) -> SolveFinished:
    """The answer to a request, with as much of the solution as fits into an event."""
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
    """The event that answers a request, for the topic that intake reads. `time` is RFC 3339."""
    envelope = Envelope(pending.event_id, SOURCE, time, answer)
    topic = topic_name(topic_prefix, SOLVES_FINISHED)
    return SentRecord(topic, pending.cell.encode(), envelope.value, envelope.headers())


def _event_id(decision: Decision) -> str:
    return f"solved-{decision.id}-{decision.chain[:_CHAIN_DIGITS]}"
