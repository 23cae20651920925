"""Short ledgers of cells under every policy, as they might happen: what tests of all policies fold."""

import random
from functools import cache

from schemas.auction.settings import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    TitanPolicy,
)
from schemas.base import Event
from schemas.kind import PolicySettings
from schemas.solves import SolveRequested
from streams.cell.ledger_event import LedgerEvent
from tests.streams.elastic import test_histories as elastic
from tests.streams.experts import test_histories as experts
from tests.streams.merging import test_histories as merging
from tests.support.cells import EPOCH_S, SLOT_S, Bench, bid, configuration, tick, vendor, zone
from tests.support.histories import recorded
from tests.support.loans import SERVERS, lending_cell, offered, reclaimed, reported
from tests.support.solves import titan_answer

STEPS = 60
MARKETS: dict[str, PolicySettings] = {
    "auction": AuctionPolicy(),
    "declared": zone().policy,
    "eft": EarliestFinishPolicy(kind="eft"),
    "ntm": NoMergingPolicy(kind="ntm"),
    "fixed_price": FixedPricePolicy(kind="fixed_price", price_per_thousand_samples_micros=1_000),
}
NAMES = (*MARKETS, "titan", "loans", "elastic", "merging", "experts")


@cache
def ledger(name: str) -> tuple[LedgerEvent, ...]:
    """The ledger of this name, one of `NAMES`."""
    if name in MARKETS:
        cell = configuration(zones=(zone(policy=MARKETS[name]),))
        bench = Bench()
        bench.send(*recorded(random.Random(7), cell, bids=20))
        return tuple(bench.ledger)
    return tuple({"titan": _titan, "loans": _loans, **_OTHERS}[name]())


def _titan() -> list[LedgerEvent]:
    bench, source = Bench(), random.Random("titan")
    bench.send(configuration(zones=(zone(policy=TitanPolicy(kind="titan"), horizon_slots=20),)))
    bench.send(vendor("slow", 0.1, 1.0))
    for slot in range(8):
        deadlines = [EPOCH_S + SLOT_S * (slot + source.randint(3, 9)) for _ in range(3)]
        bids: list[Event] = [
            bid(f"{slot}-{number}", source.uniform(1, 20), deadline_s=deadline_s, work_samples=60)
            for number, deadline_s in enumerate(deadlines)
        ]
        asked = bench.send(tick(slot), *bids, tick(slot + 0.6))
        bench.send(*(titan_answer(each) for each in asked if isinstance(each, SolveRequested)))
    return bench.ledger


def _loans() -> list[LedgerEvent]:
    bench, source = Bench(), random.Random("loans")
    bench.send(lending_cell(), tick(0))
    for slot in range(12):
        bench.send(
            tick(slot),
            bid(f"j{slot}", deadline_s=EPOCH_S + SLOT_S * (slot + 8)),
            reported(source.choice([0.0, 0.2]), slot),
            offered(*source.sample(SERVERS, 4), id=f"o{slot}"),
            reclaimed(source.randint(1, 2), slot + 4, id=f"r{slot}"),
        )
    return bench.ledger


def _elastic() -> list[LedgerEvent]:
    history = elastic.History(random.Random(2), 3)
    for _ in range(2 * STEPS):
        history.step()
    return history.bench.ledger


def _merging() -> list[LedgerEvent]:
    history = merging.History(random.Random(3), scheme="ymir")
    while len(history.world.bench.ledger) < 8 * STEPS:
        history.step()
    return history.world.bench.ledger


def _experts() -> list[LedgerEvent]:
    history = experts.History(random.Random(13), experts.PATIENCES_S[0])
    for _ in range(2 * STEPS):
        history.step()
    return history.bench.ledger


_OTHERS = {"elastic": _elastic, "merging": _merging, "experts": _experts}
