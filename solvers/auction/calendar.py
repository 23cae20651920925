"""Slots and the seconds they stand for."""

import math
from dataclasses import dataclass

import numpy as np

from schemas.base import HOURS_PER_DAY
from solvers.arrays import Ints


@dataclass(frozen=True)
class Calendar:
    """Slot t runs from epoch_s + t slot_s to epoch_s + (t + 1) slot_s."""

    epoch_s: float
    slot_s: float

    def start_s(self, slot: int) -> float:
        """When a slot begins."""
        return self.epoch_s + slot * self.slot_s

    def hours_of(self, slots: Ints, utc_offset_h: int = 0) -> Ints:
        """The hour of the day that each slot begins in, in UTC or where clocks are ahead of it."""
        starts_s = self.epoch_s + slots * self.slot_s
        return ((starts_s // 3_600).astype(np.int64) + utc_offset_h) % HOURS_PER_DAY

    def slot_at(self, time_s: float) -> int:
        """The slot that `time_s` falls in; -1 or less before the epoch. Exact at the boundaries."""
        slot = math.floor((time_s - self.epoch_s) / self.slot_s)
        while self.start_s(slot + 1) <= time_s:
            slot += 1
        while self.start_s(slot) > time_s:
            slot -= 1
        return slot

    def last_slot_by(self, deadline_s: float) -> int:
        """The last slot that ends no later than a deadline."""
        return self.slot_at(deadline_s) - 1
