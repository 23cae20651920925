"""A fixed piece of work that is timed next to the measurements of a benchmark: the ratio of both can be
gated.

Machines differ, and a shared one differs from hour to hour. A *unit* is the time of the piece: about a
millisecond, partly in the interpreter and partly in compiled code, as in a decision.
"""

import json
import statistics
import time

import numpy as np
from numba import njit

from solvers.compiled import Floats

_RECORDS = 60
_ROUNDS = 160
_ELEMENTS = 2_048
_DOCUMENT = {
    "cell": "bench",
    "job_id": "calibration",
    "work_samples": 60_000,
    "speed_samples_per_s": {"A100": 6.0, "A40": 2.25},
    "terms": {"kind": "bid", "bid_micros": 12_345_678, "deadline_s": 7_200.0},
}


class Calibration:
    """Collects samples of the unit; each sample takes about one unit."""

    def __init__(self) -> None:
        self._values = np.linspace(0.5, 1.5, _ELEMENTS)
        self._cpu_s: list[float] = []
        self._wall_s: list[float] = []
        _piece(self._values)

    def sample(self, times: int = 1) -> None:
        """Time the piece now: close to a measurement, in the same state of the machine."""
        for _ in range(times):
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            _piece(self._values)
            self._cpu_s.append(time.thread_time() - cpu_s)
            self._wall_s.append(time.perf_counter() - wall_s)

    @property
    def cpu_s(self) -> float:
        """Median unit in CPU time of the thread: for the work of one thread, also on a busy machine."""
        return statistics.median(self._cpu_s)

    @property
    def wall_s(self) -> float:
        """Median unit by the wall clock: for work that also waits for other processes."""
        return statistics.median(self._wall_s)

    def note(self) -> str:
        """Return the explanation of units, for a note on a figure."""
        return f"in units of {1_000 * self.cpu_s:.3g} ms of CPU time, {len(self._cpu_s)} samples in this run"

    def wall_note(self) -> str:
        """Return the explanation of units for a note on a figure of elapsed time."""
        return f"in units of {1_000 * self.wall_s:.3g} ms, {len(self._wall_s)} samples in this run"


def calibrated(samples: int = 50) -> Calibration:
    """Return a calibration with some samples."""
    calibration = Calibration()
    calibration.sample(samples)
    return calibration


def _piece(values: Floats) -> float:
    counts: dict[str, int] = {}
    for number in range(_RECORDS):
        text = json.dumps({**_DOCUMENT, "number": number})
        for name in json.loads(text):
            counts[name] = counts.get(name, 0) + 1
    return _mixed(values, _ROUNDS) + len(counts)


@njit(nogil=True)
def _mixed(values: Floats, rounds: int) -> float:
    """Add values in a chain of dependent steps, so that no vector unit shortens it."""
    state = 1.0
    for _ in range(rounds):
        for index in range(values.size):
            state = state * 0.5 + values[index]
    return state
