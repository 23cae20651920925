"""Share of misreports by which a user gains, over many random worlds."""

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import FiniteFloat, TypeAdapter

from bench.auction.misreports.lies import LIES, Lie, truth
from bench.auction.misreports.play import Play, utility
from bench.auction.misreports.worlds import draw_world
from bench.charts import Bars
from bench.figures import Measurement, Result, Table
from bench.runs import Experiment
from schemas.auction.settings import AuctionPolicy
from schemas.kind import PolicySettings

WORLDS = 7_000
"""Enough for 100,000 tries."""
QUICK_WORLDS = 20
_SPLITS = ("split in two",)
_WAITS = ("waiting", "waiting, deadline beyond the horizon", "waiting with a bid in hand")
_WORLDS_AT_ONCE = 10
"""Worlds of one trial: some five seconds."""

Changes = Mapping[str, list[float]]
"""Change of utility over the truth in every try, as a share of the task's value, by kind of lie."""


@dataclass(frozen=True)
class WorldsTrial:
    """Some worlds, with one try of each lie that is possible in them."""

    seed: int
    first: int
    last: int
    alone: bool = False

    def identity(self) -> dict[str, Any]:
        """Return JSON values that, with the sources, determine the outcome."""
        return {"misreports of worlds": [self.first, self.last], "seed": self.seed}

    def __str__(self) -> str:
        return f"misreports, worlds {self.first} to {self.last}, seed {self.seed}"


def trials_of(quick: bool, seed: int) -> list[WorldsTrial]:
    """Return trials of all worlds of a form of the benchmark."""
    worlds = QUICK_WORLDS if quick else WORLDS
    starts = range(0, worlds, _WORLDS_AT_ONCE)
    return [WorldsTrial(seed, start, min(start + _WORLDS_AT_ONCE, worlds) - 1) for start in starts]


def run(trial: WorldsTrial) -> Changes:
    """Play the worlds of a trial, under the auction with nothing declared."""
    return changes_of(AuctionPolicy(), trial.seed, range(trial.first, trial.last + 1))


PLAYED = Experiment[WorldsTrial, Changes](
    run,
    TypeAdapter(Mapping[str, list[FiniteFloat]]),
    ("schemas", "solvers", "streams", "bench/auction/misreports", "requirements.lock"),
)


def changes_of(
    policy: PolicySettings, seed: int, worlds: range, lies: Mapping[str, Lie] = LIES
) -> dict[str, list[float]]:
    """Try each lie once in each world where it is possible.

    Args:
        policy: policy of the zones.
        seed: determines all draws, with the number of the world.
        worlds: numbers of worlds.
        lies: lies by kind.

    Raises:
        RuntimeError: the truth has negative utility, so that gains over it would be meaningless.
    """
    found: dict[str, list[float]] = {kind: [] for kind in lies}
    for number in worlds:
        world = draw_world(random.Random(f"{seed}/{number}"), policy)
        play = Play(world)
        honest_micros = utility(play, truth)
        if honest_micros < 0:
            raise RuntimeError(f"world {number} of seed {seed}: the truth costs {-honest_micros} micros")
        for kind, lie in lies.items():
            strategy = lie(world, random.Random(f"{seed}/{number}/{kind}"))
            if strategy is not None:
                found[kind].append((utility(play, strategy) - honest_micros) / world.value_micros)
    return found


def merged(parts: Iterable[Changes]) -> dict[str, list[float]]:
    """Merge changes by kind."""
    found: dict[str, list[float]] = {kind: [] for kind in LIES}
    for part in parts:
        for kind, changes in part.items():
            found[kind] += changes
    return found


def gainful_pct(changes: list[float]) -> float:
    """Return the share of tries with a gain (%); 0 without tries."""
    return 100 * sum(change > 0 for change in changes) / max(len(changes), 1)


def mean_gain_pct(changes: list[float]) -> float:
    """Return the mean gain of the tries with a gain (%); 0 without any."""
    gains = [change for change in changes if change > 0]
    return 100 * math.fsum(gains) / max(len(gains), 1)


def result_of(changes: Changes) -> Result:
    """Return the figures, and a row per kind of lie."""
    rows = [
        (kind, "tries", float(len(each)), gainful_pct(each), mean_gain_pct(each))
        for kind, each in changes.items()
    ]
    chart = Bars("kind", "series", "gainful_pct", None, "tries that gain over the truth, %")
    columns = ("kind", "series", "tries", "gainful_pct", "mean_gain_pct")
    return Result(tuple(_figures(changes)), (Table("misreports", columns, rows, chart),))


def _figures(changes: Changes) -> Iterator[Measurement]:
    for name, kinds in (
        ("gainful_misreports_pct", tuple(changes)),
        ("gainful_statements_pct", tuple(kind for kind in changes if kind not in (*_SPLITS, *_WAITS))),
        ("gainful_splits_pct", _SPLITS),
        ("gainful_waiting_pct", _WAITS),
    ):
        every = [change for kind in kinds for change in changes[kind]]
        most = max(kinds, key=lambda kind: mean_gain_pct(changes[kind]))
        note = (
            f"random small zones, nothing declared, {len(kinds)} kinds of lies; largest mean gain of a kind "
            f"where it gains: {mean_gain_pct(changes[most]):.3g} % of the value ({most})"
        )
        yield Measurement(name, gainful_pct(every), note, len(every))
