"""The duration of a task's steps in which it was alone on its device."""

from typing import cast

from pydantic import ValidationError

from schemas.profiles import LEAST_STEP_S, MeasuredSteps, Precision


class LoneSteps:
    """Sums of a task's steps alone, of whole micro-batches, since the last report.

    The first step of a run is left out: it prepares kernels and memory.
    """

    def __init__(self, batch_size: int) -> None:
        """Begin before the first step; `batch_size` is the number of sequences of a whole micro-batch."""
        self._batch_size = batch_size
        self._samples_done: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._duration_s, self._tokens, self._steps = 0.0, 0, 0

    def add(self, duration_s: float, tokens: int, samples_done: int) -> None:
        """Add a step alone that ended at `samples_done` samples of the task."""
        before, self._samples_done = self._samples_done, samples_done
        if before is None or samples_done - before != self._batch_size or duration_s < LEAST_STEP_S:
            return
        self._duration_s += duration_s
        self._tokens += tokens
        self._steps += 1

    def pop(self, precision: str) -> MeasuredSteps | None:
        """Return the mean of the steps, and start the next sums; None without steps to report."""
        if not self._steps:
            return None
        samples = self._steps * self._batch_size
        try:
            return MeasuredSteps(
                micro_batch_size=self._batch_size,
                step_s=self._duration_s / self._steps,
                tokens_per_sample=self._tokens / samples,
                steps=self._steps,
                precision=cast(Precision, precision),
            )
        except ValidationError:
            # A clock that jumps, or a precision without a name here: a measurement is optional.
            return None
        finally:
            self._begin()
