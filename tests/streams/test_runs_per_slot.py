"""However small its jobs, a cell gives a node no more runs in a slot than a command holds."""

from schemas.cells import GpuType
from schemas.decisions import JobAdmitted
from schemas.lora_commands import MAX_RUNS_PER_SLOT, SlotAssigned
from tests.support.cells import EPOCH_S, SLOT_S, UNIT, Bench, ask, bid, tick, zone

MINUTE = {
    "work_samples": 1,
    "memory_gib": 0.001,
    "speed_samples_per_s": {"fast": 0.1},
    "deadline_s": EPOCH_S + SLOT_S,
}
"""A job that takes next to nothing, in slot 0."""


def test_full_slot_refuses_next_small_job():
    node = GpuType(name="fast", samples_per_s=1_000.0, memory_gib=80.0)
    cell = Bench.configured(zones=(zone(gpu_types=(node,), nodes=zone().nodes[:1]),))
    for number in range(MAX_RUNS_PER_SLOT):
        (quoted,) = cell.send(ask(**MINUTE))
        units = quoted.evidence.offer.lowest_winning_bid_micros / UNIT
        (admitted,) = cell.send(bid(f"j{number}", units=units, **MINUTE))
        assert isinstance(admitted, JobAdmitted)
    (refused,) = cell.send(bid("last", units=10**6, **MINUTE))
    assert refused.reason == "no_room_before_deadline"
    assert refused.evidence.offer.room.without_memory == 1
    assert list(cell.cell.broken_invariants()) == []
    (command,) = (outcome for outcome in cell.send(tick(0)) if isinstance(outcome, SlotAssigned))
    assert len(command.runs) == MAX_RUNS_PER_SLOT
