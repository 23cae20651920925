"""In which slot each task arrives, and whose it is."""

import random
from dataclasses import dataclass
from pathlib import Path

from infra.workloads.arrivals import cut_from_trace
from infra.workloads.trace import TraceError, read_trace


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

    def __post_init__(self) -> None:
        """Refuse to cut nothing.

        Raises:
            ValueError: fewer than one job is wanted.
        """
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}, at least 1 is needed")

    def draw(self, slots: int, slot_s: float, seed: int) -> list[SlotArrival]:
        """Map the run onto so many slots: one linear factor for all gaps, then down to the slot's beginning.

        Raises:
            TraceError: the file is no trace, or too short a one.
        """
        span_s = slots * slot_s
        jobs = read_trace(self.path)
        try:
            run = cut_from_trace(jobs, self.jobs, span_s, seed)
        except ValueError as error:
            raise TraceError(f"{self.path}: {error}") from None
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
