"""Real jobs on workers of unlike speed, measured."""

import pytest

from bench.elastic.mixed import Mix, measure_mixes
from bench.goals import goals


@pytest.mark.long
def test_slower_worker_adds_speed() -> None:
    result = measure_mixes([Mix(1, 1, 2.0)], 1)
    wanted = {name for name, goal in goals("elastic").items() if goal.part == "mixed"}
    assert {measured.name for measured in result.measurements} == wanted
    (table,) = result.tables
    (row,) = table.rows
    # An even split would be half as fast again as the slow worker alone: no faster than the fast one.
    assert float(row["speedup"]) > 1.1
