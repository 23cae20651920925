"""Plans that were admitted are checked against an instance made from the ledger alone."""

from dataclasses import replace

import pytest

from bench.auction.day import check_plans, faults
from bench.workloads.paper import draw
from infra.errors import CommandError
from infra.simulation.simulator import SimulatedRun, Simulation
from schemas.auction.evidence import Plan
from schemas.codec import Decision
from schemas.decisions import JobAdmitted
from tests.bench.auction.rows import TINY


@pytest.fixture(scope="module")
def run() -> SimulatedRun:
    cell, workload = draw(TINY, 0)
    return Simulation(cell, workload.inputs(cell.epoch_s)).run()


def with_plans(run: SimulatedRun, change) -> SimulatedRun:
    """The run, had other plans been admitted: `change` makes a plan from each."""

    def changed(decision: Decision) -> Decision:
        outcome = decision.outcome
        if not isinstance(outcome, JobAdmitted):
            return decision
        offer = outcome.evidence.offer.model_copy(update={"plan": change(outcome.evidence.offer.plan)})
        evidence = outcome.evidence.model_copy(update={"offer": offer})
        return replace(decision, outcome=outcome.model_copy(update={"evidence": evidence}))

    return replace(run, decisions=[changed(decision) for decision in run.decisions])


def admitted(run: SimulatedRun) -> list[str]:
    return [d.outcome.job_id for d in run.decisions if isinstance(d.outcome, JobAdmitted)]


def test_what_the_cell_admits_is_feasible(run):
    assert len(admitted(run)) > 5
    assert faults(run) == []


def test_insufficient_plan_fails_by_name(run):
    def shortened(plan: Plan) -> Plan:
        return plan.model_copy(update={"node_slots": plan.node_slots[:-1]})

    with pytest.raises(
        CommandError, match=r"violations of problem P by admitted plans, the first: job task-"
    ) as e:
        check_plans(with_plans(run, shortened))
    assert f"job {admitted(run)[0]}: trains" in str(e.value)


def test_an_overfull_node_fails_by_name(run):
    def on_one_node(plan: Plan) -> Plan:
        return plan.model_copy(
            update={"node_slots": tuple((slot, "node-0000") for slot, _ in plan.node_slots)}
        )

    found = faults(with_plans(run, on_one_node))
    assert any("node-0000" in fault and fault.endswith("(4f)") for fault in found)


def test_unoffered_vendor_fails_by_name(run):
    found = faults(with_plans(run, lambda plan: plan.model_copy(update={"vendor": "vendor-99"})))
    assert sum(fault.endswith("(4a)") for fault in found) == len(admitted(run))
