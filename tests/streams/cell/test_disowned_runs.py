"""Orders of a cell to a node to end a run that the cell does not have."""

from typing import Any

import msgpack
import pytest

from schemas.base import Outcome
from schemas.cells import Node
from schemas.commands import RunDisowned
from schemas.decisions import EventIgnored
from schemas.fleet import RunProgressed
from streams.cell.disowned import AGAIN_S, MOST, MOST_OF_NODE, DisownedRuns
from streams.cell.state_machine import Cell
from tests.support import elastic, merging, moe
from tests.support.cells import EPOCH_S, SLOT_S, Bench, bid, configuration, progressed, tick, zone

NODES = tuple(
    Node(id=f"n{number}", gpu_type="fast", tariff="t") for number in range(2 * MOST // MOST_OF_NODE)
)
SLOTS = AGAIN_S / SLOT_S


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.send(configuration(zones=(zone(nodes=NODES),)), tick(0))
    return bench


def report(bench: Bench, node: str, run_id: str) -> list[RunDisowned]:
    """Report progress of a run that the cell does not have."""
    event = progressed(node, 1, 5, complete=False).model_copy(update={"run_id": run_id})
    return disowned(bench.send(event))


def disowned(outcomes: list[Outcome]) -> list[RunDisowned]:
    return [each for each in outcomes if isinstance(each, RunDisowned)]


def test_repeatedly_reported_run_is_disowned_once(bench: Bench) -> None:
    counts = [len(report(bench, "n0", "1/j")) for _ in range(50)]
    assert counts == [1, *[0] * 49]
    assert len(report(bench, "n1", "1/j")) == 1, "the same run of another node"


def test_continuing_run_is_disowned_later(bench: Bench) -> None:
    report(bench, "n0", "1/j")
    bench.send(tick(SLOTS - 1))
    assert report(bench, "n0", "1/j") == []
    bench.send(tick(SLOTS))
    assert [each.run_id for each in report(bench, "n0", "1/j")] == ["1/j"]


def test_invented_runs_of_one_node_are_limited(bench: Bench) -> None:
    counts = [len(report(bench, "n0", f"{number}/j")) for number in range(2 * MOST_OF_NODE)]
    assert sum(counts) == MOST_OF_NODE
    assert len(report(bench, "n1", "1/j")) == 1


def test_invented_runs_of_all_nodes_are_limited(bench: Bench) -> None:
    count = sum(
        len(report(bench, node.id, f"{number}/j")) for node in NODES for number in range(MOST_OF_NODE + 1)
    )
    assert count == MOST
    bench.send(tick(SLOTS))
    assert len(report(bench, NODES[-1].id, "1/j")) == 1


def test_restored_cell_keeps_disowned_runs(bench: Bench) -> None:
    for number in range(5):
        report(bench, f"n{number % 2}", f"{number}/j")
    packed = bench.cell.packed()
    bench.cell = Cell.unpack(packed)
    assert bench.cell.packed() == packed
    assert report(bench, "n0", "4/j") == []
    assert len(report(bench, "n0", "5/j")) == 1


def test_runs_before_first_tick_are_disowned_once() -> None:
    runs = DisownedRuns()
    assert [runs.note("n", "1/j", time_s) for time_s in (None, None, 0.0, 1.0, AGAIN_S)] == [
        *(True, False),
        *(True, False, True),
    ]


def test_kept_runs_fit_their_room_in_snapshot() -> None:
    runs = DisownedRuns()
    for number in range(MOST):
        assert runs.note(f"node-{number}", f"{number}/j", 1e9)
    assert len(msgpack.packb(runs.state())) <= 20 * 1_024


WITH_JOB = {
    "auction": (configuration(), tick(0), bid("j", 10.0)),
    "elastic": (elastic.elastic_cell(), elastic.tick(EPOCH_S), elastic.submit("j")),
    "experts": (moe.moe_cell(), moe.tick(EPOCH_S), moe.submit("j", moe.training())),
    "merging": (merging.merging_cell(), merging.tick(EPOCH_S), merging.submit("j")),
}


@pytest.mark.parametrize("events", WITH_JOB.values(), ids=WITH_JOB)
def test_unknown_run_of_live_job_is_disowned(events: tuple[Any, Any, Any]) -> None:
    bench, cell = Bench(), events[0]
    bench.send(*events)
    (job,) = bench.cell.jobs.live.values()
    node = cell.zones[0].nodes[0].id
    place = {"cell": cell.cell, "node": node, "run_id": f"99/{job.job_id}", "job_id": job.job_id}
    event = RunProgressed(**place, samples_done=0, node_s=0.0, complete=False, loss=None)
    ignored, order = bench.send(event)
    assert (type(ignored), ignored.reason) == (EventIgnored, "stale_report")
    assert (type(order), order.run_id) == (RunDisowned, event.run_id)
