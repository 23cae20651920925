"""Share of misreports by which a user gains, over many random worlds: statements of a bid, names,
withdrawals, splits and waiting, each drawn at random."""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import FiniteFloat, TypeAdapter

from bench.auction.play import DeclaredTask, Play, Strategy, World, draw_world, utility
from bench.figures import Measurement, Result, Table, Value
from bench.runs import Experiment
from schemas.auction.settings import AuctionPolicy
from schemas.kind import PolicySettings

JOB = "mine"

Claim = Callable[[World, random.Random], DeclaredTask | None]
"""Returns the misreported task of a bid; None if the world does not allow the lie."""
Lie = Callable[[World, random.Random], Strategy | None]
"""Draws a strategy for a world; None if the world does not allow the lie."""


def truth(play: Play) -> tuple[str, ...]:
    """Bid the value at once, with the true task."""
    play.bid(JOB, play.world.value_micros, play.world.task)
    return (JOB,)


def bid(world: World, rng: random.Random) -> Strategy:
    """Return a strategy with a bid other than the value: any, or one that just wins or just loses."""
    amount = round(world.value_micros * math.exp(rng.gauss(0.0, 1.2)))
    offset_micros = rng.choice((None, None, 0, -1))

    def strategy(play: Play) -> tuple[str, ...]:
        least = None if offset_micros is None else play.lowest_winning_micros(world.task)
        play.bid(JOB, amount if least is None or offset_micros is None else least + offset_micros, world.task)
        return (JOB,)

    return strategy


def earlier_deadline(world: World, rng: random.Random) -> DeclaredTask | None:
    room = world.task.deadline_slot - world.slot - 2
    if room < 1:
        return None
    return replace(world.task, deadline_slot=world.task.deadline_slot - rng.randint(1, min(room, 8)))


def later_deadline(world: World, rng: random.Random) -> DeclaredTask:
    """Return the task with a later deadline, to get its work done sooner."""
    return replace(world.task, deadline_slot=world.task.deadline_slot + rng.randint(1, 6))


def fewer_types(world: World, rng: random.Random) -> DeclaredTask | None:
    """Return the task with one of two GPU types."""
    speeds = world.task.speed_samples_per_s
    if len(speeds) < 2:
        return None
    kept = rng.choice(sorted(speeds))
    return replace(world.task, speed_samples_per_s={kept: speeds[kept]})


def _speed(*factors: float) -> Claim:
    """Return the claim of the speed on every type, or on one, times a factor."""

    def claim(world: World, rng: random.Random) -> DeclaredTask:
        factor, speeds = rng.choice(factors), world.task.speed_samples_per_s
        changed = rng.choice((*sorted(speeds), None))
        declared = {
            name: speed * (factor if changed in (name, None) else 1.0)
            for name, speed in sorted(speeds.items())
        }
        return replace(world.task, speed_samples_per_s=declared)

    return claim


def _memory(*factors: float) -> Claim:
    return lambda world, rng: replace(world.task, memory_gib=world.task.memory_gib * rng.choice(factors))


def _dataset(*factors: float) -> Claim:
    return lambda world, rng: replace(
        world.task, dataset_samples=max(math.floor(world.task.dataset_samples * rng.choice(factors)), 1)
    )


CLAIMS: dict[str, Claim] = {
    "deadline earlier": earlier_deadline,
    "deadline later": later_deadline,
    "more work": lambda world, rng: replace(
        world.task, work_samples=math.ceil(world.task.work_samples * rng.choice((1.01, 1.1, 1.5, 2.0)))
    ),
    "memory under": _memory(1 / 1024, 0.1, 0.5, 0.8, 0.95),
    "memory over": _memory(1.05, 1.2, 2.0),
    "fewer GPU types": fewer_types,
    # Fewer samples for a vendor to prepare.
    "dataset under": _dataset(0.01, 0.3, 0.7, 0.95),
    "dataset over": _dataset(1.05, 1.5, 3.0),
    "speed under": _speed(0.3, 0.5, 2 / 3, 0.8, 0.9, 0.97),
    "speed over": _speed(1.03, 1.1, 1.5, 2.0, 5.0),
}
"""Claims by the property that is untrue."""


