"""The situations of the search for slow events are of the events that they name."""

import random

import pytest

from bench.spine.slow_events import SITUATIONS
from streams.cell.state_machine import Cell

ELASTIC = {"round", "round after their patience", "second round", "quote", "job done", "node lost"} | {
    "another job",
    "node silent",
    "round after lost nodes",
}
EVENTS = {
    "experts": {"profile", "shift", "little shift", "node lost", "tick after their patience", "another job"},
    "elastic": ELASTIC,
    "merging": {"question", "plan", "next question", "node lost", "another job"},
    "titan": {"question", "plans", "slot begins", "node lost", "quote"},
    "loans": {"offer", "reclaim", "round after a reclaim"},
}
IDLE = (
    b'"reason":"stale_report"',
    b'"reason":"invalid_configuration"',
    b'"reason":"nothing_changes"',
    b'"reason":"more_than_on_loan"',
)


@pytest.mark.slow
@pytest.mark.parametrize("policy", SITUATIONS)
def test_situation_precedes_decided_event(policy: str) -> None:
    situations = list(SITUATIONS[policy](random.Random(0), 40))
    assert {situation.what.partition(":")[0] for situation in situations} == EVENTS[policy]
    for situation in situations:
        cell, twin = Cell.unpack(situation.packed), Cell.unpack(situation.packed)
        decided = [decision.canonical for decision in cell.handle(situation.event)]
        assert decided == [decision.canonical for decision in twin.handle(situation.event)]
        assert not any(reason in each for each in decided for reason in IDLE)
        assert cell.packed() != situation.packed
