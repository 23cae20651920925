"""A node accepts its own commands, refuses others with a reason, and survives any record."""

import random

import pytest

from executors.node.commands import Acceptance, AcceptedCommand, CommandRecord
from executors.node.journal import Journal
from schemas.codec import Decision
from schemas.commands import Command
from schemas.decisions import EventIgnored
from schemas.fleet import CommandRefused
from schemas.lora_commands import RunCancelled, SlotAssigned
from tests.support.counting import Counting
from tests.support.counting_commands import CountCancelled, CountOrdered
from tests.support.executors import CELL, CHAIN, assignment, order

TYPES = {model.TYPE: model for model in Counting.commands}
COUNT = CountOrdered(zone="z", node="n1", run_id="r", job_id="j", goal=3)
CANCELLED = CountCancelled(zone="z", node="n1", job_id="j")
SLOT = assignment(order("j", 8), slot=3)


def record(command: object, id: str = "c-7-0", cell: str = CELL) -> CommandRecord:
    return CommandRecord(7, Decision(id, cell, "e", 0.0, command, CHAIN).canonical)


def read(command: CommandRecord, journal: Journal | None = None) -> AcceptedCommand | CommandRefused | None:
    acceptance = Acceptance(CELL, "n1", TYPES)
    return acceptance.accept(acceptance.parse(command), journal or Journal())


@pytest.mark.parametrize("command", [COUNT, CANCELLED])
def test_command_for_own_runner_is_accepted(command: Command) -> None:
    assert read(record(command)) == AcceptedCommand("c-7-0", f"c-7-0 {CHAIN[:16]}", command)


PASSED_OVER = {
    "another node's": record(CANCELLED.model_copy(update={"node": "n2"})),
    "another node's of an unknown type": record(SLOT.model_copy(update={"node": "n2"})),
    "another cell's": record(CANCELLED, cell="d"),
    "an applied one": record(CANCELLED, id="c-1-0"),
    "no command": record(EventIgnored(reason="unknown_job")),
    "no value": CommandRecord(7, None),
    "nothing": CommandRecord(7, b""),
    "no JSON": CommandRecord(7, b"\xff{"),
    "no object": CommandRecord(7, b"[]"),
    "an ill-typed type": CommandRecord(7, b'{"type":[],"data":{}}'),
    "too much": CommandRecord(7, b" " * (8 << 20) + record(COUNT).value),
}


@pytest.mark.parametrize("passed_over", PASSED_OVER.values(), ids=PASSED_OVER.keys())
def test_it_passes_over(passed_over: CommandRecord) -> None:
    assert read(passed_over, Journal(applied=(f"c-1-0 {CHAIN[:16]}",))) is None


def of_type(command: Command, type: str) -> CommandRecord:
    value = record(command).value
    assert value is not None
    return CommandRecord(7, value.replace(command.TYPE.encode(), type.encode()))


REFUSED = {
    "a command for a runner that the node lacks": (
        record(SLOT),
        "lora",
        "runner_missing",
        "millrace.slot.assigned.v1 is for runner lora, the node has counting",
    ),
    "a command of a type that nobody here knows": (
        of_type(COUNT, "millrace.gang.grown.v7"),
        None,
        "unknown_type",
        "no command of type 'millrace.gang.grown.v7' is known here, the node has counting",
    ),
    "a decision that is no command": (
        of_type(COUNT, "millrace.node.status_changed.v1"),
        None,
        "unknown_type",
        "no command of type 'millrace.node.status_changed.v1' is known here, the node has counting",
    ),
    "other fields than its type has": (
        of_type(CANCELLED, CountOrdered.TYPE),
        "counting",
        "malformed",
        "no decision: run_id: Field required; goal: Field required",
    ),
}


@pytest.mark.parametrize(("refused", "runner", "reason", "detail"), REFUSED.values(), ids=REFUSED.keys())
def test_it_refuses(refused: CommandRecord, runner: str | None, reason: str, detail: str) -> None:
    told = read(refused)
    assert isinstance(told, CommandRefused)
    assert told.model_copy(update={"runs": ()}) == CommandRefused(
        cell=CELL, node="n1", command_id="c-7-0", runner=runner, reason=reason, detail=detail
    )
    assert len(told.runs) == (reason != "malformed")  # where a run is named


RUN = {"run_id": "3/j", "job_id": "j"}
NAMED = {
    "its one run": (RUN, [("3/j", "j")]),
    "the run of a field": ({"order": RUN}, [("3/j", "j")]),
    "the runs of a list": ({"orders": [RUN, {"run_id": "3/k", "job_id": "k"}]}, [("3/j", "j"), ("3/k", "k")]),
    "what names none": ({"runs": [1, None, {}, [RUN]], "run_id": 7, "job_id": "j"}, []),
    "half a name": ({"order": {"run_id": "3/j"}}, []),
    "as many as fit": ({"runs": [RUN] * 200}, [("3/j", "j")] * 48),
}


@pytest.mark.parametrize(("data", "runs"), NAMED.values(), ids=NAMED.keys())
def test_refusal_names_runs_that_do_not_begin(data: dict, runs: list[tuple[str, str]]) -> None:
    told = Acceptance(CELL, "n1", TYPES).refusal("c-7-0", "counting", "malformed", "", data)
    assert [(run.run_id, run.job_id) for run in told.runs] == runs


def test_withdrawals_of_batch_are_read_first() -> None:
    others = [record(CANCELLED.model_copy(update={"node": "n2"})), record(CANCELLED, cell="d")]
    lacking = record(RunCancelled(zone="z", node="n1", job_id="j"))
    acceptance = Acceptance(CELL, "n1", TYPES)
    unparsed = [record(COUNT), CommandRecord(7, b"{"), *others, lacking, record(CANCELLED)]
    batch = [acceptance.parse(one) for one in unparsed]
    assert list(acceptance.cancelling(batch, Journal())) == [CANCELLED]
    assert list(acceptance.cancelling(batch[:-1], Journal())) == []
    assert list(acceptance.cancelling(batch, Journal(applied=(f"c-7-0 {CHAIN[:16]}",)))) == []


def test_used_id_holds_back_no_command() -> None:
    squatter = Decision("c-7-0", CELL, "e", 0.0, CANCELLED, "f" * 64)
    taken = read(CommandRecord(6, squatter.canonical))
    assert isinstance(taken, AcceptedCommand)

    assert isinstance(read(record(COUNT), Journal().with_applied(taken.key)), AcceptedCommand)


def test_an_unreadable_record_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    read(CommandRecord(41, b"junk"), Journal(topic="millrace.commands", partition=3))
    assert "command unreadable topic=millrace.commands partition=3 offset=41" in caplog.text


@pytest.mark.parametrize("command", [COUNT, SLOT])
def test_no_damaged_record_brings_a_node_down(command: Command) -> None:
    draw = random.Random(0)
    sound = record(command).value
    acceptance = Acceptance(CELL, "n1", {**TYPES, SlotAssigned.TYPE: SlotAssigned})
    for _ in range(2_000):
        damaged = bytearray(sound)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        accepted = acceptance.accept(acceptance.parse(CommandRecord(7, bytes(damaged))), Journal())
        if isinstance(accepted, AcceptedCommand):
            accepted = accepted.command
        assert accepted is None or accepted.node == "n1"
