"""Long solves: a cell's request to a solver is a decision, and the answer is an event.

A cell never blocks on a solver. It checks the answer against its state at that time. The problem itself is as
long as there are jobs, and asked again and again, so the log has only its digest: the whole travels beside
the log, see `schemas.questions`, and replay computes it again.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PrivateAttr

from schemas.base import Event, Identifier, Outcome, Record
from schemas.kind import AnySolution, Problem


class Question(Record):
    """Record of a problem in the log."""

    kind: Identifier
    """Kind of the problem."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """BLAKE2b-256 of its canonical JSON, in hexadecimal."""
    size_bytes: Annotated[int, Field(ge=0)]
    """Length of that JSON."""
    counts: Annotated[dict[Identifier, int], Field(max_length=16)]
    """Sizes of the problem, see `Problem.counts`."""


class SolveRequested(Outcome):
    """A zone asks for the solution of a problem."""

    TYPE: ClassVar = "millrace.solve.requested.v1"

    zone: Identifier
    request_id: Identifier
    """Id among this zone's requests."""
    time_limit_s: float
    """After so long the best solution found counts."""
    question: Question
    job_ids: tuple[Identifier, ...] = ()
    """Jobs that began to wait since the zone's last request of this kind, and are part of the problem."""

    _posed: tuple[Problem, bytes] | None = PrivateAttr(default=None)
    """The problem and its canonical JSON; None of a request that was read from a log."""

    @classmethod
    def of(
        cls, zone: str, request_id: str, time_limit_s: float, problem: Problem, job_ids: Iterable[str] = ()
    ) -> Self:
        """Create a request that has its problem at hand."""
        encoded = problem.model_dump_json().encode()
        request = cls(
            zone=zone,
            request_id=request_id,
            time_limit_s=time_limit_s,
            question=Question(
                kind=problem.kind,
                digest=digest_of(encoded),
                size_bytes=len(encoded),
                counts=dict(problem.counts),
            ),
            job_ids=tuple(job_ids),
        )
        request._posed = problem, encoded
        return request

    def about(self, problem: Problem) -> Self:
        """Return the same request for the solution of another problem."""
        return self.of(self.zone, self.request_id, self.time_limit_s, problem, self.job_ids)

    @property
    def problem(self) -> Problem:
        """The problem.

        Raises:
            ValueError: the request was read from a log, which has only the problem's digest.
        """
        return self._at_hand[0]

    @property
    def problem_json(self) -> bytes:
        """The problem's canonical JSON.

        Raises:
            ValueError: see `problem`.
        """
        return self._at_hand[1]

    @property
    def _at_hand(self) -> tuple[Problem, bytes]:
        if self._posed is None:
            raise ValueError(
                f"request {self.request_id} of zone {self.zone} was read from a log, which has only the "
                "digest of its problem"
            )
        return self._posed

    def __eq__(self, other: Any) -> bool:
        """Compare what the log has of both."""
        return isinstance(other, SolveRequested) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


class SolveFinished(Event):
    """Answer of a solver to a request within its time."""

    TYPE: ClassVar = "millrace.solve.finished.v1"

    zone: Identifier
    request_id: Identifier
    solution: AnySolution | None
    """None if nothing was found in time, or the request was not solved."""
    solve_s: Annotated[float, Field(ge=0, le=31_536_000)]
    """Time that the solver took, by its own clock."""


def digest_of(problem_json: bytes) -> str:
    """The digest by which the log names a problem."""
    return hashlib.blake2b(problem_json, digest_size=32).hexdigest()
