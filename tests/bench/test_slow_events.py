"""The situations of the search for slow events are of the events that they name."""

import random

import pytest

from bench.spine.slow_events import SITUATIONS
from streams.cell.cell import Cell

ELASTIC = {"round", "round after their patience", "second round", "quote", "job done", "node lost"} | {
    "another job"
}
EVENTS = {
    "experts": {"profile", "shift", "little shift", "node lost", "tick after their patience", "another job"},
    "elastic": ELASTIC,
    "elastic, pollux": ELASTIC,
    "merging": {"question", "plan", "next question", "node lost", "another job"},
    "titan": {"question", "plans", "slot begins", "node lost", "quote"},
}


@pytest.mark.parametrize("policy", SITUATIONS)
def test_each_situation_is_before_an_event_that_the_cell_decides(policy: str) -> None:
    situations = list(SITUATIONS[policy](random.Random(0), 40))
    assert {situation.what.partition(":")[0] for situation in situations} == EVENTS[policy]
    for situation in situations:
        cell, twin = Cell.unpack(situation.packed), Cell.unpack(situation.packed)
        decided = [decision.canonical for decision in cell.handle(situation.event)]
        assert decided == [decision.canonical for decision in twin.handle(situation.event)]
        assert not any(b'"reason":"stale_report"' in each for each in decided)
        assert cell.packed() != situation.packed
