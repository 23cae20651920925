"""Random histories of a zone: what must hold does after every event, and everything comes to an end."""

import random

import pytest

from schemas.auction.settings import AuctionPolicy
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from streams.cell.state_machine import Cell
from tests.support.cells import Bench, CheckedBench, zone
from tests.support.examples import long
from tests.support.histories import history
from tests.support.plans import HeldCells, held_cells

BIDS = 60
LATE_SHARES = (0.0, 0.3)
"""Shares of runs that hang, or report after others have started: every second history has such runs."""


POLICIES = {"declared": zone().policy, "default": AuctionPolicy()}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [*range(4), *long(*range(4, 12))])
def test_each_bid_is_decided_and_job_ends_once(seed, policy):
    rng = random.Random(seed)
    restarts = random.Random(f"restarts/{seed}")
    bench = CheckedBench.configured(zones=(zone(policy=POLICIES[policy]),))
    admitted, ended, decided = set(), set(), set()
    coming = history(rng, BIDS, late_share=LATE_SHARES[seed % len(LATE_SHARES)])
    event = next(coming)
    held = HeldCells()
    while event is not None:
        known = len(bench.decisions)
        outcomes = bench.send(event)
        held.fold(bench.decisions[known:])
        assert held.by_job == held_cells(bench.zone), "the decisions tell who holds which cells"
        for outcome in outcomes:
            match outcome:
                case JobAdmitted():
                    admitted.add(outcome.job_id)
                    decided.add(outcome.job_id)
                case JobRejected():
                    decided.add(outcome.job_id)
                case JobCompleted() | JobRefunded() | JobWithdrawn():
                    assert outcome.job_id in admitted - ended, "each admitted job ends once"
                    ended.add(outcome.job_id)
        if restarts.random() < 0.05:
            bench.cell = Cell.restore(bench.cell.snapshot())
        try:
            event = coming.send(outcomes)
        except StopIteration:
            event = None
    assert decided == {f"j{number}" for number in range(BIDS)}, "every bid is decided"
    assert admitted == ended, "every admitted job ends in an adapter, a refund or a withdrawal"
    assert admitted
    twin = Bench()
    twin.send(*[entry.envelope.event for entry in bench.ledger])
    assert twin.cell.packed() == bench.cell.packed(), "restored now and then, and never"
    assert [d.canonical for d in twin.decisions] == [d.canonical for d in bench.decisions]
