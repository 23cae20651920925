"""The demo's market on virtual time: a real cell, executors of a known speed, one of which is killed."""

import os
from pathlib import Path

import pytest

from infra.commands.options import CELLS_DIRECTORY
from infra.demo import demo_environment
from infra.demo import market as market_module
from infra.demo.demo_cell import CELL_FILE, write_cell
from infra.demo.market import MarketScene
from infra.errors import CommandError
from infra.workloads.arrivals import generate
from schemas.changes import ZoneConfigured
from schemas.codec import Decision
from schemas.decisions import JobAdmitted, JobRefunded
from schemas.lora import Dataset
from streams.worker.cells_file import CellsFile
from tests.infra.demo.virtual_stage import Clock, VirtualLog, submitted, virtual_stage
from tests.support.cells import EPOCH_S, nodes_by_slot

DATASETS = (Dataset(path="text.jsonl", samples=24),)


class Play:
    """A market of twelve bids, which kills an executor of the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        file = folder / "cells.yaml"
        write_cell(CELLS_DIRECTORY / CELL_FILE, file, {"auction"}, pace=1.0)
        self.clock = Clock()
        for module in (market_module, demo_environment):
            monkeypatch.setattr(module, "time", self.clock)
        self.log = VirtualLog(CellsFile.read(file).cell("demo", EPOCH_S), self.clock)
        self.lines: list[str] = []
        self.stage = virtual_stage(self.log, self.lines)
        self.market = MarketScene(self.stage, generate(12, 10.0, seed=1), 1, DATASETS)
        monkeypatch.setattr(os, "kill", lambda pid, _number: self.log.kill(self.log.nodes[pid - 1]))

    def planned(self) -> dict[str, set[str]]:
        """The nodes that each job was admitted to."""
        outcomes = [decision.outcome for decision in self.log.bench.decisions]
        return {o.job_id: set(nodes_by_slot(o).values()) for o in outcomes if isinstance(o, JobAdmitted)}

    def run(self) -> None:
        self.stage.play([self.market])
        self.stage.drain([self.market])


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    return Play(monkeypatch, tmp_path)


def test_only_the_kill_changes_plans(play: Play) -> None:
    play.run()
    assert play.market.shortcomings == []
    assert "long-haul" in play.market.saved
    assert play.market.recovered
    assert play.market.slipped == set()
    assert all(job.state in ("completed", "rejected") for job in play.stage.board.jobs.by_id.values())
    assert play.stage.board.jobs.by_id["bargain"].reason == "price_not_below_bid"


def test_it_lasts_a_minute(play: Play) -> None:
    play.run()
    assert play.clock.now_s - EPOCH_S < 75


def test_zone_gets_half_of_measured_speed(play: Play) -> None:
    play.run()
    (change,) = [event for event in play.log.sent if isinstance(event, ZoneConfigured)]
    # The reports are read some tenths of a second late.
    assert all(20.0 <= gpu.samples_per_s <= 30.0 for gpu in change.zone.gpu_types)
    drawn = [job for id, job in submitted(play.log).items() if id.startswith("job-")]
    assert max(job.workload.total_samples or 0 for job in drawn) <= 2 * 4.0 * 15.0


def refund(job_id: str) -> Decision:
    outcome = JobRefunded(
        zone="tiny",
        job_id=job_id,
        user="u",
        reason="deadline_passed",
        remaining_samples=8,
        refund_micros=1,
        retained_micros=0,
    )
    return Decision("demo-1-0", "demo", "e", EPOCH_S, outcome, "")


def test_only_refund_of_killed_node_is_no_fault(play: Play) -> None:
    play.run()
    plans = {id: nodes for id, nodes in play.planned().items() if id.startswith("job-")}
    hit = next(id for id, nodes in plans.items() if nodes == {play.market.killed_node})
    spared = next(id for id, nodes in plans.items() if play.market.killed_node not in nodes)
    play.market.note([refund(hit)])
    assert play.market.shortcomings == []
    play.market.note([refund(spared)])
    assert play.market.shortcomings == [
        f"refunded, and not because of the kill, see the lines above: {spared}"
    ]


def test_refund_of_first_job_ends_demo(play: Play) -> None:
    play.log.samples_per_s = 0.01
    with pytest.raises(CommandError, match=r"first-\w+ is refunded"):
        play.run()


def test_long_silence_ends_demo_naming_awaited_event(play: Play) -> None:
    play.log.coming.clear()
    with pytest.raises(CommandError, match="nothing has happened for 300 s: waiting for"):
        play.run()
