"""Histories of a zone under each policy: what must hold does after every event, and each job ends once."""

import random
from typing import Any

import pytest

from schemas.auction.settings import (
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    PdftspPolicy,
    TitanPolicy,
)
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.solves import SolveFinished, SolveRequested
from streams.cell.state_machine import Cell
from tests.support.cells import UNIT, Bench, CheckedBench, configuration, tick, zone
from tests.support.examples import seeds
from tests.support.histories import History, history
from tests.support.plans import HeldCells, held_cells
from tests.support.solves import titan_answer

BIDS = 50
POLICIES: dict[str, Any] = {
    "published": PdftspPolicy(
        kind="pdftsp",
        payment="published",
        order="published",
        search="published",
        money_unit_micros=UNIT,
        max_value_per_compute_micros=4 * UNIT,
        max_value_per_memory_micros=4 * UNIT,
    ),
    "eft": EarliestFinishPolicy(kind="eft"),
    "ntm": NoMergingPolicy(kind="ntm"),
    "fixed_price": FixedPricePolicy(kind="fixed_price", price_per_thousand_samples_micros=30 * UNIT),
    "titan": TitanPolicy(kind="titan"),
}


def cell_under(name: str) -> CellConfigured:
    return configuration(zones=(zone(policy=POLICIES[name]),))


def with_late_ticks(coming: History) -> History:
    """A history, and in it a tick in the last half of each slot, before the next one opens."""
    slot, outcomes = 0, []
    try:
        event = next(coming)
        while True:
            if event == tick(slot + 1):
                yield tick(slot + 0.6)
                slot += 1
            outcomes = yield event
            event = coming.send(outcomes)
    except StopIteration:
        return


def played(bench: Bench, seed: int, restart_share: float = 0.0) -> list[Outcome]:
    """Return a cell's decisions in a history in which solvers answer at once, and the cell is restored at
    times."""
    restarts = random.Random(f"restarts/{seed}")
    coming = with_late_ticks(history(random.Random(seed), BIDS))
    decided: list[Outcome] = []
    held, known = HeldCells(), 0
    event: Event | None = next(coming)
    while event is not None:
        outcomes = bench.send(event)
        for requested in [outcome for outcome in outcomes if isinstance(outcome, SolveRequested)]:
            if restarts.random() < restart_share:
                bench.cell = Cell.restore(bench.cell.snapshot())
            outcomes += bench.send(titan_answer(requested))
        held.fold(bench.decisions[known:])
        known = len(bench.decisions)
        assert held.by_job == held_cells(bench.zone), "the decisions tell who holds which cells"
        decided += outcomes
        if restarts.random() < restart_share:
            bench.cell = Cell.restore(bench.cell.snapshot())
        try:
            event = coming.send(outcomes)
        except StopIteration:
            event = None
    return decided


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", seeds(4))
def test_each_bid_is_decided_and_job_ends_once(name, seed):
    bench = CheckedBench()
    bench.send(cell_under(name))
    decided, open_jobs, admitted = set(), set(), 0
    for outcome in played(bench, seed, restart_share=0.1):
        match outcome:
            case JobAdmitted():
                assert outcome.job_id not in decided
                decided.add(outcome.job_id)
                open_jobs.add(outcome.job_id)
                admitted += 1
            case JobRejected():
                assert outcome.job_id not in decided
                decided.add(outcome.job_id)
            case JobWithdrawn() if outcome.job_id not in decided:
                # Its slot's solve had not been asked for, or not been answered.
                assert name == "titan"
                decided.add(outcome.job_id)
            case JobCompleted() | JobRefunded() | JobWithdrawn():
                open_jobs.remove(outcome.job_id)
    assert decided == {f"j{number}" for number in range(BIDS)}
    assert admitted
    assert not open_jobs


@pytest.mark.parametrize("name", POLICIES)
def test_ledger_with_restarts_gives_same_bytes(name):
    disturbed = Bench()
    disturbed.send(cell_under(name))
    played(disturbed, seed=1, restart_share=0.3)
    undisturbed = Bench()
    undisturbed.send(*[entry.envelope.event for entry in disturbed.ledger])
    assert [d.canonical for d in undisturbed.decisions] == [d.canonical for d in disturbed.decisions]
    if name == "titan":
        assert any(isinstance(entry.envelope.event, SolveFinished) for entry in disturbed.ledger)


@pytest.mark.parametrize("name", ["eft", "ntm", "fixed_price", "titan"])
def test_baseline_has_zero_prices_and_valid_certificate(name):
    bench = CheckedBench()
    bench.send(cell_under(name))
    played(bench, seed=2)
    market = bench.zone.auctioneer.market
    assert not market.compute_price.any()
    assert not market.memory_price.any()
    certificates = [c for d in bench.decisions if (c := getattr(d.outcome, "certificate", None))]
    assert all(c.planned_welfare_micros <= c.dual_bound_micros for c in certificates)
    assert certificates[-1].planned_welfare_micros > 0