def _claimed(claim: Claim) -> Lie:
    """Return the lie of a user who bids the value at once, with an untrue claim."""

    def lie(world: World, rng: random.Random) -> Strategy | None:
        declared = claim(world, rng)
        return None if declared is None else _strategy_of(declared, world.value_micros)

    return lie


def _strategy_of(declared: DeclaredTask, bid_micros: int) -> Strategy:
    def strategy(play: Play) -> tuple[str, ...]:
        play.bid(JOB, bid_micros, declared)
        return (JOB,)

    return strategy


def several(world: World, rng: random.Random) -> Strategy:
    """Return a strategy with two untrue claims, and any bid."""
    declared = world.task
    for name in rng.sample(sorted(CLAIMS), 2):
        declared = CLAIMS[name](replace(world, task=declared), rng) or declared
    return _strategy_of(declared, round(world.value_micros * math.exp(rng.gauss(0.3, 0.5))))


def two_names(world: World, rng: random.Random) -> Strategy:
    """Return a strategy with a bid under each of two names: the cheaper plan is kept, or the first bid takes
    room from others."""
    first, second = (round(world.value_micros * math.exp(rng.gauss(0.3, 0.8))) for _ in range(2))
    waits = rng.random() < 0.5
    withdraws_first = rng.random() < 0.5

    def strategy(play: Play) -> tuple[str, ...]:
        play.bid("trial", first, world.task, name=1)
        if waits:
            play.others_follow()
        if withdraws_first:
            play.withdraw("trial", name=1)
        play.bid(JOB, second, world.task)
        if {"trial", JOB} <= play.live:
            play.withdraw("trial", name=1)
        return (JOB,) if JOB in play.live else ("trial",)

    return strategy


def split_in_two(world: World, rng: random.Random) -> Strategy | None:
    """Return a strategy with two parts of the task as separate bids; the first is withdrawn if the second
    does not win. Both adapters together are assumed to have the value of one adapter trained on all
    samples."""
    work = world.task.work_samples
    if work < 2:
        return None
    part = min(max(round(work * rng.uniform(0.2, 0.8)), 1), work - 1)

    def strategy(play: Play) -> tuple[str, ...]:
        value, task = world.value_micros, world.task
        play.bid("first", value, replace(task, work_samples=part))
        if "first" in play.live and not play.bid(
            "second", value - play.paid_micros, replace(task, work_samples=work - part)
        ):
            play.withdraw("first")
        return "first", "second"

    return strategy


def bid_again(world: World, rng: random.Random) -> Strategy:
    """Return a strategy that bids, withdraws before the first slot, and bids again, at once or after
    others."""
    first = round(world.value_micros * math.exp(rng.gauss(0.3, 0.8)))
    waits = rng.random() < 0.5

    def strategy(play: Play) -> tuple[str, ...]:
        play.bid("trial", first, world.task)
        if waits:
            play.others_follow()
        play.withdraw("trial")
        play.bid(JOB, world.value_micros, world.task)
        return (JOB,)

    return strategy


def _reach_slots(world: World) -> int:
    """Return by how much the deadline is beyond the horizon."""
    return world.task.deadline_slot - (world.slot + 1 + world.horizon_slots)


def _slots_to_wait(world: World, rng: random.Random) -> int | None:
    room = world.task.deadline_slot - world.slot - 2
    return rng.randint(1, min(room, 6)) if room >= 1 else None


def _waits(world: World, rng: random.Random) -> Strategy | None:
    if (slots := _slots_to_wait(world, rng)) is None:
        return None

    def strategy(play: Play) -> tuple[str, ...]:
        play.wait(slots)
        play.bid(JOB, world.value_micros, world.task)
        return (JOB,)

    return strategy


