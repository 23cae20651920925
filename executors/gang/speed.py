"""The speed of a job's ranks together, as measured."""

MAX_SAMPLES_PER_S = 1e9
"""Highest speed that a report can hold."""


class MeasuredSpeed:
    """Speed since the last report, or that of the last one if no step has ended since.

    The first step of a generation does not count: its shares rest on estimates, and it warms up.
    """

    def __init__(self) -> None:
        self._has_begun = False
        self._samples, self._elapsed_s = 0, 0.0
        self._newest: float | None = None

    def note(self, samples: int, step_s: float) -> None:
        """Count a step.

        Args:
            samples: samples of all ranks.
            step_s: its time, waits for other ranks included.
        """
        if self._has_begun:
            self._samples += samples
            self._elapsed_s += step_s
        self._has_begun = True

    def newest(self) -> float | None:
        """Return the newest speed (samples/s), and begin a new interval; None before it is measured."""
        if self._samples > 0 and self._elapsed_s > 0:
            self._newest = min(self._samples / self._elapsed_s, MAX_SAMPLES_PER_S)
            self._samples, self._elapsed_s = 0, 0.0
        return self._newest
