"""The slots that a node believes to be its cell's.

Anyone who reaches the broker may be able to write to `commands`, and no command proves who wrote it. So a
slot is checked for plausibility: against the present time, the length of slots, and the cell's calendar
according to earlier slots. A forged slot that passes may cost the node that slot; none changes what is
accepted after it, so no forged slot makes the node refuse genuine ones for good.
"""

import math
from collections import Counter

from executors.node.runner import Objection
from schemas.cells import LEAST_SLOT_S, MAX_SLOT_S
from schemas.lora_commands import SlotAssigned

CLOCK_TOLERANCE_S = 60.0
"""So far the cell's clock may be ahead of the node's."""
_LENGTH_TOLERANCE = 1e-3
"""Relative: the ends of a slot are rounded, which shows where slots are short."""


class SlotCalendar:
    """Judges the slots of one node."""

    def __init__(self) -> None:
        self._doubted: SlotAssigned | None = None
        """The last that was refused for being of another calendar."""

    def judge(self, slot: SlotAssigned, present: SlotAssigned | None, now_s: float) -> Objection | None:
        """Why a slot is not to be begun; None if it is.

        Args:
            present: the last that was begun.
            now_s: Unix time in seconds.
        """
        fault = _fault(slot, now_s)
        if fault is not None:
            return Objection("impossible", fault)
        if slot.slot_end_s <= now_s:
            return Objection("out_of_date", "the slot is over")
        if present is not None:
            if not self._is_believed(slot, present):
                self._doubted = slot
                return Objection(
                    "impossible",
                    f"slot {slot.slot} from {slot.slot_start_s:.3f} to {slot.slot_end_s:.3f} s: slot "
                    f"{present.slot} was from {present.slot_start_s:.3f} to {present.slot_end_s:.3f} s",
                )
            if present.slot_end_s > now_s and slot.slot_start_s <= present.slot_start_s:
                return Objection("out_of_date", "the slot is not newer")
        self._doubted = None
        return None

    def _is_believed(self, slot: SlotAssigned, present: SlotAssigned) -> bool:
        """Whether a slot is where the one before it puts it.

        A second one in succession that agrees with a refused one is believed: the cell was set up anew, or it
        was the first that was forged.
        """
        doubted = self._doubted
        if doubted is not None and doubted.slot != slot.slot and _are_of_one_calendar(slot, doubted):
            return True
        return _are_of_one_calendar(slot, present)


def _fault(slot: SlotAssigned, now_s: float) -> str | None:
    """Why no cell has such a slot at this time."""
    length_s = slot.slot_end_s - slot.slot_start_s
    if not LEAST_SLOT_S * (1 - _LENGTH_TOLERANCE) <= length_s <= MAX_SLOT_S * (1 + _LENGTH_TOLERANCE):
        return f"a slot of {length_s:g} s: a cell has slots of {LEAST_SLOT_S:g} to {MAX_SLOT_S:g} s"
    ahead_s = slot.slot_start_s - now_s
    if ahead_s > CLOCK_TOLERANCE_S:
        return f"the slot begins in {ahead_s:.0f} s, and is told when it begins: are the clocks synchronised?"
    job_id, times = next(iter(Counter(run.job_id for run in slot.runs).most_common(1)), ("", 0))
    return f"job {job_id} is given {times} runs" if times > 1 else None


def _are_of_one_calendar(one: SlotAssigned, other: SlotAssigned) -> bool:
    """Whether two slots are as long, and as far apart in time as in number, give or take one slot.

    The rounding of a slot's ends is less than that, and by one slot no job's checkpoints get out of reach.
    """
    length_s = other.slot_end_s - other.slot_start_s
    slots_between = (one.slot_start_s - other.slot_start_s) / length_s
    return (
        math.isclose(one.slot_end_s - one.slot_start_s, length_s, rel_tol=_LENGTH_TOLERANCE)
        and abs(slots_between - (one.slot - other.slot)) <= 1
    )
