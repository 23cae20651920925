"""Preparation of the next task on the ranks of a pipeline while the present one trains.

All ranks must begin to prepare it, and leave the present task, at the same step. So each rank sends its
progress with the next task along with every step, and acts on the sums, which are the same on all ranks.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from executors.tuner.background_opening import BackgroundOpening
from executors.tuner.pipeline.group import Channel
from executors.tuner.pipeline.partition import Direction
from executors.tuner.pipeline.pool import PipelineRank
from executors.tuner.pipeline.preparation import PreparedTask
from executors.tuner.team import Succession


class Prepares(Protocol):
    """A task that can take over a pipeline."""

    def prepare(self, pipeline: PipelineRank, direction: Direction, channel: Channel) -> PreparedTask:
        """Prepare the task before it is loaded."""


T = TypeVar("T", bound=Prepares)
FindSuccessor = Callable[[], BackgroundOpening[T] | None]
"""Returns the opening of the next task; None while this rank has none."""


class Successions(Generic[T]):
    """Progress of one rank with the next task of its pipeline.

    Attributes:
        stage: progress common to all ranks, as of the last step.
    """

    def __init__(self, pipeline: PipelineRank, direction: Direction, find: "FindSuccessor[T]") -> None:
        """Start without a next task; the present task runs in `direction`."""
        self.stage: Succession = "none"
        self._pipeline = pipeline
        self._direction: Direction = "reverse" if direction == "forward" else "forward"
        self._find = find
        self._preparing: Future[PreparedTask] | None = None

    def signals(self) -> tuple[float, float, float, float]:
        """Signals that this rank sends with a step: whether the next task is known, will not begin, is open,
        is prepared."""
        opening, preparing = self._find(), self._preparing
        if opening is None:
            return 0.0, 0.0, 0.0, 0.0
        is_prepared, has_failed = False, False
        if preparing is not None and preparing.done():
            is_prepared, has_failed = True, preparing.exception() is not None
        in_vain = opening.is_in_vain or has_failed
        return 1.0, float(in_vain), float(opening.is_open), float(is_prepared)

    def receive(self, sums: Sequence[float]) -> None:
        """Receive the sums of all ranks' signals of a step. Ranks may receive the next task at different
        steps."""
        known, in_vain, opened, prepared = sums
        world = self._pipeline.world
        if not known or in_vain:
            self.stage = "none"
            return
        self.stage = "ready" if prepared == world else "coming"
        if opened == world and self._preparing is None:
            successor, pipeline = self._opened(), self._pipeline
            self._preparing = pipeline.loads.submit(
                lambda: successor.prepare(pipeline, self._direction, pipeline.group.background)
            )

    def prepared(self) -> tuple[T, PreparedTask]:
        """Return the next task, if it is `ready`."""
        assert self._preparing is not None, "it is ready"
        return self._opened(), self._preparing.result()

    def settle(self) -> None:
        """Wait for the end of all preparations of the next task."""
        if self._preparing is not None:
            with suppress(Exception):  # the next task raises its own error
                self._preparing.result()

    def _opened(self) -> T:
        opening = self._find()
        assert opening is not None, "it was opened"
        return opening.result()
