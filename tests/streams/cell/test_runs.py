"""Slots and runs: what is assigned, and what follows when reality differs from the plan."""

import pytest

from schemas.auction.evidence import JobReplanned, ZonePriced
from schemas.commands import RunDisowned
from schemas.decisions import EventIgnored, JobCompleted, JobRefunded, NodeStatusChanged
from schemas.fleet import RefusedRun
from schemas.lora_commands import RunCancelled, SlotAssigned
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    UNIT,
    CheckedBench,
    bid,
    failed,
    finished,
    node_seen,
    nodes_by_slot,
    offline,
    online,
    progressed,
    refused,
    silent,
    started,
    tick,
    zone,
)


def test_each_slot_is_assigned_when_it_begins(bench):
    (admitted,) = bench.send(bid())
    assigned = {}
    for slot in range(6):
        *commands, priced = bench.send(tick(slot))
        assert isinstance(priced, ZonePriced)
        for outcome in commands:
            assert isinstance(outcome, SlotAssigned)
            (order,) = outcome.runs
            assert (order.job_id, order.quota_samples, outcome.slot_start_s) == (
                "j",
                50,
                EPOCH_S + slot * SLOT_S,
            )
            assigned[outcome.slot] = outcome.node
            done = order.resume_samples + 50
            report = finished if done == 200 else progressed
            bench.send(started(outcome.node, slot, order.resume_samples), report(outcome.node, slot, done))
        bench.send(*[node_seen(node) for node in ("a1", "a2", "b1")])
    assert assigned == nodes_by_slot(admitted)


def test_finished_job_completes_and_frees_slots(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    bench.send(tick(0))
    node = nodes_by_slot(admitted)[0]
    (completed,) = bench.send(finished(node, 0))
    assert isinstance(completed, JobCompleted)
    # One slot was spent of the four that were planned.
    assert completed.evidence.certificate.realised_welfare_micros == 50 * UNIT - UNIT // 2
    assert bench.zone.auctioneer.market.free_samples.sum() == 6 * (100 + 100 + 50)


def test_lora_job_needs_adapter_to_complete(bench):
    (admitted,) = bench.send(bid())
    node = nodes_by_slot(admitted)[0]
    bench.send(tick(0), started(node, 0, 0))
    without = finished(node, 0).model_copy(update={"adapter_path": None, "adapter_digest": None})
    (ignored,) = bench.send(without)
    assert (ignored.reason, ignored.facts["case"]) == ("stale_report", "no_adapter")
    assert isinstance(bench.send(finished(node, 0))[0], JobCompleted)


def test_late_run_is_replanned_at_no_charge(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 60))
    for slot in range(min(nodes_by_slot(admitted)) + 1):
        bench.send(tick(slot))
    node = nodes_by_slot(admitted)[slot]
    bench.send(started(node, slot, 0))
    (replanned,) = bench.send(progressed(node, slot, 20))
    assert isinstance(replanned, JobReplanned)
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 180)
    assert bench.job("j")["payment_micros"] == admitted.payment_micros


