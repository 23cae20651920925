"""What one decision takes in a cell that is partly taken: the growth with nodes, slots and work."""

import time
from dataclasses import replace
from itertools import count

import numpy as np

from bench.workloads.paper import PaperSetting, draw
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.decisions import JobAdmitted, JobRejected
from schemas.registry import Event
from streams.cell import Cell, LedgerEvent

BIDS_PER_NODE = 4
"""Judged before any is timed, so that prices differ from cell to cell."""
TIMED_BIDS = 400
_SPARE = 1.2
"""A Poisson process brings so many times fewer bids than wanted at worst, or hardly ever."""


def measure_decision_time(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Median, mean and 99th percentile of `Cell.handle` over bids that all come in slot 0, and the share of
    them whose plan was not proven to be the best.

    They are those that the setting draws for the first half of its day, at whatever rate brings enough, each
    with as much time as it has there: of later ones, the end of the day leaves too little.
    """
    wanted = BIDS_PER_NODE * setting.nodes + TIMED_BIDS
    rate = 2 * _SPARE * wanted / setting.slots
    cell, workload = draw(replace(setting, arrivals_per_slot=rate), seed)
    state = Cell(cell.cell)
    offsets = count()

    def handle(event: Event) -> tuple[float, list[Decision]]:
        offset = next(offsets)
        entry = LedgerEvent(offset, Envelope(f"bench-{offset}", "bench", "", event))
        start_s = time.perf_counter()
        decisions = state.handle(entry)
        return time.perf_counter() - start_s, decisions

    for event in (cell, ClockTicked(cell=cell.cell, time_s=cell.epoch_s), *workload.quotes):
        handle(event)
    handled = []
    for timed in workload.bids[:wanted]:
        deadline_s = timed.bid.task.deadline_s - timed.time_s
        task = timed.bid.task.model_copy(update={"deadline_s": deadline_s})
        handled.append(handle(timed.bid.model_copy(update={"task": task})))
    timed_s = np.array([seconds for seconds, _ in handled[-TIMED_BIDS:]])
    gaps = [_has_gap(decisions) for _, decisions in handled[-TIMED_BIDS:]]
    return {
        "unproven": sum(gaps) / TIMED_BIDS,
        "median_s": float(np.median(timed_s)),
        "mean_s": float(timed_s.mean()),
        "p99_s": float(np.percentile(timed_s, 99)),
    }


def _has_gap(decisions: list[Decision]) -> bool:
    """Whether a bid met a plan that is not proven to be the best."""
    outcomes = (decision.outcome for decision in decisions)
    return any(
        isinstance(o, JobAdmitted | JobRejected) and o.offer is not None and bool(o.offer.plan_gap_micros)
        for o in outcomes
    )
