"""Records of problems for solvers: each with a copy of the decision that requests its solution."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import TypeAdapter, ValidationError

from schemas.base import Record
from schemas.codec import Decision, DecisionEnvelope, InvalidRecordError, decode_decision, describe
from schemas.kind import AnyProblem, Problem
from schemas.solves import SolveRequested, digest_of

_HEAD, _BETWEEN, _TAIL = b'{"decision":', b',"problem":', b"}"
_PROBLEMS: TypeAdapter[Problem] = TypeAdapter(AnyProblem)


class SolvePosed(Record):
    """A problem for a solver, and the decision that requests its solution."""

    TYPE: ClassVar = "millrace.solve.posed.v1"

    decision: DecisionEnvelope
    """Decision of the log, a `millrace.solve.requested.v1`."""
    problem: AnyProblem
    """Problem in canonical JSON, whose digest is in the decision."""


@dataclass(frozen=True)
class Posed:
    """A problem that was read, with its decision and its request."""

    decision: Decision
    request: SolveRequested
    problem: Problem


def encode_posed(decision: Decision, request: SolveRequested) -> bytes:
    """Return the value of the record that poses a decision's problem.

    Raises:
        ValueError: the request was read from a log, without its problem.
    """
    return _HEAD + decision.canonical + _BETWEEN + request.problem_json + _TAIL


def decode_posed(value: bytes | None) -> Posed:
    """Read what `encode_posed` wrote.

    Raises:
        InvalidRecordError: the record is invalid, for example with a problem that has not the decision's
        digest.
    """
    # No text in the decision contains these bytes, since its quotation marks would be escaped.
    head, between, rest = (value or b"").partition(_BETWEEN)
    if not head.startswith(_HEAD) or not between or not rest.endswith(_TAIL):
        raise InvalidRecordError("not a decision and a problem in canonical form")
    decision = decode_decision(head.removeprefix(_HEAD))
    request = decision.outcome
    if not isinstance(request, SolveRequested):
        raise InvalidRecordError(f"decision {decision.id} requests no solution: it is {request.TYPE}")
    encoded = rest.removesuffix(_TAIL)
    if digest_of(encoded) != request.question.digest:
        raise InvalidRecordError(
            f"the problem has not the digest {request.question.digest} of decision {decision.id}"
        )
    try:
        return Posed(decision, request, _PROBLEMS.validate_json(encoded))
    except ValidationError as error:
        raise InvalidRecordError(f"the problem of decision {decision.id}: {describe(error)}") from None
