"""Which commands are applied, and that no record can bring a node down."""

import random

import pytest

from executors.service.acceptance import AcceptedCommand, accept
from executors.service.command_log import CommandRecord
from executors.service.journal import Journal
from schemas.codec import Decision
from schemas.commands import Command, RunCancelled
from schemas.decisions import EventIgnored
from tests.support.executors import CELL, CHAIN, assignment, order

NOW_S = 1_050.0
SLOT = assignment(order("j", 8), slot=3)
CANCELLED = RunCancelled(zone="z", node="n1", job_id="j")


def record(command: object, id: str = "c-7-0", cell: str = CELL) -> CommandRecord:
    return CommandRecord(7, Decision(id, cell, "e", 0.0, command, CHAIN).canonical)


def judged(command: CommandRecord, journal: Journal | None = None) -> AcceptedCommand | None:
    return accept(command, journal or Journal(), CELL, "n1", NOW_S)


@pytest.mark.parametrize("command", [SLOT, CANCELLED])
def test_a_command_of_this_node_is_applied(command: Command) -> None:
    assert judged(record(command)) == AcceptedCommand("c-7-0", command)


SKIPPED = {
    "another node's": record(CANCELLED.model_copy(update={"node": "n2"})),
    "another cell's": record(CANCELLED, cell="d"),
    "an applied one": record(CANCELLED, id="c-1-0"),
    "a slot that is over": record(assignment(slot=9, length_s=NOW_S - 1_000)),
    "the present slot again": record(assignment(slot=2)),
    "a slot before the present one": record(assignment(slot=1)),
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
    present = Journal(applied=("c-1-0",), assignment=assignment(slot=2))
    assert judged(skipped, present) is None


def test_a_lower_slot_number_is_obeyed_once_the_present_slot_is_over() -> None:
    over = Journal(assignment=assignment(slot=8, length_s=10))
    assert judged(record(SLOT), over) is not None


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
