"""Long solves: a cell's request to a solver is a decision, and the answer is an event.

A cell never blocks on a solver. It checks the answer against its state at that time. A problem is long and
frequently repeated, so the log has only its digest: the whole problem is sent on another topic, see
`schemas.questions`, and replay computes it again.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PrivateAttr

from schemas.base import Event, Identifier, Outcome, Record
from schemas.kind import AnySolution, Problem


class Question(Record):
    """Digest and sizes of a problem, as in the log."""

    kind: Identifier
    """Kind of the problem."""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """BLAKE2b-256 of its canonical JSON, in hexadecimal."""
    size_bytes: Annotated[int, Field(ge=0)]
    """Length of that JSON."""
    counts: Annotated[dict[Identifier, int], Field(max_length=16)]
    """Sizes of the problem, see `Problem.counts`."""


class SolveRequested(Outcome):
    """A zone requests the solution of a problem."""

    TYPE: ClassVar = "millrace.solve.requested.v1"

    zone: Identifier
    request_id: Identifier
    """Id among this zone's requests."""
    time_limit_s: float
    """Time after which the best solution so far counts."""
    question: Question
    job_ids: tuple[Identifier, ...] = ()
    """Jobs of the problem that began to wait after the zone's last request of this kind."""

    _posed: tuple[Problem, bytes] | None = PrivateAttr(default=None)
    """The problem and its canonical JSON; None for a request that was read from a log."""

    @classmethod
    def of(
        cls, zone: str, request_id: str, time_limit_s: float, problem: Problem, job_ids: Iterable[str] = ()
    ) -> Self:
        """Create a request with its problem."""
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
        """Return the request for the solution of another problem."""
        return self.of(self.zone, self.request_id, self.time_limit_s, problem, self.job_ids)

    @property
    def has_problem(self) -> bool:
        """Whether the problem is known; a request that was read from a log has only its digest."""
        return self._posed is not None

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
        """Compare the fields, without the problem itself."""
        return isinstance(other, SolveRequested) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


class SolveFinished(Event):
    """Answer of a solver to a request within its time."""

    TYPE: ClassVar = "millrace.solve.finished.v1"

    zone: Identifier
    request_id: Identifier
    solution: AnySolution | None
    """Solution; None if none was found in time, or the request was not solved."""
    solve_s: Annotated[float, Field(ge=0, le=31_536_000)]
    """Time that the solver took, by its own clock."""


def digest_of(problem_json: bytes) -> str:
    """Return the digest of a problem, as in the log."""
    return hashlib.blake2b(problem_json, digest_size=32).hexdigest()
