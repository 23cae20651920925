"""A zone that merges decides as one that does not, until past merges show that merging pays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base import Outcome
from schemas.decisions import JobCompleted
from schemas.merging.commands import TaskAssigned
from schemas.merging.settings import MergingPolicy
from tests.support.examples import examples
from tests.support.merging import World, merging_cell, submit

ARRIVALS = st.lists(
    st.tuples(st.floats(0.0, 900.0), st.sampled_from("abc"), st.integers(2, 6)), min_size=3, max_size=9
)


def history(modes: tuple[str, ...], arrivals: list[tuple[float, str, int]]) -> list[Outcome]:
    """Return a zone's decisions on jobs, each given by time of arrival, data and number of epochs."""
    world = World(merging_cell(1, 2, modes=modes))
    seen: list[Outcome] = []
    for number, (after_s, data, epochs) in enumerate(arrivals):
        seen += world.send(submit(f"j{number}", data=data, epochs=epochs))
        seen += world.run(after_s)
    seen += world.run_until_idle()
    return [outcome for outcome in seen if isinstance(outcome, TaskAssigned | JobCompleted)]


@pytest.mark.long
@settings(max_examples=examples(6), deadline=None)
@given(ARRIVALS)
def test_without_evidence_jobs_run_as_unmerged(
    arrivals: list[tuple[float, str, int]],
) -> None:
    merging, without = (history(modes, arrivals) for modes in (MergingPolicy().modes, ()))
    assert merging == without
    assert sum(isinstance(outcome, JobCompleted) for outcome in merging) == len(arrivals)
