"""The longest that a cell takes for one event, of events under every policy that were drawn to be slow.

Bids have a search of their own (`slow_bids`), and so have nodes that are lost and clocks that stood still
under an auction (`decide.measure_setbacks`).
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bench.figures import Measurement, Result, Table
from bench.spine.situations.batches import batch_situations
from bench.spine.situations.elastic import elastic_situations, pollux_situations
from bench.spine.situations.experts import experts_situations
from bench.spine.situations.merging import merging_situations
from bench.spine.situations.situation import Situation
from streams.worker.garbage import look_for_less_garbage

POLLUX = "elastic, pollux"
Situations = Callable[[random.Random, int], Iterator[Situation]]
SITUATIONS: Mapping[str, Situations] = MappingProxyType(
    {
        "experts": experts_situations,
        "elastic": elastic_situations,
        POLLUX: pollux_situations,
        "merging": merging_situations,
        "titan": batch_situations,
    }
)
"""By policy, and by scheme where a policy has one with a search of its own: `(rng, jobs) -> situations`."""
DRAWS = 8
"""Cells of each policy."""
QUICK_DRAWS = 1
JOBS: Mapping[str, int] = MappingProxyType(
    {"experts": 3_000, "elastic": 7_400, POLLUX: 7_400, "merging": 6_000, "titan": 2_000}
)
"""That wait in a cell, about as many as it has room for."""
_QUICK_JOBS = 6
"""In the quick form, this part of them."""
REFERENCE_MS = 2.3
"""Time that `_calibration_s` takes on an otherwise idle core of the machine that the gate was set on."""
_CALIBRATIONS = 3
_PIECES = 8
"""Pieces of one calibration, which then takes about as long as a slow event on the same busy machine."""


class _Row(NamedTuple):
    policy: str
    what: str
    event_ms: float
    """Processor time."""
    calibrated_ms: float
    """The same on the reference machine."""


def measure_slow_events(quick: bool, seed: int) -> Result:
    """Draw cells under each policy, time their slowest events, and return the worst.

    Rounds under `pollux` have a figure of their own: the search of this rival scheme is bounded where the
    comparisons of `bench elastic` are not affected, which takes longer than the bound of the others.
    """
    look_for_less_garbage()
    draws, part = (QUICK_DRAWS, _QUICK_JOBS) if quick else (DRAWS, 1)
    rows = {
        name: [
            _row(situation)
            for number in range(draws)
            for situation in situations(
                random.Random(f"slow events/{name}/{seed}/{number}"), JOBS[name] // part
            )
        ]
        for name, situations in SITUATIONS.items()
    }
    of_pollux = rows.pop(POLLUX)
    ours = [row for of_policy in rows.values() for row in of_policy]
    ordered = sorted((*ours, *of_pollux), key=_calibrated_ms, reverse=True)
    return Result(
        (
            _worst("event_worst_ms", ours, f"under {len(rows)} policies"),
            _worst("event_worst_pollux_ms", of_pollux, "in elastic zones under the scheme pollux"),
        ),
        (Table("slow_events", _Row._fields, ordered),),
    )


def _calibrated_ms(row: _Row) -> float:
    return row.calibrated_ms


def _worst(name: str, rows: Sequence[_Row], where: str) -> Measurement:
    worst = max(rows, key=_calibrated_ms)
    note = (
        f"processor time of the slowest of {len(rows)} events drawn to be slow {where}, relative to a "
        f"calibration in the same run ({worst.event_ms:.1f} ms as measured): {worst.policy}, {worst.what}"
    )
    return Measurement(name, worst.calibrated_ms, note, len(rows))


def _row(situation: Situation) -> _Row:
    before_s = _calibration_s()
    event_s = situation.time_s()
    calibration_s = min(before_s, _calibration_s())
    calibrated_ms = event_s / calibration_s * REFERENCE_MS
    return _Row(situation.policy, situation.what, 1_000 * event_s, calibrated_ms)


def _calibration_s() -> float:
    """Processor time of a fixed piece of work, the shortest of a few times."""
    return min(sum(_piece_s() for _ in range(_PIECES)) / _PIECES for _ in range(_CALIBRATIONS))


def _piece_s() -> float:
    """Work such as a cell does: small objects, dictionaries, small arrays."""
    began_s = time.process_time()
    rng = random.Random(0)
    found = {f"job{number}": (rng.random(), number) for number in range(3_000)}
    ordered = sorted(found.items(), key=lambda item: item[1])
    small = np.arange(64, dtype=np.float64)
    total = 0.0
    for number in range(300):
        total += float((small * number).cumsum()[-1])
    assert ordered
    assert total > 0
    return time.process_time() - began_s