def test_job_past_deadline_is_refunded_in_full(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    bench.send(tick(0))
    node = nodes_by_slot(admitted)[0]
    refunded, *commands = bench.send(started(node, 0, 0), progressed(node, 0, 20))
    assert isinstance(refunded, JobRefunded)
    assert (refunded.reason, refunded.refund_micros) == ("behind_plan", admitted.payment_micros)
    assert commands == [RunCancelled(zone="z", node=node, job_id="j")]
    assert refunded.evidence.certificate.realised_welfare_micros == -UNIT // 2


def test_task_at_fault_gets_withdrawal_refund(bench):
    bench.send(bid(), tick(0))
    (refunded,) = bench.send(failed("a1", 0, 0, permanent=True))
    assert isinstance(refunded, JobRefunded)
    # Four slots at half a unit were paid; the first is spent.
    assert (refunded.refund_micros, refunded.retained_micros) == (3 * UNIT // 2, UNIT // 2)


def test_unreported_slot_is_lost_one_slot_later(bench):
    bench.send(bid(deadline_s=EPOCH_S + 60))
    outcomes = bench.send(tick(0), tick(1), tick(2))
    replanned = [outcome for outcome in outcomes if isinstance(outcome, JobReplanned)]
    planned_first = bench.job("j")["plan"][0]["slot"]
    assert [r.reason for r in replanned] == (["behind_plan"] if planned_first == 0 else [])


def test_silent_node_is_down_and_jobs_move(bench):
    bench.send(tick(0))
    (admitted,) = bench.send(bid(speed_samples_per_s={"fast": 5.0}))
    node = nodes_by_slot(admitted)[1]
    bench.send(online(node))
    down, replanned = bench.send(silent(node))
    assert down == NodeStatusChanged(zone="z", node=node, status="down", reason="silent")
    assert isinstance(replanned, JobReplanned)
    assert replanned.reason == "node_lost"
    assert node not in nodes_by_slot(replanned).values()
    (up,) = bench.send(node_seen(node))
    assert up == NodeStatusChanged(zone="z", node=node, status="up", reason="online")


def test_an_orderly_leave_moves_the_jobs_at_once(bench):
    (admitted,) = bench.send(bid(speed_samples_per_s={"fast": 5.0}))
    node = next(iter(nodes_by_slot(admitted).values()))
    down, replanned = bench.send(offline(node))
    assert (down.reason, replanned.reason) == ("offline", "node_lost")
    assert bench.send(offline(node)) == []


def test_refusal_of_offline_node_keeps_it_down(bench):
    bench.send(tick(0), offline("a1"))
    (ignored,) = bench.send(refused("a1").model_copy(update={"reason": "no_room"}))
    assert isinstance(ignored, EventIgnored)
    assert ignored.reason == "command_refused"


def test_flapping_nodes_raise_no_prices():
    bench = CheckedBench.configured(zones=(zone(nodes=zone().nodes[:2]),))
    bench.send(bid(work_samples=300, memory_gib=8.0, speed_samples_per_s={"fast": 10.0}), offline("a2"))
    to_and_fro = [online("a2"), offline("a1"), online("a1"), offline("a2")]
    bench.send(*to_and_fro)
    once = bench.zone.auctioneer.market.compute_price.max()
    replanned = [o for o in bench.send(*to_and_fro * 5) if isinstance(o, JobReplanned)]
    assert len(replanned) == 10
    assert bench.zone.auctioneer.market.compute_price.max() == once, "each node-slot once"


def test_node_with_other_base_model_is_unused(bench):
    ignored, down = bench.send(online("a1", base_model="other"))
    assert (ignored.reason, down.status) == ("wrong_base_model", "down")
    assert bench.send(progressed("a1", 0, 1))[0].reason == "unknown_job"
    assert bench.cell.nodes.status_of("a1") == "down", "its reports are no word of its base model"
    (up,) = bench.send(online("a1"))
    assert up.status == "up"


@pytest.mark.parametrize("permanent", [False, True])
def test_failed_run_is_replanned_unless_permanent(bench, permanent):
    (admitted,) = bench.send(bid())
    slot = min(nodes_by_slot(admitted))
    for ahead in range(slot + 1):
        bench.send(tick(ahead))
    node = nodes_by_slot(admitted)[slot]
    (outcome,) = bench.send(started(node, slot, 0), failed(node, slot, 10, permanent))
    assert isinstance(outcome, JobRefunded if permanent else JobReplanned)
    assert outcome.reason == "run_failed"
    assert outcome.remaining_samples == 190


def test_late_report_does_not_reduce_progress(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    nodes = nodes_by_slot(admitted)
    bench.send(tick(0), started(nodes[0], 0, 0), tick(1), started(nodes[1], 1, 50))
    (ignored,) = bench.send(progressed(nodes[0], 0, 20))
    assert (ignored.reason, bench.job("j")["samples_done"]) == ("stale_report", 50)


def test_job_with_undelivered_adapter_ends(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 40))
    for slot, node in nodes_by_slot(admitted).items():
        bench.send(tick(slot), started(node, slot, 50 * slot))
        if slot < 3:
            bench.send(progressed(node, slot, 50 * slot + 50))
    refunded, *_ = bench.send(failed(node, slot, 200, permanent=False))
    assert isinstance(refunded, JobRefunded)
    assert (refunded.reason, refunded.remaining_samples) == ("deadline_passed", 1)


def test_a_lost_checkpoint_is_planned_again(bench):
    (admitted,) = bench.send(bid(deadline_s=EPOCH_S + 60))
    nodes = nodes_by_slot(admitted)
    first, second = sorted(nodes)[:2]
    for slot in range(first + 1):
        bench.send(tick(slot))
    bench.send(started(nodes[first], first, 0), progressed(nodes[first], first, 50))
    for slot in range(first + 1, second + 1):
        bench.send(tick(slot))
    (replanned,) = bench.send(started(nodes[second], second, 30))
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 120)


def test_opening_slot_has_prices_per_class(bench):
    bench.send(bid(speed_samples_per_s={"slow": 5.0}))
    (priced,) = [o for o in bench.send(tick(0)) if isinstance(o, ZonePriced)]
    fast, slow = priced.classes
    assert (fast.gpu_type, fast.compute_used_share, fast.highest_compute_price_micros) == ("fast", 0.0, 0.0)
    # Of the slow node's four slots the first is out, and a sixth, free one has come into the window of six.
    assert slow.compute_used_share == 3 / 6
    assert slow.highest_compute_price_micros > slow.mean_compute_price_micros > 0
    assert (priced.slot, priced.live_jobs) == (0, 1)


@pytest.mark.parametrize("run_id", ["1/other", "01/j", "1", "1/j/2", "one/j", "9" * 100 + "/j", "x"])
def test_report_of_unordered_run_is_stale(bench, run_id: str) -> None:
    bench.send(bid(), tick(0))
    ignored, disowned = bench.send(started("a1", 1, 0).model_copy(update={"run_id": run_id}))
    assert isinstance(ignored, EventIgnored)
    assert ignored.reason == "stale_report"
    assert disowned == RunDisowned(zone="z", node="a1", run_id=run_id, job_id="j"), "it is to end the run"


@pytest.mark.parametrize(
    "report",
    [progressed("a1", 1, 5), finished("a1", 1), failed("a1", 1, 5, permanent=False)],
    ids=["complete", "finished", "failed"],
)
def test_ended_run_needs_no_disowning(bench, report) -> None:
    bench.send(bid(), tick(0))
    (ignored,) = bench.send(report.model_copy(update={"run_id": "7/j"}))
    assert isinstance(ignored, EventIgnored)


def test_run_of_ended_job_is_disowned(bench) -> None:
    bench.send(tick(0))
    ignored, disowned = bench.send(progressed("a1", 1, 5, complete=False))
    assert (ignored.reason, type(disowned)) == ("unknown_job", RunDisowned)
    assert (disowned.node, disowned.run_id, disowned.job_id) == ("a1", "1/j", "j")


def test_refused_run_fails_in_its_slot(bench) -> None:
    bench.send(bid(), tick(0), online("a1"))
    (order,) = [each for each in bench.decisions if isinstance(each.outcome, SlotAssigned)]
    node, run_id = order.outcome.node, order.outcome.runs[0].run_id
    runs = (RefusedRun(run_id=run_id, job_id="j"), RefusedRun(run_id="1/k", job_id="nobody"))
    ignored, *outcomes = bench.send(refused(node).model_copy(update={"runs": runs}))
    assert ignored == EventIgnored(
        reason="command_refused",
        facts={"node": node, "command_id": "c-7-0", "refusal": "runner_missing"},
    )
    assert [(each.job_id, each.reason) for each in outcomes] == [("j", "run_failed")]
