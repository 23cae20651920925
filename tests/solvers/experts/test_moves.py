"""Cost of a change of placement, and devices renumbered to reduce it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.experts.moves import near
from solvers.experts.placement import ExpertPlacement
from tests.support.examples import examples

ROWS = st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=3), min_size=5, max_size=5)


def loads_to_swap_in(placement, before):
    """Return the number of experts that each device has to load, (devices,)."""
    return (placement.held() & ~before.held()).sum(axis=1)


def placement(lists):
    return ExpertPlacement.of_lists([sorted(row) for row in lists], 5, 5)


def whole(rows):
    """With every expert somewhere."""
    missing = set(range(5)).difference(*rows)
    return placement([rows[0] | missing, *rows[1:]])


def test_present_experts_are_not_reloaded():
    before = placement([[0, 1], [2], [3, 4]])
    after = placement([[0, 2], [2], [1, 3, 4]])
    assert loads_to_swap_in(after, before).tolist() == [1, 0, 1]


def test_devices_are_renumbered_to_what_they_have():
    before = placement([[0, 1], [2], [3, 4]])
    after = near(placement([[3, 4], [0, 1, 2], [2]]), before)
    assert after.lists() == [[0, 1, 2], [2], [3, 4]]


@settings(max_examples=examples(200), deadline=None)
@given(ROWS, ROWS)
def test_renumbering_never_costs_and_changes_nothing_else(rows, earlier):
    new, before = whole(rows), whole(earlier)
    moved = near(new, before)
    assert sorted(moved.lists()) == sorted(new.lists())
    assert loads_to_swap_in(moved, before).sum() <= loads_to_swap_in(new, before).sum()


def test_placements_of_other_devices_are_refused():
    with pytest.raises(ValueError, match="1 experts on 2 devices after 1 on 1"):
        near(ExpertPlacement.of_lists([[0], [0]], 1), ExpertPlacement.of_lists([[0]], 1))


def test_shares_go_with_their_devices():
    before = ExpertPlacement.of_lists([[1], [0]], 2)
    new = ExpertPlacement.of_parts(np.array([[3, 0], [1, 4]]), 2)
    assert near(new, ExpertPlacement.of_lists([[0, 1], [0]], 2)).shares.tolist() in (
        [[0.25, 1.0], [0.75, 0.0]],
        [[0.75, 0.0], [0.25, 1.0]],
    )
    assert before.lists() == [[1], [0]]
