import hashlib
from typing import get_args

import pytest

from infra.errors import CommandError
from infra.figures.auction.figures import AuctionFigures, certified
from infra.figures.board import Board
from infra.figures.summary import Summary, summarise
from infra.simulation.auction.policies import OtherPolicies, PolicyName
from infra.simulation.simulator import SimulatedRun, Simulation
from infra.views.tables import zone_tables
from infra.workloads.arrivals import generate
from infra.workloads.auction import draw_workload
from infra.workloads.timed import WorkloadError
from schemas.auction.evidence import JobReplanned
from schemas.auction.settings import AuctionPolicy, EarliestFinishPolicy
from schemas.base import Event
from schemas.cells import Node, Tariff, ThroughputRow
from schemas.clock import next_tick_s, tick_interval_s
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.jobs import JobSubmitted
from schemas.lora_commands import SlotAssigned
from streams.replay.replay import DecisionRecord, verify
from tests.support.cells import EPOCH_S, SLOT_S, configuration, zone

ROWS = (
    ThroughputRow(
        gpu_type="fast", rank=8, batch_size=4, sequence_length=64, samples_per_s=5.0, memory_gib=2.0
    ),
    ThroughputRow(
        gpu_type="slow", rank=8, batch_size=4, sequence_length=64, samples_per_s=2.5, memory_gib=2.0
    ),
)
CELL = configuration(zones=(zone(throughput=ROWS, horizon_slots=12),))


def simulate(seed: int = 1, pace: float = 1.0) -> SimulatedRun:
    workload = draw_workload(CELL, generate(60, 200.0, seed), CELL.epoch_s, seed)
    return Simulation(CELL, workload.inputs(CELL.epoch_s), pace).run()


def summary_of(run: SimulatedRun) -> Summary:
    return summarise(Board.of("c", run.ledger, run.decisions))


def digest(run: SimulatedRun) -> str:
    lines = [entry.envelope.canonical for entry in run.ledger] + [d.canonical for d in run.decisions]
    return hashlib.blake2b(b"\n".join(lines)).hexdigest()


@pytest.fixture(scope="module")
def run() -> SimulatedRun:
    return simulate()


def test_the_same_seed_makes_the_same_bytes(run):
    assert digest(simulate()) == digest(run)
    assert digest(simulate(seed=2)) != digest(run)


def test_the_log_verifies_like_any_other(run):
    records = [DecisionRecord(decision.canonical, decision.id) for decision in run.decisions]
    verdict = verify(run.ledger, records)
    assert verdict.ok
    assert verdict.decisions == len(run.decisions)
    altered = [*records[:-1], DecisionRecord(records[-1].value.replace(b'"', b" ", 1), "last")]
    assert not verify(run.ledger, altered).ok


def test_executors_on_pace_complete_all_admitted_jobs(run):
    summary = summary_of(run)
    outcomes = [type(decision.outcome) for decision in run.decisions]
    assert summary.jobs == 60
    assert summary.admitted == len(summary.adapters) > 10
    assert summary.admitted + sum(summary.rejected.values()) == 60
    assert JobReplanned not in outcomes
    assert JobRefunded not in outcomes


def test_figures_are_those_of_the_decisions(run):
    summary = summary_of(run)
    admitted = [d.outcome for d in run.decisions if isinstance(d.outcome, JobAdmitted)]
    last = [certificate for d in run.decisions for certificate in certified(d.outcome).values()][-1]
    assert summary.revenue_micros == sum(outcome.payment_micros for outcome in admitted)
    figures = summary.part(AuctionFigures)
    assert figures.realised_welfare_micros == last.realised_welfare_micros
    assert figures.proven_ratio == last.proven_ratio
    trained = sum(d.outcome.samples_done for d in run.decisions if isinstance(d.outcome, JobCompleted))
    ticks = [decision.time_s for decision in run.decisions if decision.time_s is not None]
    node_s = (ticks[-1] - ticks[0]) * 3
    # All nodes at the speed of the slow one, and at that of the fast ones.
    assert trained / 10.0 / node_s <= summary.utilisation <= trained / 5.0 / node_s


def test_slow_executors_cause_replans_or_refunds():
    run = simulate(pace=0.5)
    summary = summary_of(run)
    assert summary.part(AuctionFigures).replanned > 0
    assert len(summary.adapters) + summary.refunded == summary.admitted
    assert summary.refunded > 0


