"""Simulated vendors deliver when an order is due: the market of a workload is as without orders."""

from pathlib import Path

import pytest

from infra.figures.board import Board
from infra.figures.summary import summarise
from infra.simulation.alternative import Alternative
from infra.simulation.simulator import SimulatedRun, Simulation
from infra.simulation.what_if import ledger_configuration, recorded, what_if
from infra.workloads.arrivals import generate
from infra.workloads.auction import draw_workload
from schemas.auction.deliveries import Deliveries, PreprocessingAccepted, PreprocessingOrdered
from schemas.auction.settings import AuctionPolicy
from schemas.cells import CellConfigured, ThroughputRow
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobRejected
from tests.support.cells import configuration, zone
from tests.support.recordings import write

ROWS = tuple(
    ThroughputRow(
        gpu_type=name, rank=8, batch_size=4, sequence_length=64, samples_per_s=speed, memory_gib=2.0
    )
    for name, speed in (("fast", 5.0), ("slow", 2.5))
)


def cell(deliveries: Deliveries | None) -> CellConfigured:
    policy = AuctionPolicy(deliveries=deliveries)
    return configuration(zones=(zone(throughput=ROWS, horizon_slots=12, policy=policy),))


def simulated(deliveries: Deliveries | None) -> SimulatedRun:
    configured = cell(deliveries)
    workload = draw_workload(configured, generate(60, 300.0, 1), configured.epoch_s, 1)
    return Simulation(configured, workload.inputs(configured.epoch_s)).run()


@pytest.fixture(scope="module")
def run() -> SimulatedRun:
    return simulated(Deliveries())


def ends(run: SimulatedRun) -> list[object]:
    decided = JobAdmitted | JobRejected | JobCompleted | JobRefunded
    return [one.outcome for one in run.decisions if isinstance(one.outcome, decided)]


def test_orders_change_no_verdict_price_or_end(run: SimulatedRun) -> None:
    assert ends(run) == ends(simulated(None))


def test_every_order_is_delivered_and_paid(run: SimulatedRun) -> None:
    outcomes = [one.outcome for one in run.decisions]
    ordered = [one for one in outcomes if isinstance(one, PreprocessingOrdered)]
    accepted = [one for one in outcomes if isinstance(one, PreprocessingAccepted)]
    assert len(ordered) == len(accepted) > 5
    assert {one.reason for one in accepted} == {"in_time"}
    figures = summarise(Board.of("c", run.ledger, run.decisions)).as_json()
    (of_zone,) = figures["zones"].values()
    assert of_zone["vendors_paid_micros"] == sum(one.price_micros for one in ordered)


def test_recorded_orders_are_simulated_exactly(run: SimulatedRun, tmp_path: Path) -> None:
    path = write(tmp_path / "ledger.jsonl", run.ledger)
    own = ledger_configuration(path, None)
    recording, before = recorded(path, None, own)
    found = what_if(path, recording, before, Alternative(scale_nodes=2).of(own), 1.0)
    assert found.simulation_is_exact