def waiting(world: World, rng: random.Random) -> Strategy | None:
    """Return a strategy of the truth some slots later, for a task whose deadline is within the horizon."""
    return _waits(world, rng) if _reach_slots(world) <= 0 else None


def waiting_beyond_the_horizon(world: World, rng: random.Random) -> Strategy | None:
    """Return a strategy of the truth some slots later, for a task whose deadline is beyond the horizon."""
    return _waits(world, rng) if _reach_slots(world) > 0 else None


def waiting_with_a_bid_in_hand(world: World, rng: random.Random) -> Strategy | None:
    """Return a strategy that bids the truth at once, to have a plan in any case, and may bid it again some
    slots later. It does so if the first bid lost. It also does so in place of the first bid, if that has not
    begun and a plan then costs less than its withdrawal returns."""
    if (slots := _slots_to_wait(world, rng)) is None:
        return None

    def strategy(play: Play) -> tuple[str, ...]:
        play.bid("held", world.value_micros, world.task)
        play.wait(slots)
        if "held" in play.begun:
            return ("held",)
        price = play.lowest_winning_micros(world.task)
        if "held" in play.live:
            if price is None or price >= play.returnable_micros["held"]:
                return ("held",)
            play.withdraw("held")
        play.bid(JOB, world.value_micros, world.task)
        return (JOB,)

    return strategy


SPLITS: dict[str, Lie] = {"split in two": split_in_two}
WAITS: dict[str, Lie] = {
    "waiting": waiting,
    "waiting, deadline beyond the horizon": waiting_beyond_the_horizon,
    "waiting with a bid in hand": waiting_with_a_bid_in_hand,
}
LIES: dict[str, Lie] = {
    "bid": bid,
    **{name: _claimed(claim) for name, claim in CLAIMS.items()},
    "several at once": several,
    "two names": two_names,
    "bid, withdraw, bid": bid_again,
    **SPLITS,
    **WAITS,
}
"""Lies by name."""


WORLDS = 7_000
"""Enough for 100,000 tries."""
QUICK_WORLDS = 20
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
    (
        "schemas",
        "solvers",
        "streams",
        "bench/auction/misreports.py",
        "bench/auction/play.py",
        "requirements.lock",
    ),
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


def result_of(parts: Iterable[Changes]) -> Result:
    """Return the share of the tries that gained, over all kinds of lies and over those without splits and
    waiting, and a row per kind.

    Args:
        parts: changes of some worlds each.
    """
    changes: dict[str, list[float]] = {kind: [] for kind in LIES}
    for part in parts:
        for kind, some in part.items():
            changes[kind] += some
    rows: list[dict[str, Value]] = [
        {
            "kind": kind,
            "tries": len(each),
            "gainful_pct": _gainful_pct(each),
            "mean_gain_pct": _mean_gain_pct(each),
        }
        for kind, each in changes.items()
    ]
    statements = {kind: each for kind, each in changes.items() if kind not in (*SPLITS, *WAITS)}
    return Result(
        (_figure("gainful_misreports_pct", changes), _figure("gainful_statements_pct", statements)),
        (Table("misreports", rows),),
    )


def _figure(name: str, changes: Changes) -> Measurement:
    """Return the share of the tries of some kinds that gained."""
    tries = [change for each in changes.values() for change in each]
    most = max(changes, key=lambda kind: _mean_gain_pct(changes[kind]))
    note = (
        f"random small zones, nothing declared, {len(changes)} kinds of lies; largest mean gain of a kind "
        f"where it gains: {_mean_gain_pct(changes[most]):.3g} % of the value ({most})"
    )
    return Measurement(name, _gainful_pct(tries), note, len(tries))


def _gainful_pct(changes: Sequence[float]) -> float:
    return 100 * sum(change > 0 for change in changes) / max(len(changes), 1)


def _mean_gain_pct(changes: Sequence[float]) -> float:
    gains = [change for change in changes if change > 0]
    return 100 * math.fsum(gains) / max(len(gains), 1)
