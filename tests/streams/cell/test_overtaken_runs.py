"""A run that never reports while the job goes on elsewhere: the wait for its late report comes to an end."""

from collections.abc import Callable

import pytest

from schemas.auction.evidence import JobReplanned
from schemas.base import Event, Outcome
from schemas.decisions import JobRefunded
from streams.cell.state_machine import Cell
from streams.policies.auction.planned_job import LATE_REPORT_SLOTS
from tests.support.cells import (
    EPOCH_S,
    CheckedBench,
    bid,
    failed,
    nodes_by_slot,
    offline,
    online,
    progressed,
    silent,
    started,
    tick,
    vendor,
)

LAST_SLOT = 3


def overtaken(bench: CheckedBench) -> dict[int, str]:
    """Job "j" of 100 samples has two slots, 1 and its last, 3, on different nodes, and its user answers for
    its speed. The run of slot 1 has begun and does not report; that of slot 3 began at 0 and trained its 50.

    Returns: its nodes by slot.
    """
    bench.send(tick(0.1), vendor("fast", 0.0, 10.0))
    for number, deadline_s in enumerate((30, 30, 40)):
        blocker = {"work_samples": 100, "needs_preprocessing": True, "speed_samples_per_s": {"fast": 10.0}}
        bench.send(bid(f"blocker{number}", deadline_s=EPOCH_S + deadline_s, **blocker))
    (admitted,) = bench.send(
        bid(work_samples=100, deadline_s=EPOCH_S + 40, speed_samples_per_s={"fast": 5.0})
    )
    nodes = nodes_by_slot(admitted)
    assert list(nodes) == [1, LAST_SLOT]
    assert nodes[1] != nodes[LAST_SLOT]
    bench.send(tick(1), started(nodes[1], 1, 0), tick(2), tick(3), started(nodes[3], 3, 0))
    assert bench.send(progressed(nodes[3], 3, 50, node_s=10.0)) == [], (
        "slot 1 may still show what it was worth"
    )
    return nodes


def ends_of(outcomes: list[Outcome]) -> list[JobRefunded]:
    """Return the refunds of job "j"."""
    return [o for o in outcomes if isinstance(o, JobRefunded) and o.job_id == "j"]


def end_after(bench: CheckedBench, slot: int) -> tuple[int, JobRefunded]:
    """The slot with which the job ends, and how; each slot begins after a restore from a snapshot."""
    for ahead in range(slot + 1, slot + 100):
        bench.cell = Cell.restore(bench.cell.snapshot())
        if ends := ends_of(bench.send(tick(ahead))):
            (end,) = ends
            return ahead, end
    raise AssertionError("the job never ends")


def test_hanging_run_is_awaited_for_32_slots(bench):
    overtaken(bench)
    slot, refunded = end_after(bench, LAST_SLOT)
    assert slot == 1 + LATE_REPORT_SLOTS + 1
    assert (refunded.reason, refunded.retained_micros) == ("deadline_passed", 0)


@pytest.mark.parametrize(
    "news",
    [
        silent,
        offline,
        online,
        lambda node: online(node, base_model="other"),
        lambda node: progressed(node, 1, 10, node_s=2.0),
        lambda node: failed(node, 1, 0, permanent=False),
    ],
    ids=[
        "its node is silent",
        "its node leaves",
        "its executor begins anew",
        "its node holds another base model",
        "its late report tells of little time of the node",
        "it failed",
    ],
)
@pytest.mark.parametrize("at_slot", [3, 4, 20])
def test_job_without_awaited_report_ends_next_slot(bench, news: Callable[[str], Event], at_slot: int):
    nodes = overtaken(bench)
    for slot in range(LAST_SLOT + 1, at_slot + 1):
        assert ends_of(bench.send(tick(slot))) == []
    assert ends_of(bench.send(news(nodes[1]))) == []
    slot, refunded = end_after(bench, at_slot)
    assert slot == at_slot + 1
    assert (refunded.reason, refunded.retained_micros) == ("deadline_passed", 0)


def test_late_report_ends_job_at_users_cost(bench):
    nodes = overtaken(bench)
    bench.send(tick(4), tick(5))
    _, refunded, *_ = bench.send(progressed(nodes[1], 1, 8, node_s=35.0))
    assert (refunded.reason, refunded.refund_micros) == ("slower_than_declared", 0)


def test_rest_is_replanned_next_slot_if_slots_remain(bench):
    other = {"work_samples": 100, "memory_gib": 8.0, "deadline_s": EPOCH_S + 10}
    bench.send(bid("other", speed_samples_per_s={"fast": 10.0}, **other))
    (admitted,) = bench.send(bid(speed_samples_per_s={"fast": 5.0}))
    nodes = nodes_by_slot(admitted)
    assert list(nodes) == [0, 1, 2, 3]
    assert nodes[0] not in (nodes[1], nodes[2], nodes[3])
    bench.send(tick(0), started(nodes[0], 0, 0), tick(1), started(nodes[1], 1, 0), tick(2))
    assert bench.send(progressed(nodes[1], 1, 50, node_s=10.0)) == [], (
        "slot 0 may still show what it was worth"
    )
    bench.send(started(nodes[2], 2, 50))
    assert bench.send(progressed(nodes[2], 2, 100, node_s=10.0), online(nodes[0])) == []
    (replanned,) = [o for o in bench.send(tick(3)) if isinstance(o, JobReplanned)]
    # 50 more are trained in slot 3, which is out.
    assert (replanned.reason, replanned.remaining_samples) == ("behind_plan", 50)
    assert list(nodes_by_slot(replanned)) == [4]
