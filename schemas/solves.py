"""Long solves: a cell's request to a solver is a decision, and the answer is an event.

A cell never blocks on a solver. It asks with the whole problem, and checks the answer against its state at
that time.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from schemas.base import Event, Identifier, Outcome
from schemas.kinds import AnyProblem, AnySolution


class SolveRequested(Outcome):
    """A zone asks for the solution of a problem."""

    TYPE: ClassVar = "millrace.solve.requested.v1"

    zone: Identifier
    request_id: Identifier
    """Of this zone's requests."""
    time_limit_s: float
    """After so long the best solution found counts."""
    problem: AnyProblem


class SolveFinished(Event):
    """What a solver found for a request within its time."""

    TYPE: ClassVar = "millrace.solve.finished.v1"

    zone: Identifier
    request_id: Identifier
    solution: AnySolution | None
    """None if nothing was found in time, or the request was not solved."""
    solve_s: Annotated[float, Field(ge=0, le=31_536_000)]
    """What the solver took, by its own clock."""
