"""The measurements of a trial, by its contender's name."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from types import MappingProxyType

import numpy as np

from bench.auction.runs.contenders import CONTENDERS
from bench.auction.runs.day import simulate_day
from bench.auction.runs.later_days import FOURTH_DAY, KINDS_BEFORE, default_fourth_day, default_second_day
from bench.auction.runs.optimum import measure_clearing_bound, measure_optimum
from bench.auction.runs.titan_program import measure_titan_program
from bench.auction.runs.trial import Row, Trial
from bench.workloads.cell import with_policy
from bench.workloads.paper import PaperSetting, draw
from infra.errors import CommandError
from schemas.auction.bids import Task
from schemas.auction.evidence import evidence_of
from schemas.auction.settings import AuctionPolicy
from schemas.base import Event
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from streams.cell.cell import Cell, LedgerEvent

BIDS_PER_NODE = 4
"""Judged before any is timed, so that prices differ from node-slot to node-slot."""
TIMED_BIDS = 400
_SPARE = 1.2
"""A Poisson process brings so many times fewer bids than wanted at worst, or hardly ever."""


def measure_decision_time(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Median, mean and 99th percentile of `Cell.handle` over bids that all come in slot 0, to a zone that
    finds its prices itself, and the share of them whose plan was not proven to be the best.

    They are those that the setting draws for the first half of its day, at whatever rate brings enough, each
    with as much time as it has there: of later ones, the end of the day leaves too little.
    """
    wanted = BIDS_PER_NODE * setting.nodes + TIMED_BIDS
    rate = 2 * _SPARE * wanted / setting.slots
    declared, workload = draw(replace(setting, arrivals_per_slot=rate), seed)
    cell = with_policy(declared, AuctionPolicy())
    state = Cell(cell.cell)
    offsets = count()

    def handle(event: Event) -> tuple[float, list[Decision]]:
        offset = next(offsets)
        entry = LedgerEvent(offset, Envelope(f"bench-{offset}", "bench", "", event))
        start_s = time.perf_counter()
        decisions = state.handle(entry)
        return time.perf_counter() - start_s, decisions

    first: list[Event] = [cell, ClockTicked(cell=cell.cell, time_s=cell.epoch_s), *workload.quotes]
    for event in first:
        handle(event)
    handled = []
    for timed in workload.jobs[:wanted]:
        deadline_s = Task.of(timed.event).deadline_s - timed.time_s
        terms = timed.event.terms.model_copy(update={"deadline_s": deadline_s})
        handled.append(handle(timed.event.model_copy(update={"terms": terms})))
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
    offers = (evidence_of(decision.outcome).offer for decision in decisions)
    return any(offer is not None and bool(offer.plan_gap_micros) for offer in offers)


Measure = Callable[[PaperSetting, int], dict[str, float]]
"""(setting, seed) -> values."""

OPTIMUM = "offline optimum"
CLEARING_BOUND = "clearing bound"
DECISION_TIME = "decision time"
TITANS_PROGRAM = "titan's program"


def _day(contender: str, setting: PaperSetting, seed: int) -> dict[str, float]:
    policy_of = CONTENDERS[contender]
    return simulate_day(setting, seed, lambda declared: policy_of(declared, setting, seed)).values()


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        **{name: partial(_day, name) for name in CONTENDERS},
        **{name: partial(default_second_day, kind) for name, kind in KINDS_BEFORE.items()},
        FOURTH_DAY: default_fourth_day,
        OPTIMUM: measure_optimum,
        CLEARING_BOUND: measure_clearing_bound,
        DECISION_TIME: measure_decision_time,
        TITANS_PROGRAM: measure_titan_program,
    }
)


def run_trial(trial: Trial, sources: str, alone: bool) -> Row:
    """Make a trial's measurement.

    Raises:
        CommandError: naming the trial, where admitted plans violate problem P.
    """
    try:
        values = MEASURES[trial.contender](trial.setting, trial.seed)
    except CommandError as error:
        raise CommandError(f"{trial}: {error}") from None
    return Row(trial.setting_name, trial.seed, trial.contender, alone, sources, values)
