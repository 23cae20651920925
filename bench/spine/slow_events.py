"""Longest time of a cell for one event, over events under every policy that are drawn to be slow.

Bids have a search of their own (`slow_bids`), and so have failed nodes and pauses of the clock under an
auction (`decide.measure_setbacks`).
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from bench.figures import Measurement, Result, Table
from bench.spine.situations import Situation
from bench.spine.situations.batches import batch_situations
from bench.spine.situations.elastic import elastic_situations, pollux_situations
from bench.spine.situations.experts import experts_situations
from bench.spine.situations.loans import loan_situations
from bench.spine.situations.merging import merging_situations
from bench.spine.situations.zones import zone_situations
from streams.worker.garbage import tune_gc

POLLUX = "elastic, pollux"
ZONES = "zones"
Situations = Callable[[random.Random, int], Iterator[Situation]]
SITUATIONS: Mapping[str, Situations] = MappingProxyType(
    {
        "experts": experts_situations,
        "elastic": elastic_situations,
        POLLUX: pollux_situations,
        "merging": merging_situations,
        "titan": batch_situations,
        "loans": loan_situations,
        ZONES: zone_situations,
    }
)
"""Functions `(rng, size) -> situations` by policy, by scheme if it has a figure of its own, for loans, and
for configured zones."""
DRAWS = 8
"""Number of cells of each policy. In the quick form, and for configured zones, which have no other random
values: one."""
SIZES: Mapping[str, int] = MappingProxyType(
    {
        "experts": 3_000,
        "elastic": 7_400,
        POLLUX: 7_400,
        "merging": 6_000,
        "titan": 2_000,
        "loans": 3_000,
        ZONES: 5_000,
    }
)
"""Waiting jobs in a cell, about as many as it has room for; servers that may be lent; nodes of a configured
zone."""
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


class _Row(NamedTuple):
    policy: str
    what: str
    event_ms: float
    """Processor time of the event."""
    calibrated_ms: float
    """Processor time on the reference machine."""


def measure_slow_events(quick: bool, seed: int) -> Result:
    """Draw cells under each policy, time their slowest events, and return the worst.

    Two kinds have figures of their own, without a goal. The search of the rival scheme `pollux` is bounded so
    that the comparisons of `bench elastic` are not affected, which takes longer than the bound of the others.
    A configured zone leads to two decisions for each node that joins, and operators send it rarely.
    """
    tune_gc()
    rows = {name: _rows(name, quick, seed) for name in SITUATIONS}
    of_pollux, of_zones = rows.pop(POLLUX), rows.pop(ZONES)
    ours = [row for of_policy in rows.values() for row in of_policy]
    ordered = sorted((*ours, *of_pollux, *of_zones), key=_calibrated_ms, reverse=True)
    return Result(
        (
            _worst("event_worst_ms", ours, f"under {len(rows)} policies"),
            _worst("event_worst_pollux_ms", of_pollux, "in elastic zones under the scheme pollux"),
            _worst("event_worst_zone_ms", of_zones, "that configure zones of many nodes"),
        ),
        (Table("slow_events", _Row._fields, ordered),),
    )


def _rows(name: str, quick: bool, seed: int) -> list[_Row]:
    """Time the events of one kind."""
    draws = 1 if quick or name == ZONES else DRAWS
    size = SIZES[name] // (_QUICK_PART if quick else 1)
    return [
        _row(situation)
        for number in range(draws)
        for situation in SITUATIONS[name](random.Random(f"slow events/{name}/{seed}/{number}"), size)
    ]


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
    unit_s, event_s = calibration_s(), situation.time_s()
    times = 1
    while times < _TIMES and event_s / unit_s * REFERENCE_MS >= _SLOW_MS:
        unit_s, event_s = min(unit_s, calibration_s()), min(event_s, situation.time_s())
        times += 1
    return _Row(situation.policy, situation.what, 1_000 * event_s, event_s / unit_s * REFERENCE_MS)


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
