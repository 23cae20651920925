"""Longest time of a cell for one event, over events under every policy that are drawn to be slow.

Bids have a search of their own (`slow_bids`), and so have failed nodes and pauses of the clock under an
auction (`decide.measure_setbacks`).
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bench.figures import Measurement, Result, Table
from bench.spine.situations import Situation
from bench.spine.situations.batches import batch_situations
from bench.spine.situations.elastic import elastic_situations, loan_situations
from bench.spine.situations.experts import experts_situations
from bench.spine.situations.merging import merging_situations
from streams.worker.garbage import tune_gc

Situations = Callable[[random.Random, int], Iterator[Situation]]
SITUATIONS: Mapping[str, Situations] = MappingProxyType(
    {
        "experts": experts_situations,
        "elastic": elastic_situations,
        "merging": merging_situations,
        "titan": batch_situations,
        "loans": loan_situations,
    }
)
"""Functions `(rng, size) -> situations` by policy, and for loans."""
DRAWS = 8
"""Number of cells of each policy; in the quick form, one."""
SIZES: Mapping[str, int] = MappingProxyType(
    {
        "experts": 3_000,
        "elastic": 7_400,
        "merging": 6_000,
        "titan": 2_000,
        "loans": 3_000,
    }
)
"""Waiting jobs in a cell, about as many as it has room for; or servers that may be lent."""
_QUICK_PART = 6
"""Divisor of the sizes in the quick form."""
REFERENCE_MS = 2.3
"""Time of `calibration_s` on an otherwise idle core of the machine on which the gate was set."""
_TIMES = 4
"""Number of times that a slow event is timed. The shortest counts, because other load only adds time."""
_SLOW_MS = 30.0
"""An event that takes less at first is not timed again."""
_PIECES = 8
"""Pieces of one calibration, which then takes about as long as a slow event on the same busy machine."""


class _SlowEvent(NamedTuple):
    policy: str
    what: str
    event_ms: float
    """Processor time of the event."""
    calibrated_ms: float
    """Processor time on the reference machine."""


def measure_slow_events(quick: bool, seed: int) -> Result:
    """Draw cells under each policy, time their slowest events, and return the worst.

    Elastic zones are under all schemes but the rival `pollux`. Its search takes longer, since its bound
    leaves the comparisons of `bench elastic` unaffected.
    """
    tune_gc()
    rows = [row for name in SITUATIONS for row in _rows(name, quick, seed)]
    rows.sort(key=lambda row: -row.calibrated_ms)
    worst = rows[0]
    note = (
        f"processor time of the slowest of {len(rows)} events drawn to be slow under {len(SITUATIONS)} "
        f"policies, relative to a calibration in the same run ({worst.event_ms:.1f} ms as measured): "
        f"{worst.policy}, {worst.what}"
    )
    return Result(
        (Measurement("event_worst_ms", worst.calibrated_ms, note, len(rows)),),
        (Table("slow_events", [row._asdict() for row in rows]),),
    )


def _rows(name: str, quick: bool, seed: int) -> list[_SlowEvent]:
    """Time the events of one kind."""
    draws = 1 if quick else DRAWS
    size = SIZES[name] // (_QUICK_PART if quick else 1)
    return [
        _row(situation)
        for number in range(draws)
        for situation in SITUATIONS[name](random.Random(f"slow events/{name}/{seed}/{number}"), size)
    ]


def _row(situation: Situation) -> _SlowEvent:
    unit_s, event_s = calibration_s(), situation.time_s()
    times = 1
    while times < _TIMES and event_s / unit_s * REFERENCE_MS >= _SLOW_MS:
        unit_s, event_s = min(unit_s, calibration_s()), min(event_s, situation.time_s())
        times += 1
    return _SlowEvent(situation.policy, situation.what, 1_000 * event_s, event_s / unit_s * REFERENCE_MS)


def calibration_s() -> float:
    """Return the processor time of a fixed piece of work, now."""
    return sum(_piece_s() for _ in range(_PIECES)) / _PIECES


def _piece_s() -> float:
    """Do work like a cell: small objects, dictionaries, small arrays."""
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
