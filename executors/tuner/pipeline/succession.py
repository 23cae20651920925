"""How the task that follows on the ranks of a pipeline is prepared beside the one that still trains.

All ranks must begin to prepare it, and leave the old task, at the same step. So each says with every step
what it knows of the next task, and acts on what all have said: the sums are the same on all of them.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from executors.tuner.openings import Opening
from executors.tuner.pipeline.group import Channel
from executors.tuner.pipeline.partition import Direction
from executors.tuner.pipeline.pool import Pipeline
from executors.tuner.pipeline.preparation import PreparedTask
from executors.tuner.team import Succession


class Prepares(Protocol):
    """A task that can take a pipeline over."""

    def prepare(self, pipeline: Pipeline, direction: Direction, channel: Channel) -> PreparedTask:
        """Do all for it that can be done before it is loaded."""


T = TypeVar("T", bound=Prepares)
FindSuccessor = Callable[[], Opening[T] | None]
"""The opening of the next task; None while this rank knows of none."""


class Successions(Generic[T]):
    """What one rank knows of the next task of its pipeline.

    Attributes:
        stage: what all ranks know, as of the last step.
    """

    def __init__(self, pipeline: Pipeline, direction: Direction, find: "FindSuccessor[T]") -> None:
        """Nothing is known yet; the present task runs in `direction`."""
        self.stage: Succession = "none"
        self._pipeline = pipeline
        self._direction: Direction = "reverse" if direction == "forward" else "forward"
        self._find = find
        self._preparing: Future[PreparedTask] | None = None

    def signals(self) -> tuple[float, float, float, float]:
        """What this rank says with a step: whether it knows the next task, and whether that is in vain, has
        been opened, and has been prepared."""
        opening, preparing = self._find(), self._preparing
        if opening is None:
            return 0.0, 0.0, 0.0, 0.0
        is_prepared, has_failed = False, False
        if preparing is not None and preparing.done():
            is_prepared, has_failed = True, preparing.exception() is not None
        in_vain = opening.is_in_vain or has_failed
        return 1.0, float(in_vain), float(opening.is_open), float(is_prepared)

    def hear(self, sums: Sequence[float]) -> None:
        """What all ranks have said with a step, added up. Some may have learned of the next task before
        others."""
        known, in_vain, opened, prepared = sums
        world = self._pipeline.world
        if not known or in_vain:
            self.stage = "none"
            return
        self.stage = "ready" if prepared == world else "coming"
        if opened == world and self._preparing is None:
            successor, pipeline = self._opened(), self._pipeline
            self._preparing = pipeline.loads.submit(
                lambda: successor.prepare(pipeline, self._direction, pipeline.group.beside)
            )

    def prepared(self) -> tuple[T, PreparedTask]:
        """The next task, where it is `ready`."""
        assert self._preparing is not None, "it is ready"
        return self._opened(), self._preparing.result()

    def settle(self) -> None:
        """Wait until nothing is done for the next task any more."""
        if self._preparing is not None:
            with suppress(Exception):  # the next task will see for itself
                self._preparing.result()

    def _opened(self) -> T:
        opening = self._find()
        assert opening is not None, "it was opened"
        return opening.result()
