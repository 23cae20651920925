"""In which slot each task arrives, and whose it is."""

import random
from dataclasses import dataclass
from pathlib import Path

from infra.workloads.arrivals import cut_from_trace
from infra.workloads.trace import read_trace


@dataclass(frozen=True)
class SlotArrival:
    """A task that arrives at the beginning of a slot."""

    slot: int
    user: str


@dataclass(frozen=True)
class TraceArrivals:
    """Arrivals of real jobs: a run of consecutive ones, cut at a seeded place.

    Only times and users are real; the work is drawn as in section 5.1 all the same, where the paper takes
    nothing but arrivals from traces either. Jobs of a trace are no LoRA tasks: their GPU time spans five
    orders of magnitude, and one in a hundred would take more than the whole fleet and day.
    """

    path: Path
    jobs: int

    def draw(self, slots: int, slot_s: float, seed: int) -> list[SlotArrival]:
        """Map the run onto so many slots: one linear factor for all gaps, then down to the slot's beginning.

        Raises:
            TraceError: the file is no trace.
            ValueError: it has fewer jobs than are wanted.
        """
        span_s = slots * slot_s
        run = cut_from_trace(read_trace(self.path), self.jobs, span_s, seed)
        # The last job would fall on the end of the last slot.
        return [SlotArrival(min(int(job.offset_s / slot_s), slots - 1), job.user) for job in run]


def poisson(per_slot: float, slots: int, seed: int) -> list[SlotArrival]:
    """So many arrivals per slot on average, independent from slot to slot, each of a user of its own.

    They are one seeded stream of exponential gaps, stretched: another rate brings the same tasks, sooner.
    """
    gaps = random.Random(f"{seed}/arrivals")
    arrivals: list[SlotArrival] = []
    time = gaps.expovariate(1.0) / per_slot
    while time < slots:
        arrivals.append(SlotArrival(int(time), f"user-{len(arrivals):05d}"))
        time += gaps.expovariate(1.0) / per_slot
    return arrivals
