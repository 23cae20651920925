"""The runner `lora`: slots and cancellations as a node gives them, and its part of the journal."""

import json

import pytest
import torch

from executors.lora.engine import FusedEngine
from executors.lora.slots.runner import LoraRunner
from executors.node.runner import DeviceLostError, Objection
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.lora_commands import RunCancelled
from tests.support.executors import assignment, order


def cancelled(job_id: str) -> RunCancelled:
    return RunCancelled(zone="z", node="n1", job_id=job_id)


def runner(bench, **workshop: object) -> LoraRunner:
    return LoraRunner(bench.workshop(**workshop), bench.reports.append)


def work(lora: LoraRunner) -> None:
    while lora.advance() == "working":
        pass


def test_runner_is_idle_before_first_slot(bench) -> None:
    lora = runner(bench)
    assert (lora.advance(), lora.state()) == ("idle", None)
    lora.close("node_stops")
    lora.close("no_room")
    assert bench.reports == []


def test_a_newer_slot_ends_the_one_before(bench) -> None:
    lora = runner(bench)
    first = assignment(order("j", 100))
    assert lora.validate(first) is None
    lora.apply(first)
    lora.advance()
    assert lora.validate(first) is None, "the same order once more"
    other = assignment(order("j", 50))
    assert lora.validate(other) == Objection("out_of_date", "the slot is not newer")

    lora.apply(assignment(order("k", 8, work=8), slot=1, start_s=1_100.0))
    work(lora)

    assert [(type(event), event.run_id) for event in bench.reports] == [
        (RunStarted, "0/j"),
        (RunProgressed, "0/j"),
        (RunStarted, "1/k"),
        (RunFinished, "1/k"),
    ]


def test_another_process_goes_on_from_its_state(bench) -> None:
    lora = runner(bench)
    lora.apply(assignment(order("short", 8), order("long", 40, seed=1)))
    lora.apply(cancelled("nobody"))
    for _ in range(4):
        lora.advance()
    state = json.loads(json.dumps(lora.state()))
    assert state["over"] == ["short"]
    bench.reports.clear()

    successor = runner(bench)
    successor.restore(state)
    assert successor.state() == state
    work(successor)

    assert [(type(event), event.job_id) for event in bench.reports] == [
        (RunStarted, "long"),
        (RunProgressed, "long"),
    ]
    assert bench.reports[-1].samples_done == 40


@pytest.mark.parametrize("state", [{}, [], {"assignment": None, "over": []}, {"over": ["j"]}])
def test_foreign_state_is_refused(bench, state: object) -> None:
    with pytest.raises(ValueError, match=r"assignment|Input should be"):
        runner(bench).restore(state)


@pytest.mark.parametrize("in_slot", [False, True], ids=["before a slot", "in a slot"])
def test_cancelled_job_leaves_nothing(bench, in_slot: bool) -> None:
    bench.carry_out(assignment(order("j", 8)))
    assert bench.kept("j")
    lora = runner(bench)
    if in_slot:
        lora.apply(assignment(order("k", 8), slot=1))
    assert lora.validate(cancelled("j")) is None
    lora.apply(cancelled("j"))
    lora.apply(cancelled("j"))
    assert bench.kept("j") == []


def test_a_lost_device_is_the_nodes_affair(bench) -> None:
    class LostDevice(FusedEngine):
        def step(self, job_ids=None):
            raise torch.AcceleratorError("device lost")

    lora = runner(bench, engine=LostDevice)
    lora.apply(assignment(order("j", 8)))
    with pytest.raises(DeviceLostError, match="device lost"):
        lora.advance()
