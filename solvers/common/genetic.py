"""A genetic search: of each job one option, so that they fit and are worth the most together.

Selection by tournament, crossover job by job, mutation, repair to the capacity, and survival of the best, as
Pollux searches (OSDI '21). Random numbers are drawn by integer arithmetic from the seed, and values are added
in the order of the jobs, so that a search ends alike on every machine.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.compiled import Floats, Ints, kernel

Words = NDArray[np.uint64]

_HALF_BITS = np.uint64(32)


class Options(NamedTuple):
    """What each job may get. Its first option is its least, and those of one pool follow each other, the
    smaller ones first."""

    starts: Ints
    """(jobs + 1,) where each job's options begin."""
    pools: Ints
    """(options,) which capacity an option takes from."""
    gpus: Ints
    """(options,) how much of it; the first options of all jobs fit together."""
    siblings: Ints
    """(options,) the first option of the same job in the same pool."""
    values: Floats
    """(options,)"""


@kernel
def search(
    options: Options, capacity_gpus: Ints, start: Ints, generations: int, population: int, seed: np.uint64
) -> Ints:
    """The best choice that was found: (jobs,) options, never worth less than where the search starts.

    Args:
        capacity_gpus: (pools,)
        start: (jobs,) the options to start from, which fit. The first population is it and its mutations,
            from few genes to nearly all.
        generations: how often parents have as many offspring as there are parents.
        population: how many choices survive a generation, two at least.
        seed: of all that is drawn.
    """
    jobs = start.size
    state = np.array([seed], np.uint64)
    order = np.arange(jobs)
    genes = np.empty((2 * population, jobs), np.int64)
    worth = np.empty(2 * population)
    for member in range(population):
        genes[member] = start
        _mutate(options, genes[member], member * jobs // population, state)
        worth[member] = _repaired_worth(options, capacity_gpus, genes[member], order, state)
    # The rows of those that live, and then those for their offspring. Ranks are sorted but for the first
    # generation, in which a draw is as good as a tournament.
    ranks = np.arange(2 * population)
    for _ in range(generations):
        for child in ranks[population:]:
            mother = ranks[min(_draw(state, population), _draw(state, population))]
            father = ranks[min(_draw(state, population), _draw(state, population))]
            _cross(genes[mother], genes[father], genes[child], state)
            _mutate(options, genes[child], _draw_mutations(state), state)
            worth[child] = _repaired_worth(options, capacity_gpus, genes[child], order, state)
        ranks = _ranked(ranks, worth)
    best: Ints = genes[ranks[0]]
    return best


@kernel
def _draw_bits(state: Words) -> np.uint64:
    """The next 64 bits (splitmix64)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    bits: np.uint64 = state[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@kernel
def _draw(state: Words, below: int) -> int:
    """An integer below a bound that is much smaller than 2^32."""
    return int((_draw_bits(state) >> _HALF_BITS) * np.uint64(below) >> _HALF_BITS)


@kernel
def _cross(mother: Ints, father: Ints, child: Ints, state: Words) -> None:
    """Each job as in one of the parents."""
    bits = np.uint64(0)
    for job in range(child.size):
        if job % 64 == 0:
            bits = _draw_bits(state)
        # Without a branch, which would be mispredicted every other time.
        child[job] = father[job] + (mother[job] - father[job]) * np.int64(bits & np.uint64(1))
        bits >>= np.uint64(1)


@kernel
def _draw_mutations(state: Words) -> int:
    """How many jobs change: 1 on average, each number half as likely as the one before."""
    bits = _draw_bits(state)
    mutations = 0
    while bits & np.uint64(1):
        mutations += 1
        bits >>= np.uint64(1)
    return mutations


@kernel
def _mutate(options: Options, genes: Ints, mutations: int, state: Words) -> None:
    """Any of their options for so many jobs."""
    for _ in range(mutations):
        job = _draw(state, genes.size)
        first = options.starts[job]
        genes[job] = first + _draw(state, options.starts[job + 1] - first)


@kernel
def _repaired_worth(options: Options, capacity_gpus: Ints, genes: Ints, order: Ints, state: Words) -> float:
    """The worth of a choice that is first cut to the capacity: jobs in random order get less, by what is too
    much and no more."""
    left = capacity_gpus.copy()
    for job in range(genes.size):
        left[options.pools[genes[job]]] -= options.gpus[genes[job]]
    drawn = 0
    while left.min() < 0 and drawn < genes.size:
        other = drawn + _draw(state, genes.size - drawn)
        job = order[other]
        order[other] = order[drawn]
        order[drawn] = job
        drawn += 1
        pool = options.pools[genes[job]]
        if left[pool] < 0:
            left[pool] += options.gpus[genes[job]]
            genes[job] = _lessened(options, job, genes[job], left[pool])
            left[options.pools[genes[job]]] -= options.gpus[genes[job]]
    worth = 0.0
    for job in range(genes.size):
        worth += options.values[genes[job]]
    return worth


@kernel
def _lessened(options: Options, job: int, option: int, room_gpus: int) -> int:
    """The largest option in the same pool that fits, else the job's least."""
    first = options.siblings[option]
    while option >= first:
        if options.gpus[option] <= room_gpus:
            return option
        option -= 1
    least: int = options.starts[job]
    return least


@kernel
def _ranked(ranks: Ints, worth: Floats) -> Ints:
    """All rows, the best first, but after them those that are worth as much as another: most are copies.

    Ties by former rank.
    """
    order = ranks[np.argsort(-worth[ranks], kind="mergesort")]
    ranked = np.empty_like(ranks)
    copies = np.empty_like(ranks)
    filled, copied = 0, 0
    for place in range(order.size):
        if place > 0 and worth[order[place]] == worth[order[place - 1]]:
            copies[copied] = order[place]
            copied += 1
        else:
            ranked[filled] = order[place]
            filled += 1
    ranked[filled:] = copies[:copied]
    return ranked
