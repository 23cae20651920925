"""A node obeys the slots of its cell, and no forged one makes it deaf."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.lora.slots.calendar import CLOCK_TOLERANCE_S, SlotCalendar
from executors.node.runner import Objection
from schemas.lora_commands import SlotAssigned
from solvers.auction.market.fleet import Calendar
from tests.support.executors import assignment, order

NOW_S = 1_050.0
PRESENT = assignment(slot=2)

PASSED_OVER = {
    "a slot that is over": (assignment(slot=1, start_s=900.0), "the slot is over"),
    "the present slot again": (assignment(slot=2), "the slot is not newer"),
    "a slot before the present one": (assignment(slot=2, start_s=980.0), "the slot is not newer"),
}
IMPOSSIBLE = {
    "without end": assignment(slot=3, length_s=1e300),
    "longer than any": assignment(slot=3, length_s=100_000),
    "shorter than any": assignment(slot=3, start_s=1_051, length_s=0.001),
    "ends before it begins": assignment(slot=3, start_s=1_090, length_s=-10),
    "of another length": assignment(slot=3, start_s=1_040, length_s=110),
    "to come": assignment(slot=3, start_s=NOW_S + CLOCK_TOLERANCE_S + 1),
    "far ahead by number": assignment(slot=10**12, start_s=1_040),
    "far back by number": assignment(slot=0, start_s=1_040),
    "a job with two runs": assignment(order("j", 8), order("j", 9), slot=3, start_s=1_040),
}


def objection_to(slot: SlotAssigned, present: SlotAssigned | None = PRESENT) -> Objection | None:
    return SlotCalendar().objection(slot, present, NOW_S)


@pytest.mark.parametrize("present", [None, PRESENT], ids=["first", "next"])
def test_the_next_slot_is_begun(present: SlotAssigned | None) -> None:
    assert objection_to(assignment(order("j", 8), slot=3, start_s=1_040), present) is None


@pytest.mark.parametrize(("slot", "reason"), PASSED_OVER.values(), ids=PASSED_OVER.keys())
def test_what_is_out_of_date_is_passed_over(slot: SlotAssigned, reason: str) -> None:
    assert objection_to(slot) == Objection("out_of_date", reason)


@pytest.mark.parametrize("slot", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_what_no_cell_sends_is_impossible(slot: SlotAssigned) -> None:
    objection = objection_to(slot)
    assert objection is not None
    assert objection.kind == "impossible"


def test_impossible_slot_has_reason() -> None:
    assert objection_to(IMPOSSIBLE["without end"]) == Objection(
        "impossible", "a slot of 1e+300 s: a cell has slots of 0.01 to 86400 s"
    )


class Obedient:
    """A node that obeys whatever it accepts, on a clock that goes from slot to slot."""

    def __init__(self) -> None:
        self.calendar = SlotCalendar()
        self.present: SlotAssigned | None = None

    def accepts(self, slot: int, start_s: float, length_s: float, now_s: float) -> bool:
        command = assignment(order("j", 8), slot=slot, start_s=start_s, length_s=length_s)
        if self.calendar.objection(command, self.present, now_s) is not None:
            return False
        self.present = command
        return True


FORGED = st.tuples(
    st.integers(0, 10**12),
    st.floats(10, 2_000) | st.just(4e9),
    st.sampled_from([1e300, 86_400.0, 10.0, 9.5, 0.01, -5.0]) | st.floats(0.01, 100_000),
)


@given(st.lists(st.lists(FORGED, max_size=2), min_size=1, max_size=5))
def test_third_true_slot_after_forgery_is_obeyed(forged: list[list[Any]]) -> None:
    """Another writer sends up to two commands before some of a cell's slots of ten seconds."""
    node, slot = Obedient(), 100
    for commands in forged:
        slot += 1
        now_s = slot * 10.0
        for number, start_s, length_s in commands:
            node.accepts(number, start_s, length_s, now_s)
        node.accepts(slot, now_s, 10.0, now_s)

    # What was forged may begin as late as the clocks may differ, and last for its own length at most.
    waiting = CLOCK_TOLERANCE_S / 10 + 1
    slot += math.ceil(waiting)
    obeyed = [node.accepts(slot + n, (slot + n) * 10.0, 10.0, (slot + n) * 10.0) for n in range(1, 5)]

    assert obeyed[-2:] == [True, True]


@pytest.mark.parametrize("slot_s", [0.01, 4.0, 600.0, 86_400.0])
@pytest.mark.parametrize("epoch_s", [0.0, 1.7e9 + 0.123, 1.9e9])
def test_no_slot_of_a_true_calendar_is_refused(slot_s: float, epoch_s: float) -> None:
    calendar = Calendar(epoch_s, slot_s)
    draw, node = random.Random(5), Obedient()
    slot = calendar.slot_at(1.95e9)
    for _ in range(300):
        start_s, end_s = calendar.start_s(slot), calendar.start_s(slot + 1)
        assert node.accepts(slot, start_s, end_s - start_s, start_s)
        slot += draw.choice([1, 2, 7, 50])
