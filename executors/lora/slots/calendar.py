"""The slots that a node accepts as its cell's.

Any program that reaches the broker may be able to write to `commands`, and no command proves its writer. So a
slot is checked for plausibility: against the present time, the length of slots, and the cell's calendar
according to earlier slots. A forged slot that passes may cost the node that slot. It does not change which
slots are accepted after it, so it cannot make the node refuse genuine ones for good.
"""

import math
from collections import Counter

from executors.node.runner import Objection
from schemas.cells import LEAST_SLOT_S, MAX_SLOT_S
from schemas.lora_commands import SlotAssigned

CLOCK_TOLERANCE_S = 60.0
"""Most that the cell's clock may be ahead of the node's (s)."""
_LENGTH_TOLERANCE = 1e-3
"""Relative tolerance: the ends of a slot are rounded, which matters for short slots."""


class SlotCalendar:
    """Checks the slots of one node."""

    def __init__(self) -> None:
        self._refused: SlotAssigned | None = None
        """Last slot that was refused as of another calendar."""

    def objection(self, slot: SlotAssigned, present: SlotAssigned | None, now_s: float) -> Objection | None:
        """Return why a slot may not begin; None if it may.

        Args:
            present: last slot that began.
            now_s: Unix time in seconds.
        """
        fault = _fault(slot, now_s)
        if fault is not None:
            return Objection("impossible", fault)
        if slot.slot_end_s <= now_s:
            return Objection("out_of_date", "the slot is over")
        if present is not None:
            if not self._is_accepted(slot, present):
                self._refused = slot
                return Objection(
                    "impossible",
                    f"slot {slot.slot} from {slot.slot_start_s:.3f} to {slot.slot_end_s:.3f} s: slot "
                    f"{present.slot} was from {present.slot_start_s:.3f} to {present.slot_end_s:.3f} s",
                )
            if present.slot_end_s > now_s and slot.slot_start_s <= present.slot_start_s:
                return Objection("out_of_date", "the slot is not newer")
        self._refused = None
        return None

    def _is_accepted(self, slot: SlotAssigned, present: SlotAssigned) -> bool:
        """Return whether a slot is at the place that the one before it implies.

        A slot that agrees with a refused slot just before it is accepted: the cell was set up again, or the
        first slot was forged.
        """
        refused = self._refused
        if refused is not None and refused.slot != slot.slot and _are_of_one_calendar(slot, refused):
            return True
        return _are_of_one_calendar(slot, present)


def _fault(slot: SlotAssigned, now_s: float) -> str | None:
    """Return why no cell has such a slot at this time; None if it is plausible."""
    length_s = slot.slot_end_s - slot.slot_start_s
    if not LEAST_SLOT_S * (1 - _LENGTH_TOLERANCE) <= length_s <= MAX_SLOT_S * (1 + _LENGTH_TOLERANCE):
        return f"a slot of {length_s:g} s: a cell has slots of {LEAST_SLOT_S:g} to {MAX_SLOT_S:g} s"
    ahead_s = slot.slot_start_s - now_s
    if ahead_s > CLOCK_TOLERANCE_S:
        return f"the slot begins in {ahead_s:.0f} s, and is sent when it begins: are the clocks synchronised?"
    job_id, times = next(iter(Counter(run.job_id for run in slot.runs).most_common(1)), ("", 0))
    return f"job {job_id} is given {times} runs" if times > 1 else None


def _are_of_one_calendar(one: SlotAssigned, other: SlotAssigned) -> bool:
    """Return whether two slots are equally long, and as far apart in time as in number, with a tolerance of
    one slot.

    The rounding of a slot's ends is smaller, and within one slot all jobs' checkpoints stay in reach.
    """
    length_s = other.slot_end_s - other.slot_start_s
    slots_between = (one.slot_start_s - other.slot_start_s) / length_s
    return (
        math.isclose(one.slot_end_s - one.slot_start_s, length_s, rel_tol=_LENGTH_TOLERANCE)
        and abs(slots_between - (one.slot - other.slot)) <= 1
    )
