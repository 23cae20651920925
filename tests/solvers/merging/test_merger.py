"""The task merger against enumeration of all plans, with costs computed one by one from Eqs. 6 to 13."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.merging.random_instances import TimedKind, listed
from schemas.merging.problems import MergeProblem, MergeSolution, StepTime, TransferPair, Unit
from solvers.merging import offers
from solvers.merging import options as options_module
from solvers.merging.merger import merge, smallest
from solvers.merging.options import options_of
from tests.support.examples import examples

LIMIT_S = 30.0


def kind(steps: dict[int, float], batch: int = 8, samples: int = 800) -> TimedKind:
    return TimedKind(
        steps=tuple(StepTime(gpus=gpus, step_s=step_s) for gpus, step_s in steps.items()),
        samples_per_step=batch,
        dataset_samples=samples,
    )


def unit(job_id: str, kind: int = 0, iterations: float = 100.0, **fields: object) -> Unit:
    defaults = {"job_ids": (job_id,), "waited_s": 0.0, "part": "any", "gpus": 0}
    return Unit.model_validate({"kind": kind, "iterations": iterations, **defaults, **fields})


def problem(
    gpus: int,
    kinds: Sequence[TimedKind],
    units: Sequence[Unit],
    transfers: Sequence[TransferPair] = (),
    switch_s: float = 0.0,
    interval_s: float = 120.0,
) -> MergeProblem:
    return MergeProblem(
        gpus=gpus,
        interval_s=interval_s,
        switch_s=switch_s,
        **listed(kinds),
        units=tuple(units),
        transfers=tuple(transfers),
    )


def solved(asked: MergeProblem) -> MergeSolution:
    return merge(asked, LIMIT_S)


class Costs:
    """Every option of a problem, one at a time."""

    def __init__(self, asked: MergeProblem) -> None:
        self.problem = asked
        self.share = math.ceil(asked.gpus / sum(len(one.job_ids) for one in asked.units))

    def steps(self, kind: int) -> dict[int, float]:
        return {
            step.gpus: step.step_s for step in self.problem.steps_of(kind) if step.gpus <= self.problem.gpus
        }

    def times(self, one: Unit) -> dict[int, float]:
        return {gpus: step_s * one.iterations for gpus, step_s in self.steps(one.kind).items()}

    @staticmethod
    def fair(times: dict[int, float], share: int) -> float:
        return times[max((gpus for gpus in times if gpus <= share), default=min(times))]

    def alone(self, one: Unit) -> dict[int, float]:
        """By GPUs; 0 for waiting."""
        times, weight = self.times(one), len(one.job_ids)
        if not times:
            return {0: 0.0}
        fair_s = self.fair(times, weight * self.share)
        switch = weight * self.problem.switch_s / fair_s
        costs = {
            gpus: weight * time_s / fair_s + (switch if gpus != one.gpus or one.follower is not None else 0.0)
            for gpus, time_s in times.items()
        }
        longest_s = max(times.values())
        waits_s = longest_s + max(one.waited_s - longest_s, 0.0) + self.problem.interval_s
        costs[0] = min(weight * waits_s / fair_s + (switch if one.gpus else 0.0), 1e6)
        return costs

    def merged(self, donor: Unit, receiver: Unit) -> Iterator[tuple[str, int, float]]:
        for transfer in self.problem.transfers:
            fits = (transfer.donor, transfer.receiver) == (donor.kind, receiver.kind)
            needed = ("any",) if transfer.mode == "spatial" else ("any", "donor")
            if not fits or receiver.part != "any" or donor.part not in needed:
                continue
            alone_a, alone_b = self.times(donor), self.times(receiver)
            both = sorted(alone_a.keys() & alone_b.keys())
            if transfer.mode == "temporal":
                merged = {a: alone_a[a] + alone_b[a] * transfer.receiver_ratio for a in both}
                ends = {a: alone_a[a] + merged[a] for a in both}
            else:
                kind_a, kind_b = (self.problem.kinds[one.kind] for one in (donor, receiver))
                epochs = max(
                    transfer.donor_ratio
                    * donor.iterations
                    * kind_a.samples_per_step
                    / kind_a.dataset_samples,
                    transfer.receiver_ratio
                    * receiver.iterations
                    * kind_b.samples_per_step
                    / kind_b.dataset_samples,
                )
                steps = (
                    epochs
                    * (kind_a.dataset_samples + kind_b.dataset_samples)
                    / (kind_a.samples_per_step + kind_b.samples_per_step)
                )
                step_a, step_b = self.steps(donor.kind), self.steps(receiver.kind)
                merged = {a: (step_a[a] + step_b[a]) * steps for a in both}
                ends = {a: 2 * merged[a] for a in both}
            for a in both:
                shorter, longer = sorted([alone_a[a], alone_b[a]])
                weight = (2 * shorter + longer) / ends[a]
                if weight < 1:
                    continue
                fair_s = self.fair(merged, 2 * self.share)
                follows = donor.follower == receiver.job_ids[0]
                changes = transfer.mode == "spatial" or a != donor.gpus or not follows
                switch = 2 * self.problem.switch_s / fair_s if changes else 0.0
                yield transfer.mode, a, 2 * merged[a] / fair_s / weight + switch

    def of(self, solution: MergeSolution) -> float:
        """The objective of a solution; it must be one."""
        return sum(self.parts(solution))

    def parts(self, solution: MergeSolution) -> tuple[float, float]:
        """Return the costs of the tasks that run, and of those that wait."""
        units = {id: one for one in self.problem.units for id in one.job_ids}
        left = {one.job_ids: one for one in self.problem.units}
        total, gpus = 0.0, 0
        for share in solution.shares:
            gpus += share.gpus
            if share.job_ids in left:
                total += self.alone(left.pop(share.job_ids))[share.gpus]
                continue
            donor, receiver = (units[id] for id in share.job_ids)
            assert left.pop(donor.job_ids) is donor
            assert left.pop(receiver.job_ids) is receiver
            total += min(
                cost
                for mode, a, cost in self.merged(donor, receiver)
                if (mode, a) == (share.mode, share.gpus)
            )
        assert gpus <= self.problem.gpus
        return total, sum(self.alone(one)[0] for one in left.values())

    def least(self) -> float:
        """Return the least cost of all plans."""
        return self._least(list(self.problem.units), self.problem.gpus)

    def _least(self, units: list[Unit], gpus: int) -> float:
        if not units:
            return 0.0
        first, rest = units[0], units[1:]
        best = min(cost + self._least(rest, gpus - a) for a, cost in self.alone(first).items() if a <= gpus)
        for index, other in enumerate(rest):
            others = rest[:index] + rest[index + 1 :]
            for donor, receiver in ((first, other), (other, first)):
                for _, a, cost in self.merged(donor, receiver):
                    if a <= gpus:
                        best = min(best, cost + self._least(others, gpus - a))
        return best


step_times = st.lists(st.floats(0.01, 4.0), min_size=1, max_size=4).map(
    lambda times: dict(zip((1, 2, 3, 4), sorted(set(times), reverse=True), strict=False))
)
waits = st.floats(0, 1e4) | st.just(0.0) | st.floats(1e5, 1e9)
"""The saving of one unit that has waited very long must not hide the costs of the others."""
kinds_drawn = st.builds(kind, step_times, st.integers(1, 64), st.integers(64, 10_000))


@st.composite
def problems(draw: st.DrawFn) -> MergeProblem:
    kinds = draw(st.lists(kinds_drawn, min_size=1, max_size=3))
    # Jobs of a kind that have no progress need as many iterations.
    iterations = [draw(st.floats(1, 1e5)) for _ in kinds]
    units = []
    for number in range(draw(st.integers(1, 5))):
        index = draw(st.integers(0, len(kinds) - 1))
        part = draw(st.sampled_from(["none", "donor", "any"]))
        left = iterations[index] if part == "any" else draw(st.floats(1, 1e5))
        waited_s = draw(waits)
        gpus = draw(st.integers(0, 4)) if part != "any" else 0
        ids = (f"j{number}", f"k{number}") if part == "none" and draw(st.booleans()) else (f"j{number}",)
        follower = draw(st.sampled_from([None, "j0", "j1"])) if part == "donor" and gpus else None
        fields = {"part": part, "waited_s": waited_s, "gpus": gpus, "job_ids": ids, "follower": follower}
        units.append(unit("", index, left, **fields))
    pairs = st.tuples(st.sampled_from(["temporal", "spatial"]), *[st.integers(0, len(kinds) - 1)] * 2)
    transfers = [
        TransferPair(
            mode=mode,
            donor=donor,
            receiver=receiver,
            receiver_ratio=draw(st.floats(0.05, 2)),
            donor_ratio=draw(st.floats(0.05, 2)) if mode == "spatial" else 1.0,
        )
        for mode, donor, receiver in draw(st.lists(pairs, max_size=4, unique=True))
    ]
    return problem(draw(st.integers(1, 6)), kinds, units, transfers, draw(st.floats(0, 60)))


def helped(donor: int, receiver: int, ratio: float) -> TransferPair:
    return TransferPair(mode="temporal", donor=donor, receiver=receiver, receiver_ratio=ratio)


LATE_WITH_NEW = (
    problem(
        4,
        [kind({2: 0.08, 4: 0.05})],
        [unit("late", 0, 500.0, waited_s=2e5), unit("a", 0, 500.0), unit("b", 0, 500.0)],
        [helped(0, 0, 0.4)],
    ),
    problem(
        4,
        [kind({2: 0.3}), kind({2: 2.0})],
        [unit("late", 0, 40.0, waited_s=7e5), unit("a", 1, 40.0), unit("b", 0, 40.0)],
        [
            helped(0, 0, 0.1),
            TransferPair(mode="spatial", donor=0, receiver=1, receiver_ratio=0.1, donor_ratio=0.1),
        ],
    ),
    problem(
        4,
        [kind({4: 0.07}), kind({1: 0.2})],
        [
            unit("late", 1, 40.0, waited_s=1e5),
            unit("wide", 0, 7_000.0),
            *(unit(id, 1, 40.0) for id in ("a", "b")),
        ],
        [helped(1, 1, 0.2)],
    ),
)
"""A thousandth of what is saved, nearly all of it by the unit that is late, is more than what all other plans
differ in."""


@settings(deadline=None, max_examples=examples(150))
@given(problems())
@example(LATE_WITH_NEW[0])
@example(LATE_WITH_NEW[1])
@example(LATE_WITH_NEW[2])
def test_plan_is_best_and_bound_below(asked: MergeProblem) -> None:
    """By a thousandth of what those cost that run, or of what is saved."""
    solution = solved(asked)
    costs = Costs(asked)
    least = costs.least()
    running, waiting = costs.parts(solution)
    assert running + waiting == pytest.approx(solution.objective, rel=1e-9)
    assert solution.search == "optimal"
    all_wait = sum(costs.alone(one)[0] for one in asked.units)
    allowed = 1.001e-3 * min(all_wait - least, running)
    assert running + waiting <= least + allowed + 2e-12 * all_wait + 1e-9
    assert solution.bound <= least * (1 + 1e-9) + 1e-6
    assert solution.bound <= solution.objective


@settings(deadline=None, max_examples=examples(60))
@given(problems())
def test_few_sizes_give_exact_plan_and_bound(asked: MergeProblem) -> None:
    with mock.patch.multiple(offers, _MOST_OFFERS=0, _MOST_PER_UNIT=2):
        solution = solved(asked)
    costs = Costs(asked)
    assert costs.of(solution) == pytest.approx(solution.objective, rel=1e-9)
    assert solution.bound <= costs.least() * (1 + 1e-9) + 1e-6
    assert solution.bound <= solution.objective


@settings(deadline=None, max_examples=examples(60))
@given(problems(), st.integers(1, 8))
def test_merge_costs_are_independent_of_batching(asked: MergeProblem, cells: int) -> None:
    together = options_of(asked).merges
    with mock.patch.object(options_module, "_CELLS_AT_ONCE", cells):
        apart = options_of(asked).merges
    assert np.array_equal(apart.cost, together.cost)
    assert np.array_equal(apart.switch, together.switch)


def test_merge_keeps_cheapest_and_present_size() -> None:
    steps = kind({gpus: 1.0 / gpus**0.9 for gpus in range(1, 13)})
    units = [unit("a", part="donor", gpus=1, follower="b"), unit("b")]
    asked = problem(12, [steps], units, [helped(0, 0, 0.3)])
    prices = offers.UnitPrices(0.0, np.zeros(2))
    every = offers.offers_of(asked, options_of(asked), prices, 100)
    with mock.patch.object(offers, "_MOST_OFFERS", 0):
        few = offers.offers_of(asked, options_of(asked), prices, 100)
    merged = {(gpus, present) for _, b, gpus, _, _, _, present in every.rows.tolist() if b == 1}
    assert merged == {(gpus, gpus == 1) for gpus in range(1, 13)}
    merged = {(gpus, present) for _, b, gpus, _, _, _, present in few.rows.tolist() if b == 1}
    assert merged == {(1, True), *((gpus, False) for gpus in range(6, 13))}
    assert every.is_all
    assert not few.is_all


def test_two_jobs_that_help_each_other_are_merged() -> None:
    (share,) = solved(smallest()).shares
    assert (sorted(share.job_ids), share.mode, share.gpus) == (["a", "b"], "temporal", 2)


def test_who_would_be_slower_merged_is_not() -> None:
    unhelpful = TransferPair(mode="temporal", donor=0, receiver=0, receiver_ratio=1.01)
    asked = smallest().model_copy(update={"transfers": (unhelpful,)})
    assert {share.mode for share in solved(asked).shares} == {"normal"}


def test_job_with_progress_is_only_donor() -> None:
    fields = {"receiver_ratio": 0.05, "donor_ratio": 0.05}
    both = [TransferPair(mode=mode, donor=0, receiver=0, **fields) for mode in ("temporal", "spatial")]
    started = [unit("a", part="donor", gpus=1), unit("b", part="donor", gpus=1)]
    asked = problem(2, [kind({1: 1.0, 2: 0.6})], started, both)
    assert {share.mode for share in solved(asked).shares} == {"normal"}
    fresh = problem(2, [kind({1: 1.0, 2: 0.6})], [started[0], unit("b")], both)
    (share,) = solved(fresh).shares
    assert (share.job_ids, share.mode) == (("a", "b"), "temporal")


def test_small_gain_is_not_worth_switches() -> None:
    """Two jobs with 2 and 1 GPUs, the other way round nearly as good."""
    kinds = [kind({1: 1.0, 2: 0.5}), kind({1: 1.0, 2: 0.499})]
    running = [unit("a", 0, gpus=2, part="donor"), unit("b", 1, gpus=1, part="donor")]
    kept = solved(problem(3, kinds, running, switch_s=10.0))
    assert {share.job_ids[0]: share.gpus for share in kept.shares} == {"a": 2, "b": 1}
    free = solved(problem(3, kinds, running, switch_s=0.0))
    assert {share.job_ids[0]: share.gpus for share in free.shares} == {"a": 1, "b": 2}


def test_small_merge_gain_is_not_worth_switch() -> None:
    kinds = [kind({1: 1.0, 2: 0.5})]
    helps = [TransferPair(mode="temporal", donor=0, receiver=0, receiver_ratio=0.95)]

    def modes(units: list[Unit], switch_s: float) -> list[str]:
        return [share.mode for share in solved(problem(2, kinds, units, helps, switch_s)).shares]

    running = [unit("a", gpus=1), unit("b", gpus=1)]
    assert modes(running, switch_s=10.0) == ["normal", "normal"]
    assert modes(running, switch_s=0.1) == ["temporal"]
    under_way = [unit("a", part="donor", gpus=2, follower="b"), unit("b")]
    assert modes(under_way, switch_s=10.0) == ["temporal"]


def turns(cost_of_waiting: bool) -> list[str]:
    """Return the job that runs in each interval, where a long job competes with an endless series of short
    ones."""
    waited_s = {"long": 0.0}
    ran = []
    for number in range(200):
        units = [unit("long", 0, 1_000.0, waited_s=waited_s["long"], part="none")]
        units.append(unit(f"short{number}", 0, 100.0, part="none"))
        asked = problem(1, [kind({1: 1.0})], units, interval_s=100.0)
        if cost_of_waiting:
            (share,) = solved(asked).shares
            chosen = share.job_ids[0]
        else:
            chosen = _as_printed(asked)
        ran.append(chosen)
        if chosen == "long":
            break
        waited_s["long"] += asked.interval_s
    return ran


def _as_printed(asked: MergeProblem) -> str:
    """Return the job that Eq. 6 as printed lets run: the least sum of T_fair / T_a, with T_a infinite for a
    waiting job."""
    costs = Costs(asked)
    best = math.inf
    chosen = ""
    for sizes in product((0, 1), repeat=len(asked.units)):
        if sum(sizes) > asked.gpus:
            continue
        total = 0.0
        for one, size in zip(asked.units, sizes, strict=True):
            times = costs.times(one)
            total += costs.fair(times, costs.share) / (times[size] if size else math.inf)
        if total < best:
            best = total
            chosen = next((one.job_ids[0] for one, size in zip(asked.units, sizes, strict=True) if size), "")
    return chosen


def test_printed_ratio_starves_and_corrected_does_not() -> None:
    """Erratum Y1: the sum of T_fair / T_a is least, namely zero, if no job ever runs."""
    assert set(turns(cost_of_waiting=False)) == {""}
    ran = turns(cost_of_waiting=True)
    assert ran[0] == "short0"
    assert ran[-1] == "long"
    assert len(ran) < 25


def test_the_same_problem_has_the_same_answer() -> None:
    rng = np.random.default_rng(3)
    kinds = [kind({1: 1.0, 2: 0.6, 4: 0.4}), kind({1: 2.0, 2: 1.1, 3: 0.9})]
    units = [unit(f"j{n}", n % 2, float(rng.integers(10, 1_000)), part="donor") for n in range(40)]
    asked = problem(16, kinds, units)
    assert solved(asked) == solved(asked)


@settings(deadline=None, max_examples=examples(150))
@given(problems())
def test_plan_without_time_is_no_worse(asked: MergeProblem) -> None:
    costs = Costs(asked)
    solution = merge(asked, 0.0)
    assert costs.of(solution) == pytest.approx(solution.objective, rel=1e-9)
    assert solution.bound <= costs.least() * (1 + 1e-9) + 1e-6
    assert solution.objective <= sum(costs.alone(one)[0] for one in asked.units) * (1 + 1e-9)


def test_time_limit_costs_only_stated_quality() -> None:
    helps = [TransferPair(mode="temporal", donor=0, receiver=0, receiver_ratio=0.9)]
    asked = problem(5, [kind({1: 1.0, 2: 0.6, 4: 0.4})], [unit(f"j{n}") for n in range(4)], helps)
    hurried, solved_out = merge(asked, 0.0), merge(asked, LIMIT_S)
    assert (hurried.search, solved_out.search) == ("limited", "optimal")
    assert Costs(asked).of(hurried) == pytest.approx(hurried.objective)
    assert solved_out.objective < hurried.objective


@pytest.mark.parametrize(
    "fields",
    [
        {"kinds": 1, "units": 10_000, "gpus": 1_024, "transfers": 1},
        {"kinds": 32, "units": 2_000, "gpus": 1_024, "transfers": 2_048},
        {"kinds": 2_000, "units": 4_000, "gpus": 64, "transfers": 16_384},
    ],
    ids=["equal jobs", "long tables", "many transfers"],
)
def test_the_largest_problems_have_a_plan(fields: dict[str, int]) -> None:
    sizes = [1, 2, 3, *range(4, fields["gpus"] + 1, 4)]
    kinds = [kind({size: 1.0 / (size + 0.1 * n) for size in sizes}) for n in range(fields["kinds"])]
    units = [unit(f"j{n}", n % len(kinds), 100.0 + n % len(kinds)) for n in range(fields["units"])]
    pairs = product(("temporal", "spatial"), range(len(kinds)), range(len(kinds)))
    transfers = [
        TransferPair(mode=mode, donor=a, receiver=b, receiver_ratio=0.1 + 0.5 * ((a + b) % 7) / 7)
        for (mode, a, b), _ in zip(pairs, range(fields["transfers"]), strict=False)
    ]
    asked = problem(fields["gpus"], kinds, units, transfers, switch_s=3.0)
    solution = merge(asked, 0.0)
    assert sum(share.gpus for share in solution.shares) == fields["gpus"]
    job_ids = [job_id for share in solution.shares for job_id in share.job_ids]
    assert len(job_ids) == len(set(job_ids))
    assert solution.objective >= solution.bound >= 0


def served(lengths_s: Sequence[float], interval_s: float, switch_s: float) -> list[int]:
    """Return the job that runs on one GPU in each interval, until all are done."""
    left_s = dict(enumerate(lengths_s))
    waited_s = dict.fromkeys(left_s, 0.0)
    ran: list[int] = []
    while left_s:
        units = [
            unit(
                f"{job}",
                0,
                left_s[job],
                part="none",
                waited_s=waited_s[job],
                gpus=int(ran[-1:] == [job]),
            )
            for job in left_s
        ]
        (share,) = solved(problem(1, [kind({1: 1.0})], units, (), switch_s, interval_s)).shares
        (runs,) = (int(job_id) for job_id in share.job_ids)
        ran.append(runs)
        left_s[runs] -= interval_s - (0.0 if ran[-2:-1] == [runs] else min(switch_s, interval_s / 2))
        waited_s = {job: waited_s[job] + (0.0 if job == runs else interval_s) for job in left_s}
        if left_s[runs] <= 0:
            del left_s[runs]
    return ran


def starts(ran: Sequence[int]) -> int:
    return sum(before != after for before, after in zip([-1, *ran], ran, strict=False))


def test_equal_jobs_do_not_alternate() -> None:
    assert starts(served([600.0] * 12, interval_s=120.0, switch_s=3.0)) == 12


def test_two_equal_jobs_run_in_sequence() -> None:
    first, *_ = ran = served([600.0, 600.0], interval_s=120.0, switch_s=3.0)
    assert ran == [first] * 6 + [1 - first] * 6


@settings(deadline=None, max_examples=examples(30))
@given(st.floats(10, 3_000), st.floats(60, 300), st.floats(0, 25))
def test_two_equal_jobs_start_once_each(length_s: float, interval_s: float, switch_s: float) -> None:
    assert starts(served([length_s, length_s], interval_s, switch_s)) == 2


@pytest.mark.long
@settings(deadline=None, max_examples=examples(30))
@given(st.lists(st.floats(60, 1_500), min_size=2, max_size=4), st.floats(60, 300), st.floats(0, 30))
def test_jobs_of_any_length_end(lengths_s: list[float], interval_s: float, switch_s: float) -> None:
    ran = served(lengths_s, interval_s, switch_s)
    assert set(ran) == set(range(len(lengths_s)))
    assert starts(ran) <= 3 * len(lengths_s)


def test_unknown_kind_of_unit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"units\[1\]: there is no kind 1; there are 1"):
        problem(1, [kind({1: 1.0})], [unit("a", 0), unit("b", 1)])


def test_job_larger_than_zone_waits() -> None:
    wide = problem(3, [kind({4: 1.0}), kind({1: 1.0})], [unit("wide", 0), unit("small", 1)])
    (share,) = solved(wide).shares
    assert share.job_ids == ("small",)


@pytest.mark.parametrize("step_s", [5e-324, 1e-9, 1e-3])
def test_nearly_completed_job_starts_eventually(step_s: float) -> None:
    left = unit("a", iterations=1.0, waited_s=1e6)
    (share,) = solved(problem(1, [kind({1: step_s})], [left], switch_s=3_600.0)).shares
    assert share.job_ids == ("a",)
