"""Which commands are applied, and that no record can bring a node down."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.service.acceptance import CLOCK_TOLERANCE_S, Acceptance, AcceptedCommand
from executors.service.command_log import CommandRecord
from executors.service.journal import Journal
from schemas.codec import Decision
from schemas.commands import Command, RunCancelled
from schemas.decisions import EventIgnored
from solvers.auction.market.fleet import Calendar
from tests.support.executors import CELL, CHAIN, assignment, order

NOW_S = 1_050.0
SLOT = assignment(order("j", 8), slot=3)
CANCELLED = RunCancelled(zone="z", node="n1", job_id="j")


def record(command: object, id: str = "c-7-0", cell: str = CELL) -> CommandRecord:
    return CommandRecord(7, Decision(id, cell, "e", 0.0, command, CHAIN).canonical)


def judged(command: CommandRecord, journal: Journal | None = None) -> AcceptedCommand | None:
    return Acceptance(CELL, "n1").accept(command, journal or Journal(), NOW_S)


@pytest.mark.parametrize("command", [SLOT, CANCELLED])
def test_a_command_of_this_node_is_applied(command: Command) -> None:
    assert judged(record(command)) == AcceptedCommand(f"c-7-0 {CHAIN[:16]}", command)


SKIPPED = {
    "another node's": record(CANCELLED.model_copy(update={"node": "n2"})),
    "another cell's": record(CANCELLED, cell="d"),
    "an applied one": record(CANCELLED, id="c-1-0"),
    "a slot that is over": record(assignment(slot=1, start_s=900.0)),
    "the present slot again": record(assignment(slot=2)),
    "a slot before the present one": record(assignment(slot=2, start_s=980.0)),
    "a slot without end": record(assignment(slot=3, length_s=1e300)),
    "a slot longer than any": record(assignment(slot=3, length_s=100_000)),
    "a slot shorter than any": record(assignment(slot=3, start_s=1_051, length_s=0.001)),
    "a slot that ends before it begins": record(assignment(slot=3, start_s=1_090, length_s=-10)),
    "a slot of another length": record(assignment(slot=3, start_s=1_040, length_s=110)),
    "a slot to come": record(assignment(slot=3, start_s=NOW_S + CLOCK_TOLERANCE_S + 1)),
    "a slot far ahead by number": record(assignment(slot=10**12, start_s=1_040)),
    "a slot far back by number": record(assignment(slot=0, start_s=1_040)),
    "a job with two runs": record(assignment(order("j", 8), order("j", 9), slot=3, start_s=1_040)),
    "no command": record(EventIgnored(reason="unknown_job", detail="")),
    "no value": CommandRecord(7, None),
    "nothing": CommandRecord(7, b""),
    "no JSON": CommandRecord(7, b"\xff{"),
    "no object": CommandRecord(7, b"[]"),
    "an ill-typed type": CommandRecord(7, b'{"type":[],"data":{}}'),
    "too much": CommandRecord(7, b" " * (8 << 20) + record(SLOT).value),
}


@pytest.mark.parametrize("skipped", SKIPPED.values(), ids=SKIPPED.keys())
def test_it_skips(skipped: CommandRecord) -> None:
    present = Journal(applied=(f"c-1-0 {CHAIN[:16]}",), assignment=assignment(slot=2))
    assert judged(skipped, present) is None


def test_what_a_batch_of_records_cancels_here_is_known_before_any_is_applied() -> None:
    others = [record(CANCELLED.model_copy(update={"node": "n2"})), record(CANCELLED, cell="d")]
    batch = [record(SLOT), CommandRecord(7, b"{"), *others, record(CANCELLED)]
    assert list(Acceptance(CELL, "n1").cancelled_jobs(batch)) == ["j"]
    assert list(Acceptance(CELL, "n1").cancelled_jobs(batch[:-1])) == []


def test_an_impossible_command_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    judged(record(assignment(length_s=1e300)), Journal(topic="millrace.commands", partition=3))

    assert "command refused id=c-7-0 topic=millrace.commands partition=3 offset=7" in caplog.text
    assert "a slot of 1e+300 s: a cell has slots of 0.01 to 86400 s" in caplog.text


def test_an_id_that_was_taken_before_holds_no_command_back() -> None:
    squatter = Decision("c-7-0", CELL, "e", 0.0, CANCELLED, "f" * 64)
    taken = judged(CommandRecord(6, squatter.canonical))
    assert taken is not None

    assert judged(record(SLOT), Journal().with_applied(taken.key)) is not None


class Obedient:
    """A node that obeys whatever it accepts, on a clock that goes from slot to slot."""

    def __init__(self) -> None:
        self.acceptance = Acceptance(CELL, "n1")
        self.journal = Journal()
        self.slots: list[int] = []

    def told(self, slot: int, start_s: float, length_s: float, now_s: float) -> bool:
        command = assignment(order("j", 8), slot=slot, start_s=start_s, length_s=length_s)
        id = f"c-{slot}-{len(self.slots)}-{start_s}"
        accepted = self.acceptance.accept(record(command, id), self.journal, now_s)
        if accepted is not None:
            self.journal = self.journal.with_applied(accepted.key).model_copy(update={"assignment": command})
            self.slots.append(slot)
        return accepted is not None


FORGED = st.tuples(
    st.integers(0, 10**12),
    st.floats(10, 2_000) | st.just(4e9),
    st.sampled_from([1e300, 86_400.0, 10.0, 9.5, 0.01, -5.0]) | st.floats(0.01, 100_000),
)


@given(st.lists(st.lists(FORGED, max_size=2), min_size=1, max_size=5))
def test_whatever_was_forged_the_third_true_slot_after_it_is_obeyed(forged: list[list[Any]]) -> None:
    """A cell of slots of ten seconds; before some of them somebody else writes up to two commands."""
    node, slot = Obedient(), 100
    for commands in forged:
        slot += 1
        now_s = slot * 10.0
        for number, start_s, length_s in commands:
            node.told(number, start_s, length_s, now_s)
        node.told(slot, now_s, 10.0, now_s)

    # What was forged may begin as late as the clocks may differ, and last for its own length at most.
    waiting = CLOCK_TOLERANCE_S / 10 + 1
    slot += math.ceil(waiting)
    obeyed = [node.told(slot + n, (slot + n) * 10.0, 10.0, (slot + n) * 10.0) for n in range(1, 5)]

    assert obeyed[-2:] == [True, True]


@pytest.mark.parametrize("slot_s", [0.01, 4.0, 600.0, 86_400.0])
@pytest.mark.parametrize("epoch_s", [0.0, 1.7e9 + 0.123, 1.9e9])
def test_no_slot_of_a_true_calendar_is_refused(slot_s: float, epoch_s: float) -> None:
    calendar = Calendar(epoch_s, slot_s)
    draw, node = random.Random(5), Obedient()
    slot = calendar.slot_at(1.95e9)
    for _ in range(300):
        start_s, end_s = calendar.start_s(slot), calendar.start_s(slot + 1)
        assert node.told(slot, start_s, end_s - start_s, start_s)
        slot += draw.choice([1, 2, 7, 50])


def test_an_unreadable_record_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    judged(CommandRecord(41, b"junk"), Journal(topic="millrace.commands", partition=3))
    assert "command unreadable topic=millrace.commands partition=3 offset=41" in caplog.text


def test_no_damaged_record_brings_a_node_down() -> None:
    draw = random.Random(0)
    sound = record(SLOT).value
    for _ in range(2_000):
        damaged = bytearray(sound)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        accepted = judged(CommandRecord(7, bytes(damaged)))
        assert accepted is None or accepted.command.node == "n1"
