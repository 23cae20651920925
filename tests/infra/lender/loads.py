"""Histories of loads, and zones that lend, for the tests of the lender."""

import random
from collections.abc import Iterable

from infra.lender.history import LoadHistory
from schemas.cells import Borrower, Lending, Node, Zone
from tests.support import cells

INTERVAL_S = 300.0
PER_DAY = 288
START_S = 86_400.0 * 19_000
"""A midnight."""
CELL = "c"
ZONE = "inference"


def history(loads: Iterable[float | None], kept_intervals: int = 14 * PER_DAY) -> LoadHistory:
    """One report at the begin of each interval from START_S on; None where none comes."""
    past = LoadHistory(INTERVAL_S, kept_intervals)
    for index, load in enumerate(loads):
        if load is not None:
            past.add(START_S + index * INTERVAL_S, load)
    return past


def saw_tooth(days: int, seed: int | None = None, noise: float = 0.01) -> list[float]:
    """A load that rises evenly from 0.2 to 0.8 until noon and falls back until midnight, with some noise."""
    rng = random.Random(seed)
    half = PER_DAY // 2
    loads = []
    for index in range(days * PER_DAY):
        place = index % PER_DAY
        load = 0.2 + 0.6 * min(place, PER_DAY - place) / half
        loads.append(load if seed is None else min(max(load + rng.gauss(0.0, noise), 0.0), 1.0))
    return loads


def lending_zone(servers: int = 10, headroom: float = 0.1, notice_s: float = 300.0) -> Zone:
    """A zone of servers s000, s001, ... that lends to one other."""
    return cells.zone(
        id=ZONE,
        nodes=tuple(Node(id=f"s{number:03}", gpu_type="fast", tariff="t") for number in range(servers)),
        lending=Lending(headroom=headroom, notice_s=notice_s, borrowers=(Borrower(zone="training"),)),
    )
