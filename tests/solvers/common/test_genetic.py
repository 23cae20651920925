"""The genetic search: what fits, never worse than its start, and the optimum of small problems."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.common.genetic import Options, _draw, _draw_bits, search
from tests.support.examples import examples

Job = list[tuple[int, int, float]]
"""Options as (pool, GPUs, value), the least first."""


def options_of(jobs: list[Job]) -> Options:
    flat = [option for job in jobs for option in job]
    starts = np.cumsum([0] + [len(job) for job in jobs])
    siblings = [
        min(
            start + i for i, other in enumerate(job) if (other[0], other[1] > 0) == (option[0], option[1] > 0)
        )
        for start, job in zip(starts, jobs, strict=False)
        for option in job
    ]
    return Options(
        starts=starts.astype(np.int64),
        pools=np.array([option[0] for option in flat], np.int64),
        gpus=np.array([option[1] for option in flat], np.int64),
        siblings=np.array(siblings, np.int64),
        values=np.array([option[2] for option in flat]),
    )


def worth(options: Options, chosen: np.ndarray) -> float:
    return sum(float(options.values[option]) for option in chosen)


def fits(options: Options, chosen: np.ndarray, capacity_gpus: list[int]) -> bool:
    return all(
        sum(int(options.gpus[option]) for option in chosen if options.pools[option] == pool) <= capacity
        for pool, capacity in enumerate(capacity_gpus)
    )


def found_by(options: Options, capacity_gpus: list[int], seed: int, generations: int = 250) -> np.ndarray:
    """From the least option of every job."""
    start = options.starts[:-1].copy()
    return search(options, np.array(capacity_gpus), start, generations, 20, np.uint64(seed))


def optimum(options: Options, capacity_gpus: list[int]) -> float:
    menus = [range(first, last) for first, last in itertools.pairwise(options.starts)]
    return max(
        worth(options, np.array(choice))
        for choice in itertools.product(*menus)
        if fits(options, np.array(choice), capacity_gpus)
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Job], list[int]]:
    jobs = []
    for _ in range(draw(st.integers(1, 5))):
        job: Job = [(0, 0, draw(st.floats(-5.0, 1.0)))]
        for pool in draw(st.sampled_from([(0,), (1,), (0, 1)])):
            least = draw(st.integers(1, 3))
            values = draw(st.lists(st.floats(-1.0, 5.0), min_size=1, max_size=3))
            job += [(pool, least + more, value) for more, value in enumerate(values)]
        jobs.append(job)
    return jobs, [draw(st.integers(0, 10)), draw(st.integers(0, 6))]


@given(problems(), st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_solution_has_one_fitting_option_per_job(problem: tuple[list[Job], list[int]], seed: int) -> None:
    options, capacity_gpus = options_of(problem[0]), problem[1]
    chosen = found_by(options, capacity_gpus, seed, generations=5)
    assert all(first <= option for first, option in zip(options.starts[:-1], chosen, strict=True))
    assert all(option < last for last, option in zip(options.starts[1:], chosen, strict=True))
    assert fits(options, chosen, capacity_gpus)


@given(problems(), st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_solution_is_no_worse_than_start(problem: tuple[list[Job], list[int]], seed: int) -> None:
    options, capacity_gpus = options_of(problem[0]), problem[1]
    better = found_by(options, capacity_gpus, seed, generations=3)
    for generations in (0, 5):
        found = search(options, np.array(capacity_gpus), better, generations, 20, np.uint64(seed ^ 0xABCDEF))
        assert worth(options, found) >= worth(options, better)


@given(problems(), st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=examples(50))
def test_the_optimum_of_a_small_problem_is_found(problem: tuple[list[Job], list[int]], seed: int) -> None:
    options, capacity_gpus = options_of(problem[0]), problem[1]
    found = worth(options, found_by(options, capacity_gpus, seed))
    assert found == pytest.approx(optimum(options, capacity_gpus), abs=1e-9)


def test_a_search_ends_alike_on_every_machine() -> None:
    jobs: list[Job] = [
        [(0, 0, -10.0)]
        + [(pool, gpus, -number / gpus) for pool in (0, 1) for gpus in range(number, 2 * number)]
        for number in range(2, 12)
    ]
    found = found_by(options_of(jobs), [24, 9], seed=2024, generations=2)
    assert found.tolist() == [0, 7, 16, 21, 32, 52, 60, 87, 96, 117]


def test_random_bits_are_those_of_splitmix64() -> None:
    def reference(seed: int, count: int) -> list[int]:
        mask, drawn = 2**64 - 1, []
        for _ in range(count):
            seed = (seed + 0x9E3779B97F4A7C15) & mask
            bits = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & mask
            bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
            drawn.append(bits ^ (bits >> 31))
        return drawn

    for seed in (0, 1_234_567, 2**64 - 1):
        state = np.array([seed], np.uint64)
        assert [int(_draw_bits(state)) for _ in range(50)] == reference(seed, 50)
    assert reference(1_234_567, 2) == [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]


def test_draws_are_even_and_below_their_bound() -> None:
    state = np.array([7], np.uint64)
    drawn = [int(_draw(state, 6)) for _ in range(6_000)]
    counts = [drawn.count(number) for number in range(6)]
    assert sum(counts) == 6_000
    assert min(counts) > 900
    assert max(counts) < 1_100
