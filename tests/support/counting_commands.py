"""Commands to the counting runner."""

from typing import ClassVar

from schemas.base import Identifier, RunId
from schemas.commands import Command


class CountOrdered(Command):
    """Count to a number."""

    TYPE: ClassVar = "test.count.ordered.v1"
    RUNNER: ClassVar = "counting"

    run_id: RunId
    job_id: Identifier
    goal: int
    start: int = 0
    fails_at: int | None = None
    """Count at which the runner itself fails; with a run that fails, it continues."""


class CountCancelled(Command):
    """Stop counting."""

    TYPE: ClassVar = "test.count.cancelled.v1"
    RUNNER: ClassVar = "counting"
    CANCELS: ClassVar = True

    job_id: Identifier
