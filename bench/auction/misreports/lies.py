"""Ways in which a user may misreport, each drawn at random."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

from bench.auction.misreports.play import Play, Strategy
from bench.auction.misreports.worlds import DeclaredTask, World

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
    """Return the task with an earlier deadline."""
    room = world.task.deadline_slot - world.slot - 2
    if room < 1:
        return None
    return replace(world.task, deadline_slot=world.task.deadline_slot - rng.randint(1, min(room, 8)))


def fewer_types(world: World, rng: random.Random) -> DeclaredTask | None:
    """Return the task with one of two GPU types."""
    speeds = world.task.speed_samples_per_s
    if len(speeds) < 2:
        return None
    kept = rng.choice(sorted(speeds))
    return replace(world.task, speed_samples_per_s={kept: speeds[kept]})


def _speed(world: World, rng: random.Random, factors: tuple[float, ...]) -> DeclaredTask:
    """Return the task with the speed on every type, or on one, times a factor."""
    factor, speeds = rng.choice(factors), world.task.speed_samples_per_s
    changed = rng.choice((*sorted(speeds), None))
    declared = {
        name: speed * (factor if changed in (name, None) else 1.0) for name, speed in sorted(speeds.items())
    }
    return replace(world.task, speed_samples_per_s=declared)


CLAIMS: dict[str, Claim] = {
    "deadline earlier": earlier_deadline,
    # To get the work done sooner.
    "deadline later": lambda world, rng: replace(
        world.task, deadline_slot=world.task.deadline_slot + rng.randint(1, 6)
    ),
    "more work": lambda world, rng: replace(
        world.task, work_samples=math.ceil(world.task.work_samples * rng.choice((1.01, 1.1, 1.5, 2.0)))
    ),
    "memory under": lambda world, rng: replace(
        world.task, memory_gib=world.task.memory_gib * rng.choice((1 / 1024, 0.1, 0.5, 0.8, 0.95))
    ),
    "memory over": lambda world, rng: replace(
        world.task, memory_gib=world.task.memory_gib * rng.choice((1.05, 1.2, 2.0))
    ),
    "fewer GPU types": fewer_types,
    # Fewer samples for a vendor to prepare.
    "dataset under": lambda world, rng: replace(
        world.task,
        dataset_samples=max(math.floor(world.task.dataset_samples * rng.choice((0.01, 0.3, 0.7, 0.95))), 1),
    ),
    "dataset over": lambda world, rng: replace(
        world.task, dataset_samples=math.ceil(world.task.dataset_samples * rng.choice((1.05, 1.5, 3.0)))
    ),
    "speed under": lambda world, rng: _speed(world, rng, (0.3, 0.5, 2 / 3, 0.8, 0.9, 0.97)),
    "speed over": lambda world, rng: _speed(world, rng, (1.03, 1.1, 1.5, 2.0, 5.0)),
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
    takes_room = rng.random() < 0.5

    def strategy(play: Play) -> tuple[str, ...]:
        play.bid("trial", first, world.task, name=1)
        if waits:
            play.others_follow()
        if takes_room:
            play.withdraw("trial", name=1)
        play.bid(JOB, second, world.task)
        if {"trial", JOB} <= play.live:
            play.withdraw("trial", name=1)
        return (JOB,) if JOB in play.live else ("trial",)

    return strategy


def split_in_two(world: World, rng: random.Random) -> Strategy | None:
    """Return a strategy with two parts of the task as separate bids; the first is withdrawn if the second
    does not win. Both adapters together are assumed to be worth as much as one of the whole."""
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
    return _waits(world, rng) if world.reach_slots <= 0 else None


def waiting_beyond_the_horizon(world: World, rng: random.Random) -> Strategy | None:
    """Return a strategy of the truth some slots later, for a task whose deadline is beyond the horizon."""
    return _waits(world, rng) if world.reach_slots > 0 else None


def waiting_with_a_bid_in_hand(world: World, rng: random.Random) -> Strategy | None:
    """Return a strategy of the truth at once, to have a plan in any case, and again some slots later: if the
    first bid lost, or in its place, if it has not begun and a plan then costs less than its withdrawal
    returns."""
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


LIES: dict[str, Lie] = {
    "bid": bid,
    **{name: _claimed(claim) for name, claim in CLAIMS.items()},
    "several at once": several,
    "two names": two_names,
    "bid, withdraw, bid": bid_again,
    "split in two": split_in_two,
    "waiting": waiting,
    "waiting, deadline beyond the horizon": waiting_beyond_the_horizon,
    "waiting with a bid in hand": waiting_with_a_bid_in_hand,
}
"""Lies by name."""