def test_summary_separates_plans_from_results():
    run = simulate(pace=0.5)
    summary = summary_of(run)
    figures = summary.part(AuctionFigures)
    last = [certificate for d in run.decisions for certificate in certified(d.outcome).values()][-1]
    assert figures.planned_welfare_micros == last.planned_welfare_micros
    causes = figures.welfare_difference_micros
    assert figures.realised_welfare_micros == figures.planned_welfare_micros + sum(causes.values())
    assert causes["refunded"] == last.difference.refunded_micros < 0
    assert causes["failed"] == 0, "nodes were slow, and no task"
    (table,) = zone_tables({"c": summary})
    rows = [str(cell) for column in table.columns for cell in column.cells]
    assert "  of the difference: refunds in full" in rows
    assert "  of the difference: jobs at fault" not in rows


def test_executors_report_ordered_runs(run):
    assigned = {
        (order.job_id, outcome.node, order.run_id)
        for decision in run.decisions
        if isinstance(outcome := decision.outcome, SlotAssigned)
        for order in outcome.runs
    }
    events = [entry.envelope.event for entry in run.ledger]
    started = {(e.job_id, e.node, e.run_id) for e in events if isinstance(e, RunStarted)}
    ended = {(e.job_id, e.node, e.run_id) for e in events if isinstance(e, RunProgressed | RunFinished)}
    assert assigned == started == ended


def test_progress_goes_from_nothing_to_all():
    parts: list[float] = []
    workload = draw_workload(CELL, generate(5, 50.0, 1), CELL.epoch_s, 1)
    Simulation(CELL, workload.inputs(CELL.epoch_s)).run(parts.append)
    assert parts == sorted(parts)
    assert (parts[0], parts[-1]) == (0.0, pytest.approx(1.0, abs=0.05))


@pytest.mark.parametrize("name", get_args(PolicyName))
def test_policies_share_bids_and_leave_valid_logs(name, run):
    price_micros = 2_000_000 if name == "fixed-price" else None
    cell = OtherPolicies(name, price_micros).of(CELL)
    workload = draw_workload(CELL, generate(60, 200.0, 1), CELL.epoch_s, 1)
    other = Simulation(cell, workload.inputs(cell.epoch_s)).run()
    records = [DecisionRecord(decision.canonical, decision.id) for decision in other.decisions]
    assert verify(other.ledger, records).ok
    assert bids_of(other) == bids_of(run)
    summary = summary_of(other)
    assert summary.admitted + sum(summary.rejected.values()) == 60
    assert summary.admitted == len(summary.adapters) > 0
    assert (summary.solves > 0, summary.solve_s > 0) == (name == "titan", name == "titan")
    if name == "pdftsp":
        assert digest(other) == digest(run)


def bids_of(run: SimulatedRun) -> list[Event]:
    events = [entry.envelope.event for entry in run.ledger]
    return [event for event in events if isinstance(event, JobSubmitted)]


def test_workload_follows_declarations_of_auction():
    with pytest.raises(WorkloadError, match="zone z is under policy eft"):
        draw_workload(OtherPolicies("eft").of(CELL), generate(5, 50.0, 1), CELL.epoch_s, 1)
    with pytest.raises(CommandError, match="zone z of the cell declares no bounds on bids"):
        OtherPolicies("published").of(OtherPolicies("eft").of(CELL))
    found = OtherPolicies("auction").of(OtherPolicies("eft").of(CELL))
    assert found.zones[0].policy == AuctionPolicy()


def test_ticks_suit_slots_and_silent_nodes():
    assert tick_interval_s(configuration()) == SLOT_S / 5
    assert tick_interval_s(configuration(slot_s=600.0)) == 10.0


@pytest.mark.parametrize(("now_s", "due_s"), [(EPOCH_S, 2.0), (EPOCH_S + 1.9, 2.0), (EPOCH_S + 2.0, 4.0)])
def test_a_slot_begins_with_a_tick(now_s, due_s):
    assert next_tick_s(configuration(), 2.0, now_s) == EPOCH_S + due_s


def test_zone_unfit_for_policy_is_refused():
    tariffs = tuple(
        Tariff(name=f"t{number}", micros_per_kwh=CELL.tariffs[0].micros_per_kwh) for number in range(5)
    )
    nodes = tuple(Node(id=tariff.name, gpu_type="fast", tariff=tariff.name) for tariff in tariffs)
    cell = configuration(tariffs=tariffs, zones=(zone(nodes=nodes, policy=EarliestFinishPolicy(kind="eft")),))
    with pytest.raises(CommandError, match="zone z: 5 pairs of gpu type and tariff"):
        OtherPolicies("auction").of(cell)
