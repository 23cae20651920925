"""Where allreduce micro-ops are put in a step, and in which order a rank then issues."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.gang.group import DisagreementError
from executors.moe.parallel.micro_ops import CollectiveKind, MicroOpRecord
from executors.moe.parallel.planning import (
    MeasuredAllreduce,
    PlannedOrder,
    StepPlan,
    measured_step,
    plan_step,
)

A, R = CollectiveKind.ALL_TO_ALL, CollectiveKind.ALLREDUCE

gaps = st.lists(st.integers(0, 6), max_size=4)
allreduces = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 4)), max_size=4).map(
    lambda drawn: [MeasuredAllreduce(*each) for each in sorted(drawn)]
)


def issued(order: PlannedOrder) -> list[CollectiveKind]:
    kinds = []
    while (kind := order.next(0.0)) is not None:
        kinds.append(kind)
    return kinds


def test_step_is_planned_from_its_recording() -> None:
    records = [
        MicroOpRecord(0, A, "", 0, submitted_s=1.0, issued_s=1.0, completed_s=2.0),
        MicroOpRecord(0, R, "", 0, submitted_s=2.5, issued_s=2.5, completed_s=3.0),
        MicroOpRecord(0, A, "", 0, submitted_s=4.0, issued_s=4.0, completed_s=6.0),
        MicroOpRecord(0, A, "", 0, submitted_s=4.5, issued_s=6.0, completed_s=7.0),
        MicroOpRecord(0, R, "", 0, submitted_s=4.6, issued_s=7.0, completed_s=9.0),
    ]
    assert measured_step(records, began_s=0.5) == (
        [0.5, 2.0, 0.0],
        [MeasuredAllreduce(1, 0.5, 0.5), MeasuredAllreduce(3, 0.0, 2.0)],
    )


def test_allreduce_goes_into_first_fitting_gap() -> None:
    each = MeasuredAllreduce(all_to_alls_before=1, ready_s=0.0, duration_s=2.0)
    assert plan_step([9.0, 1.0, 5.0], [each, each, each]).all_to_alls_before == (2, 2, 3)


def test_late_allreduce_may_miss_its_gap() -> None:
    late = MeasuredAllreduce(all_to_alls_before=0, ready_s=2.0, duration_s=2.0)
    assert plan_step([3.0, 2.0], [late]).all_to_alls_before == (1,)


@given(gaps_s=gaps, measured=allreduces)
def test_plan_ends_allreduces_early_without_delay(
    gaps_s: list[int], measured: list[MeasuredAllreduce]
) -> None:
    measured = [each for each in measured if each.all_to_alls_before <= len(gaps_s)]
    plan = plan_step(gaps_s, measured)
    possible = [
        after
        for after in product(range(len(gaps_s) + 1), repeat=len(measured))
        if all(earlier <= later for earlier, later in pairwise(after)) and fits(gaps_s, measured, after)
    ]
    assert plan.all_to_alls_before in possible
    # Compared as the order of micro-ops has it.
    assert all(plan.all_to_alls_before <= after for after in possible)


def fits(gaps_s: list[int], measured: list[MeasuredAllreduce], after: tuple[int, ...]) -> bool:
    ends_s = [0.0] * (len(gaps_s) + 1)
    for gap, each in zip(after, measured, strict=True):
        if gap < each.all_to_alls_before:
            return False
        begins_s = max(ends_s[gap], each.ready_s if gap == each.all_to_alls_before else 0.0)
        ends_s[gap] = begins_s + each.duration_s
    return all(end_s <= gap_s for end_s, gap_s in zip(ends_s, gaps_s, strict=False) if end_s > 0)


def test_allreduce_follows_planned_all_to_alls() -> None:
    order = PlannedOrder()
    order.begin_step(StepPlan((2, 2)))
    for kind in (A, R, R, A, A):
        order.submitted(kind, "")
    assert issued(order) == [A, A, R, R, A]


def test_late_allreduce_is_issued_at_once() -> None:
    order = PlannedOrder()
    order.begin_step(StepPlan((1,)))
    for kind in (A, A, R):
        order.submitted(kind, "")
    assert issued(order) == [A, A, R]


def test_unplanned_order_is_that_of_submission() -> None:
    order = PlannedOrder()
    for kind in (R, A, R):
        order.submitted(kind, "")
    assert issued(order) == [R, A, R]


def test_step_with_fewer_all_to_alls_is_refused() -> None:
    order = PlannedOrder()
    order.begin_step(StepPlan((3,)))
    order.submitted(A, "")
    order.submitted(R, "")
    with pytest.raises(
        DisagreementError, match="1 all-to-all micro-ops, but its plan has allreduces after 3"
    ):
        order.begin_step(StepPlan(()))


def test_plan_reordering_allreduces_is_refused() -> None:
    with pytest.raises(ValueError, match="must not decrease"):
        StepPlan((2, 1))


def test_digests_distinguish_plans() -> None:
    assert StepPlan((1, 2)).digest == StepPlan((1, 2)).digest
    assert StepPlan((1, 2)).digest != StepPlan((1, 3)).digest
