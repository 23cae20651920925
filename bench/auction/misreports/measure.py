"""How often which lie gains how much, over many worlds."""

import math
import multiprocessing
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from bench.auction.misreports.lies import LIES, Lie, truth
from bench.auction.misreports.play import Play, utility
from bench.auction.misreports.worlds import draw_world
from bench.charts import Bars
from bench.figures import Measurement, Result, Table
from schemas.auction.settings import AuctionPolicy
from schemas.kind import PolicySettings
from streams.installation import install_policies

WORLDS = 7_000
"""For 100,000 tries at least."""
QUICK_WORLDS = 20
_SPLITS = ("split in two",)
_WAITS = ("waiting", "waiting, deadline beyond the horizon", "waiting with a bid in hand")
_WORLDS_AT_ONCE = 10
"""Played by a process before it reports: some five seconds."""


@dataclass
class Tries:
    """Of one kind of lie; gains are over the truth, as shares of the task's value."""

    changes: list[float] = field(default_factory=list)
    """Of every try; negative where the lie has lost something."""

    @property
    def gains(self) -> list[float]:
        """Of the tries that have gained."""
        return [change for change in self.changes if change > 0]

    @property
    def gainful_pct(self) -> float:
        """The share of these; 0 of none."""
        return 100 * len(self.gains) / max(len(self.changes), 1)

    @property
    def mean_gain_pct(self) -> float:
        """Of these; 0 of none."""
        return 100 * math.fsum(self.gains) / max(len(self.gains), 1)

    @property
    def largest_gain_pct(self) -> float:
        """Of these; 0 of none."""
        return 100 * max(self.gains, default=0.0)

    @property
    def mean_change_pct(self) -> float:
        """Of all tries, 0 of none: what telling the lie every time brings."""
        return 100 * math.fsum(self.changes) / max(len(self.changes), 1)


def tries_of(
    policy: PolicySettings,
    seed: int,
    worlds: range,
    lies: Mapping[str, Lie] = LIES,
) -> dict[str, Tries]:
    """Tell each lie once in each world that leaves room for it.

    Args:
        policy: of the zones.
        seed: decides all that is drawn, with the number of the world.
        worlds: by number.
        lies: by kind.

    Returns:
        the tries by kind.

    Raises:
        RuntimeError: the truth has lost something, so that gains over it would say nothing.
    """
    found = {kind: Tries() for kind in lies}
    for number in worlds:
        world = draw_world(random.Random(f"{seed}/{number}"), policy)
        play = Play(world)
        honest_micros = utility(play, truth)
        if honest_micros < 0:
            raise RuntimeError(f"world {number} of seed {seed}: the truth costs {-honest_micros} micros")
        for kind, lie in lies.items():
            strategy = lie(world, random.Random(f"{seed}/{number}/{kind}"))
            if strategy is not None:
                change_micros = utility(play, strategy) - honest_micros
                found[kind].changes.append(change_micros / world.value_micros)
    return found


def result_of(policy: PolicySettings, tries: Mapping[str, Tries]) -> Result:
    """The figures and the table of a policy's tries, by kind."""
    form = _form_of(policy)
    return Result(
        tuple(_figures(form, tries)),
        (
            Table(
                "misreports",
                (
                    *("kind", "policy", "tries", "gainful_pct"),
                    *("mean_gain_pct", "largest_gain_pct", "mean_change_pct"),
                ),
                [
                    (
                        *(kind, form, len(of.changes), of.gainful_pct),
                        *(of.mean_gain_pct, of.largest_gain_pct, of.mean_change_pct),
                    )
                    for kind, of in tries.items()
                ],
                Bars("kind", "policy", "gainful_pct", None, "tries that gain over the truth, %"),
            ),
        ),
    )


def _figures(form: str, tries: Mapping[str, Tries]) -> Iterator[Measurement]:
    for name, kinds in (
        ("gainful_misreports_pct", tuple(tries)),
        ("gainful_statements_pct", tuple(kind for kind in tries if kind not in (*_SPLITS, *_WAITS))),
        ("gainful_splits_pct", _SPLITS),
        ("gainful_waiting_pct", _WAITS),
    ):
        together = Tries([change for kind in kinds for change in tries[kind].changes])
        most = max(kinds, key=lambda kind: tries[kind].mean_gain_pct)
        note = (
            f"random small zones, {form}, {len(kinds)} kinds of lies; largest mean gain of a kind where it "
            f"gains: {tries[most].mean_gain_pct:.3g} % of the value ({most})"
        )
        yield Measurement(name, together.gainful_pct, note, len(together.changes))


def _form_of(policy: PolicySettings) -> str:
    """Which form of the policy it is, in words."""
    declared = isinstance(policy, AuctionPolicy) and policy.is_declared
    return f"{policy.kind}, bounds declared" if declared else policy.kind


def measure(quick: bool, seed: int, jobs: int, say: Callable[[str], None]) -> Result:
    """Play the worlds of a form of the benchmark in so many processes, and `say` how far it is."""
    policy = AuctionPolicy()
    worlds = range(QUICK_WORLDS if quick else WORLDS)
    parts = [worlds[start : start + _WORLDS_AT_ONCE] for start in range(0, len(worlds), _WORLDS_AT_ONCE)]
    tries: dict[str, Tries] = {kind: Tries() for kind in LIES}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, install_policies) as pool:
        for part, found in zip(parts, pool.map(partial(tries_of, policy, seed), parts), strict=True):
            for kind, of in found.items():
                tries[kind].changes += of.changes
            say(f"misreports: {part.stop} of {len(worlds)} worlds")
    return result_of(policy, tries)
