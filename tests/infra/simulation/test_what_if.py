"""A recorded ledger, simulated again: unchanged, and under other policies, nodes and prices."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.errors import CommandError
from infra.figures.board import Board
from infra.figures.summary import summarise
from infra.simulation.alternative import Alternative, NodeAddition
from infra.simulation.auction.policies import OtherPolicies
from infra.simulation.simulator import Simulation
from infra.simulation.what_if import JobEnd, Step, WhatIf, ledger_configuration, recorded, what_if
from infra.workloads.arrivals import generate
from infra.workloads.auction import draw_workload
from schemas.auction.evidence import JobReplanned
from schemas.cells import CellConfigured, Node, ThroughputRow
from schemas.decisions import JobWithdrawn, NodeStatusChanged
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.lora import Dataset
from streams.cell.ledger_event import LedgerEvent
from streams.policies.auction.planned_job import slot_of_run
from streams.replay.replay import DecisionRecord, verify
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    Bench,
    ask,
    bid,
    configuration,
    finished,
    node_seen,
    offline,
    online,
    progressed,
    started,
    tick,
    vendor,
    vendor_left,
    withdraw,
    zone,
)
from tests.support.examples import examples, long
from tests.support.recordings import asked, played, write

ROWS = (
    ThroughputRow(
        gpu_type="fast", rank=8, batch_size=4, sequence_length=64, samples_per_s=5.0, memory_gib=2.0
    ),
    ThroughputRow(
        gpu_type="slow", rank=8, batch_size=4, sequence_length=64, samples_per_s=2.5, memory_gib=2.0
    ),
)
DRAWN = configuration(zones=(zone(throughput=ROWS, horizon_slots=12),))


def ends(board: Board) -> dict[str, JobEnd]:
    return {job_id: JobEnd.of(job) for job_id, job in board.jobs.by_id.items()}


def compared(
    path: Path, other: CellConfigured | None = None, pace: float = 1.0, steps: list[Step] | None = None
) -> WhatIf:
    own = ledger_configuration(path, None)
    recording, before = recorded(path, None, own)
    on_step = (lambda _step: None) if steps is None else steps.append
    return what_if(path, recording, before, other or own, pace, on_step)


def drawn_ledger(path: Path, pace: float = 1.0) -> Path:
    workload = draw_workload(DRAWN, generate(40, 150.0, 1), DRAWN.epoch_s, 1)
    return write(path, Simulation(DRAWN, workload.inputs(DRAWN.epoch_s), pace).run().ledger)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    return drawn_ledger(tmp_path_factory.mktemp("drawn") / "ledger.jsonl")


EVENTFUL = configuration(zones=(zone(horizon_slots=12),))
LATE_S = EPOCH_S + 12 * SLOT_S
PREPARED = {"deadline_s": LATE_S, "needs_preprocessing": True}
OTHERS = (
    (0.0, vendor("slow", 1.0, 12.0)),
    (0.0, vendor("fast", 3.0, 2.0)),
    (0.1, bid("long", work_samples=400, deadline_s=LATE_S)),
    (0.2, bid("other", user="v", work_samples=400, deadline_s=LATE_S)),
    (0.3, bid("prepared", **PREPARED)),
    (0.4, bid("poor", units=0.5)),
    (0.5, bid("regretted", deadline_s=LATE_S)),
    (0.6, withdraw("regretted", user="v")),
    (0.7, withdraw("regretted")),
    (1.2, vendor_left("slow")),
    (1.3, ask(deadline_s=LATE_S)),
    (1.4, bid("dearer", **PREPARED)),
    (1.5, vendor_left("fast")),
    (1.6, bid("unprepared", **PREPARED)),
    (7.5, online("a1")),
)


@pytest.fixture(scope="module")
def eventful(tmp_path_factory) -> Path:
    """Withdrawals, vendors that leave, a node that is lost in a slot and back later, one that leaves."""
    absences = {"a1": (2.25, 7.5), "b1": (4.0, 99.0)}
    outside = asked(EVENTFUL, 14, absences, [*OTHERS, (4.0, offline("b1"))])
    ledger, _ = played(EVENTFUL, outside)
    return write(tmp_path_factory.mktemp("eventful") / "ledger.jsonl", ledger)


def test_unchanged_ledger_gives_same_jobs(drawn):
    found = compared(drawn)
    assert found.simulation_is_exact
    assert len(list(found.jobs())) == 40
    assert not any(job.differs for job in found.jobs())
    totals = found.as_json()["totals"]
    assert totals["after"] == totals["simulated"]
    assert {job.before.state for job in found.jobs()} == {"completed", "rejected"}


def test_losses_withdrawals_and_vendors_are_repeated(eventful):
    steps: list[Step] = []
    found = compared(eventful, steps=steps)
    assert found.simulation_is_exact
    outcomes = [(decision.time_s, decision.outcome) for _, decided in steps for decision in decided]
    changes = [
        ((time_s - EPOCH_S) / SLOT_S, change.node, change.status, change.reason)
        for time_s, change in outcomes
        if isinstance(change, NodeStatusChanged)
    ]
    # Its last report was at 2.25 slots, and it is silent 1.5 later; the cell's clock is the last tick's.
    assert changes == [
        (3.6, "a1", "down", "silent"),
        (4.0, "b1", "down", "offline"),
        (7.4, "a1", "up", "online"),
    ]
    assert any(isinstance(outcome, JobReplanned) and outcome.reason == "node_lost" for _, outcome in outcomes)
    assert sum(isinstance(outcome, JobWithdrawn) for _, outcome in outcomes) == 1
    states = {job.after.job_id: (job.after.state, job.after.reason) for job in found.jobs()}
    assert states["regretted"] == ("withdrawn", "")
    assert states["poor"] == ("rejected", "price_not_below_bid")
    assert states["unprepared"] == ("rejected", "no_vendor")
    assert states["long"] == states["other"] == ("completed", "")
    # One node is left, which besides the two long jobs has room for one of these.
    assert (states["prepared"], states["dearer"]) == (("completed", ""), ("refunded", "node_lost"))


def test_lost_node_is_silent_and_slot_repeated(eventful):
    steps: list[Step] = []
    compared(eventful, steps=steps)
    runs = [entry.envelope.event for entry, _ in steps if entry.envelope.source == "millrace/simulate"]
    started_there = {
        slot_of_run(run.run_id, run.job_id)
        for run in runs
        if isinstance(run, RunStarted) and run.node == "a1"
    }
    ended_there = {
        slot_of_run(run.run_id, run.job_id)
        for run in runs
        if isinstance(run, RunProgressed | RunFinished) and run.node == "a1"
    }
    assert {slot for slot in started_there if 2 <= slot < 7} == {2}
    assert not {slot for slot in ended_there if 2 <= slot < 7}


@pytest.mark.parametrize("policy", ["eft", "fixed-price", *long("published", "ntm", "titan")])
def test_nodes_are_lost_alike_under_any_policy(eventful, policy):
    own = ledger_configuration(eventful, None)
    price = 10_000 if policy == "fixed-price" else None
    steps: list[Step] = []
    compared(eventful, Alternative(OtherPolicies(policy, price).of).of(own), steps=steps)
    decisions = [decision for _, decided in steps for decision in decided]
    down = [
        (decision.outcome.node, decision.time_s)
        for decision in decisions
        if isinstance(decision.outcome, NodeStatusChanged) and decision.outcome.status == "down"
    ]
    assert down == [("a1", EPOCH_S + 3.6 * SLOT_S), ("b1", EPOCH_S + 4.0 * SLOT_S)]
    records = [DecisionRecord(decision.canonical, decision.id) for decision in decisions]
    assert verify([entry for entry, _ in steps], records).ok


def test_result_of_what_if_is_valid_ledger(eventful, tmp_path):
    own = ledger_configuration(eventful, None)
    other = Alternative(OtherPolicies("eft").of, additions=(NodeAddition("z", "fast", 1),)).of(own)
    steps: list[Step] = []
    once = compared(eventful, other, steps=steps)
    again = compared(write(tmp_path / "ledger.jsonl", [entry for entry, _ in steps]))
    assert again.simulation_is_exact
    assert ends(again.before) == ends(once.after)


def test_pace_of_executors_is_separated_from_change(tmp_path):
    ledger = drawn_ledger(tmp_path / "ledger.jsonl", pace=0.5)
    assert not compared(ledger).simulation_is_exact
    assert compared(ledger, pace=0.5).simulation_is_exact


def crowd(nodes: int) -> CellConfigured:
    """Return a cell of `nodes` nodes, each with room for one of the four jobs of `test_more_nodes_...`."""
    fleet = tuple(Node(id=f"a{number}", gpu_type="fast", tariff="t") for number in range(nodes))
    return configuration(zones=(zone(nodes=fleet, gpu_types=zone().gpu_types[:1]),))


@pytest.mark.parametrize("more", [0, 1, 2, 3, 4])
def test_each_added_node_admits_one_more_job(tmp_path, more):
    whole = {"speed_samples_per_s": {"fast": 10.0}, "work_samples": 400}
    bids = [(0.1 * number, bid(f"j{number}", units=90.0, **whole)) for number in range(1, 5)]
    ledger, _ = played(crowd(1), asked(crowd(1), 8, {}, bids))
    path = write(tmp_path / "ledger.jsonl", ledger)
    additions = (NodeAddition("z", "fast", more),) if more else ()
    found = compared(path, Alternative(additions=additions).of(crowd(1)))
    after = summarise(found.after)
    assert summarise(found.before).admitted == 1
    assert after.admitted == len(after.adapters) == min(1 + more, 4)
    assert after.nodes_lost == 0


def test_recorded_reports_are_simulated_at_planned_pace(tmp_path):
    bench = Bench.configured(zones=(zone(nodes=zone().nodes[:1]),))
    bench.send(online("a1"), tick(0), bid(deadline_s=EPOCH_S + 60.0))
    slot = 1
    for done in (50, 100, 150):
        bench.send(tick(slot), started("a1", slot, done - 50), progressed("a1", slot, done))
        slot += 1
    # The last of it comes a slot late: the executor was slow to report.
    bench.send(tick(4), started("a1", 4, 150), tick(5), node_seen("a1"), finished("a1", 4), tick(6), tick(7))
    bench.send(started("stray", 1, 0), progressed("stray", 1, 50))
    path = write(tmp_path / "ledger.jsonl", bench.ledger)
    found = compared(path)
    (job,) = found.jobs()
    # 200 samples by a node that could have done 700 from the first tick to the last; what no node of the
    # cell has done does not count.
    assert summarise(found.before).utilisation == pytest.approx(200 / 700)
    end = JobEnd("completed", None, job.before.payment_micros, "4/j")
    assert JobEnd.of(job.before) == JobEnd.of(job.simulated) == end
    half_pace = next(iter(compared(path, pace=0.5).jobs()))
    assert half_pace.simulated.state == "refunded"
    assert half_pace.simulated.payment_micros == 0


def test_failure_of_departed_node_changes_nothing(eventful):
    own = ledger_configuration(eventful, None)
    without = own.zones[0].model_copy(update={"nodes": own.zones[0].nodes[1:]})
    steps: list[Step] = []
    found = compared(eventful, own.model_copy(update={"zones": (without,)}), steps=steps)
    spoken_of = {getattr(entry.envelope.event, "node", None) for entry, _ in steps}
    assert spoken_of == {None, "a2", "b1"}
    assert found.after.nodes.losses == 1


def test_bids_for_removed_zone_are_rejected(drawn):
    renamed = DRAWN.zones[0].model_copy(update={"id": "y"})
    found = compared(drawn, DRAWN.model_copy(update={"zones": (renamed,)}))
    assert {JobEnd.of(job.after) for job in found.jobs()} == {JobEnd("rejected", "unknown_zone")}


def test_nodes_serve_present_base_model_of_zone(drawn):
    zones = (DRAWN.zones[0].model_copy(update={"base_model": "other"}),)
    found = compared(drawn, DRAWN.model_copy(update={"zones": zones}))
    assert ends(found.after) == ends(found.before)
    assert found.after.nodes.losses == 0


@pytest.mark.parametrize("part", [0.2, 0.3, 0.4, 0.5])
def test_truncated_ledger_is_simulated_to_its_end(drawn, tmp_path, part):
    lines = drawn.read_bytes().splitlines(keepends=True)
    cut = tmp_path / "ledger.jsonl"
    cut.write_bytes(b"".join(lines[: int(len(lines) * part)]))
    found = compared(cut)
    assert found.simulation_is_exact
    assert "admitted" in {job.before.state for job in found.jobs()}


def of_cell(name: str, event: LedgerEvent) -> LedgerEvent:
    renamed = event.envelope.event.model_copy(update={"cell": name})
    return LedgerEvent(event.offset, type(event.envelope)(event.envelope.id, "test", "", renamed))


def test_one_of_several_cells_is_chosen(tmp_path):
    outside = asked(EVENTFUL, 14, {}, OTHERS)
    ledger, _ = played(EVENTFUL, outside)
    both = [*ledger, *(of_cell("d", entry) for entry in ledger[:20])]
    path = write(tmp_path / "ledger.jsonl", both)
    own = ledger_configuration(path, "c")
    with pytest.raises(CommandError, match="several cells, such as c and d: choose with --cell"):
        recorded(path, None, own)
    recording, before = recorded(path, "c", own)
    assert before.events == len(ledger)
    assert what_if(path, recording, before, own, pace=1.0).simulation_is_exact
    with pytest.raises(CommandError, match="configures no cell e"):
        ledger_configuration(path, "e")


SLOTS = st.integers(1, 60).map(lambda fifths: fifths / 5 + 0.05)


@st.composite
def histories(draw) -> tuple[dict[str, tuple[float, float]], list]:
    """Nodes' absences, and bids with withdrawals of some of them."""
    absences = {}
    for node in draw(st.sets(st.sampled_from(["a1", "a2", "b1"]), max_size=2)):
        from_slot = draw(SLOTS)
        absences[node] = (from_slot, from_slot + draw(SLOTS))
    others = []
    for number in range(draw(st.integers(1, 6))):
        slot, work = draw(SLOTS), draw(st.integers(20, 500))
        dataset = Dataset(path="d.jsonl", samples=10)
        deadline_s = EPOCH_S + (slot + draw(st.integers(2, 9))) * SLOT_S
        units = draw(st.integers(1, 60))
        others.append(
            (slot, bid(f"j{number}", units, work_samples=work, deadline_s=deadline_s, dataset=dataset))
        )
        if draw(st.booleans()):
            others.append((slot + 0.3, withdraw(f"j{number}")))
    return absences, others


@given(histories())
@settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_simulating_simulated_ledger_is_exact(tmp_path, history):
    absences, others = history
    ledger, decisions = played(EVENTFUL, asked(EVENTFUL, 16, absences, others))
    steps: list[Step] = []
    found = compared(write(tmp_path / "ledger.jsonl", ledger), steps=steps)
    assert found.simulation_is_exact
    assert ends(found.after) == ends(found.before)
    certificates = [getattr(decision.outcome, "certificate", None) for decision in decisions]
    again = [getattr(decision.outcome, "certificate", None) for _, decided in steps for decision in decided]
    assert [c for c in again if c] == [c for c in certificates if c]
