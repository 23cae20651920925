"""What one decision takes in a cell that is partly taken: the growth with nodes, slots and work."""

import time
from dataclasses import replace
from itertools import count

import numpy as np

from bench.workloads.paper import PaperSetting, draw
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.registry import Event
from streams.cell import Cell, LedgerEvent

BIDS_PER_NODE = 4
"""Judged before any is timed, so that prices differ from cell to cell."""
TIMED_BIDS = 400
_SPARE = 1.2
"""A Poisson process brings so many times fewer bids than wanted at worst, or hardly ever."""


def measure_decision_time(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Median, mean and 99th percentile of `Cell.handle` over bids that all come in slot 0.

    They are those that the setting draws for the first half of its day, at whatever rate brings enough, each
    with as much time as it has there: of later ones, the end of the day leaves too little.
    """
    wanted = BIDS_PER_NODE * setting.nodes + TIMED_BIDS
    rate = 2 * _SPARE * wanted / setting.slots
    cell, workload = draw(replace(setting, arrivals_per_slot=rate), seed)
    state = Cell(cell.cell)
    offsets = count()

    def handle_s(event: Event) -> float:
        offset = next(offsets)
        entry = LedgerEvent(offset, Envelope(f"bench-{offset}", "bench", "", event))
        start_s = time.perf_counter()
        state.handle(entry)
        return time.perf_counter() - start_s

    for event in (cell, ClockTicked(cell=cell.cell, time_s=cell.epoch_s), *workload.quotes):
        handle_s(event)
    times_s = []
    for timed in workload.bids[:wanted]:
        deadline_s = timed.bid.task.deadline_s - timed.time_s
        task = timed.bid.task.model_copy(update={"deadline_s": deadline_s})
        times_s.append(handle_s(timed.bid.model_copy(update={"task": task})))
    timed_s = np.array(times_s[-TIMED_BIDS:])
    return {
        "median_s": float(np.median(timed_s)),
        "mean_s": float(timed_s.mean()),
        "p99_s": float(np.percentile(timed_s, 99)),
    }
