"""Genetic search for one option per job: the options fit together, and their total value is largest.

Selection by tournament, crossover job by job, mutation, repair to the capacity, and survival of the best, as
Pollux searches (OSDI '21). Random numbers are drawn by integer arithmetic from the seed, and values are added
in the order of the jobs, so the result of a search is the same on every machine.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.compiled import Floats, Ints, kernel

Words = NDArray[np.uint64]

_HALF_BITS = np.uint64(32)


class Options(NamedTuple):
    """Options of each job. The first is the smallest. Options of one pool are adjacent, by ascending size."""

    starts: Ints
    """Index at which each job's options begin, (jobs + 1,)."""
    pools: Ints
    """Pool whose capacity an option uses, (options,)."""
    gpus: Ints
    """GPUs that an option uses, (options,). The first options of all jobs fit together."""
    siblings: Ints
    """First option of the same job in the same pool, (options,)."""
    values: Floats
    """Value of each option, (options,)."""


@kernel
def search(
    options: Options, capacity_gpus: Ints, start: Ints, generations: int, population: int, seed: np.uint64
) -> Ints:
    """Return the best choice found, (jobs,) options. It is never worth less than the start.

    Args:
        capacity_gpus: (pools,)
        start: (jobs,) options to start from, which fit. The first population is the start and mutations of
            it, from few genes to nearly all.
        generations: number of generations. In each, there are as many offspring as parents.
        population: number of choices that survive a generation, at least 2.
        seed: seed of all random numbers.
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
    # Rows of the survivors, then rows for their offspring. Ranks are sorted except in the first generation,
    # in which a draw is as good as a tournament.
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
    """Return the next 64 bits (splitmix64)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    bits: np.uint64 = state[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@kernel
def _draw(state: Words, below: int) -> int:
    """Return a random integer below a bound that is much smaller than 2^32."""
    return int((_draw_bits(state) >> _HALF_BITS) * np.uint64(below) >> _HALF_BITS)


@kernel
def _cross(mother: Ints, father: Ints, child: Ints, state: Words) -> None:
    """Copy the option of each job from one of the parents."""
    bits = np.uint64(0)
    for job in range(child.size):
        if job % 64 == 0:
            bits = _draw_bits(state)
        # No branch: it would be mispredicted half of the time.
        child[job] = father[job] + (mother[job] - father[job]) * np.int64(bits & np.uint64(1))
        bits >>= np.uint64(1)


@kernel
def _draw_mutations(state: Words) -> int:
    """Return the number of jobs to change: 1 on average, each number half as likely as the one before."""
    bits = _draw_bits(state)
    mutations = 0
    while bits & np.uint64(1):
        mutations += 1
        bits >>= np.uint64(1)
    return mutations


@kernel
def _mutate(options: Options, genes: Ints, mutations: int, state: Words) -> None:
    """Replace the options of so many random jobs by random ones."""
    for _ in range(mutations):
        job = _draw(state, genes.size)
        first = options.starts[job]
        genes[job] = first + _draw(state, options.starts[job + 1] - first)


@kernel
def _repaired_worth(options: Options, capacity_gpus: Ints, genes: Ints, order: Ints, state: Words) -> float:
    """Cut a choice to the capacity, reducing jobs in random order as far as necessary; return its value."""
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
    """Return the largest option in the same pool that fits, else the job's smallest."""
    first = options.siblings[option]
    while option >= first:
        if options.gpus[option] <= room_gpus:
            return option
        option -= 1
    least: int = options.starts[job]
    return least


@kernel
def _ranked(ranks: Ints, worth: Floats) -> Ints:
    """Sort the rows by value, the best first. Rows with the value of an earlier row come last as copies.

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
