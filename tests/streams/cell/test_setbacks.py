"""A node's loss or a pause of the clock sets many jobs back: they are planned again a few at a time."""

from typing import Any

import pytest

from schemas.auction.evidence import JobReplanned
from schemas.base import Outcome
from schemas.decisions import JobRefunded
from schemas.lora_commands import SlotAssigned
from streams.cell.state_machine import Cell
from streams.policies.auction import replanning
from tests.support.cells import (
    Bench,
    CheckedBench,
    bid,
    node_seen,
    nodes_by_slot,
    online,
    silent,
    tick,
    withdraw,
)
from tests.support.plans import held_cells

NODES = ("a1", "a2", "b1")
JOBS = ("j1", "j2", "j3", "j4")
EARLY, LATE = {1: "a1", 2: "a1"}, {3: "a1", 4: "a1"}


@pytest.fixture(autouse=True)
def steps_for_two_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replanning, "REPLAN_STEPS_PER_EVENT", 100_000)


@pytest.fixture
def bench() -> Bench:
    """Four jobs of two slots each on node a1: two of them in the next slots, two in those after."""
    bench = CheckedBench.configured()
    bench.send(*map(online, NODES), tick(0), silent("a2"))
    small: dict[str, Any] = {"work_samples": 4, "memory_gib": 1.0, "speed_samples_per_s": {"fast": 0.2}}
    for job_id in JOBS:
        bench.send(bid(job_id, units=1.0, **small))
    bench.send(node_seen("a2"))
    assert held_cells(bench.zone) == {"j1": EARLY, "j2": LATE, "j3": EARLY, "j4": LATE}
    return bench


def replanned(outcomes: list[Outcome]) -> list[str]:
    assert not [outcome for outcome in outcomes if isinstance(outcome, JobRefunded)]
    return [outcome.job_id for outcome in outcomes if isinstance(outcome, JobReplanned)]


def test_jobs_beyond_step_limit_wait_for_ticks(bench: Bench) -> None:
    assert replanned(bench.send(silent("a1"))) == ["j1", "j2"]
    assert replanned(bench.send(tick(0.1))) == ["j3", "j4"]
    assert replanned(bench.send(tick(0.2))) == []
    assert not [plan for plan in held_cells(bench.zone).values() if "a1" in plan.values()]


def test_restored_cell_keeps_waiting_jobs(bench: Bench) -> None:
    bench.send(silent("a1"))
    restored = Bench(Cell.restore(bench.cell.snapshot()), bench.ledger[:])
    assert restored.send(tick(0.1)) == bench.send(tick(0.1))
    assert restored.cell.packed() == bench.cell.packed()


def test_waiting_job_loses_past_slots(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replanning, "REPLAN_STEPS_PER_EVENT", 1)
    assert replanned(bench.send(silent("a1"))) == ["j1"]
    outcomes = bench.send(tick(1))
    assert replanned(outcomes) == ["j2"]
    assert {outcome.node for outcome in outcomes if isinstance(outcome, SlotAssigned)} == {"a2"}
    (third,) = bench.send(tick(1.1))
    assert (third.job_id, third.remaining_samples, min(nodes_by_slot(third))) == ("j3", 4, 2)
    assert replanned(bench.send(tick(1.2))) == ["j4"]


def test_returned_node_keeps_plan_of_waiting_job(bench: Bench) -> None:
    bench.send(silent("a1"))
    assert replanned(bench.send(node_seen("a1"), tick(0.1))) == []
    plans = held_cells(bench.zone)
    assert (plans["j3"], plans["j4"]) == (EARLY, LATE)


def test_a_job_may_be_withdrawn_while_it_waits(bench: Bench) -> None:
    bench.send(silent("a1"), withdraw("j3"))
    assert replanned(bench.send(tick(0.1))) == ["j4"]


def test_jobs_after_clock_gap_are_replanned_gradually(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replanning, "REPLAN_STEPS_PER_EVENT", 1)
    assert replanned(bench.send(tick(3))) == ["j1"]
    assert replanned(bench.send(tick(3.1))) == ["j3"]
    assert replanned(bench.send(tick(3.2))) == []
