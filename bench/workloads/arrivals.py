"""The slot and the user of each task's arrival."""

import hashlib
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from infra.workloads.arrivals import place_in_trace, stretched
from infra.workloads.rows import TraceError
from infra.workloads.trace import TraceJob, read_trace

_DIGEST_BYTES = 8


@dataclass(frozen=True)
class SlotArrival:
    """A task that arrives at the beginning of a slot."""

    slot: int
    user: str


@dataclass(frozen=True)
class TraceArrivals:
    """Arrivals of real jobs: a run of consecutive ones, cut at a seeded place that leaves as many before it.

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

    @cached_property
    def digest(self) -> str:
        """Of the file's bytes, in hexadecimal; read once.

        Raises:
            TraceError: the file cannot be read.
        """
        try:
            return hashlib.blake2b(self.path.read_bytes(), digest_size=_DIGEST_BYTES).hexdigest()
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror}") from None

    def check(self) -> None:
        """Read it once, before anything long is begun with it.

        Raises:
            TraceError: the file is no trace, or too short a one for any seed.
        """
        self.cut(seed=0)

    def draw(self, slots: int, slot_s: float, seed: int) -> list[SlotArrival]:
        """Map the run onto so many slots: one linear factor for all gaps, then down to the slot's beginning.

        Raises:
            TraceError: the file is no trace, or too short a one.
        """
        trace, place = self.cut(seed)
        return _on_slots(trace[place : place + self.jobs], slots, slot_s)

    def cut(self, seed: int) -> tuple[Sequence[TraceJob], int]:
        """The whole trace, and where the run of a seed begins in it: after at least `jobs` others.

        Raises:
            TraceError: the file is no trace, or too short a one.
        """
        trace = read_trace(self.path)
        try:
            return trace, place_in_trace(trace, self.jobs, seed, first=self.jobs)
        except ValueError as error:
            wanted = f"a run of {self.jobs}, and the day before it"
            raise TraceError(f"{self.path}: {error}: {wanted}") from None


@dataclass(frozen=True)
class JobsBefore:
    """Arrivals of the jobs directly before another run of the same trace: what was known when that began."""

    run: TraceArrivals
    run_seed: int
    jobs: int
    """At most as many as the run has."""

    def draw(self, slots: int, slot_s: float, seed: int) -> list[SlotArrival]:  # noqa: ARG002
        """Map them onto so many slots as a run; which they are, no seed of their own decides.

        Raises:
            TraceError: the file is no trace, or too short a one.
        """
        trace, place = self.run.cut(self.run_seed)
        return _on_slots(trace[place - self.jobs : place], slots, slot_s)


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


WORKING_HOURS = range(8, 18)


def by_working_hours(
    arrivals: Sequence[SlotArrival], slots: int, slot_s: float, night_part: float
) -> list[SlotArrival]:
    """The same arrivals in the same order, where slots outside working hours have so small a part of those
    within; `arrivals` are alike all day."""
    hours = (int(slot * slot_s // 3_600) % 24 for slot in range(slots))
    ends = list(accumulate(1.0 if hour in WORKING_HOURS else night_part for hour in hours))
    return [
        replace(arrival, slot=bisect_right(ends, (arrival.slot + 0.5) / slots * ends[-1]))
        for arrival in arrivals
    ]


def _on_slots(run: Sequence[TraceJob], slots: int, slot_s: float) -> list[SlotArrival]:
    # The last job would fall on the end of the last slot.
    return [
        SlotArrival(min(int(job.offset_s / slot_s), slots - 1), job.user)
        for job in stretched(run, slots * slot_s)
    ]
