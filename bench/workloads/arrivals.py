"""Slots and users of the tasks that arrive."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from infra.workloads.arrivals import place_in_trace, stretched
from infra.workloads.trace import TraceError, TraceJob, read_trace

_DIGEST_BYTES = 8


@dataclass(frozen=True)
class SlotArrival:
    """A task that arrives at the beginning of a slot."""

    slot: int
    user: str


@dataclass(frozen=True)
class TraceArrivals:
    """Arrivals of real jobs: a run of consecutive ones, from a seeded place with at least as many before it.

    Only times and users are real. The work is drawn as in section 5.1, because the paper too uses only
    arrivals from traces. Jobs of a trace are not LoRA tasks: their GPU times span five orders of magnitude,
    and one in a hundred would take more than the whole fleet and day.
    """

    path: Path
    jobs: int

    def __post_init__(self) -> None:
        """Check the number of jobs.

        Raises:
            ValueError: it is less than 1.
        """
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}, at least 1 is needed")

    @cached_property
    def digest(self) -> str:
        """Hexadecimal digest of the file, which is read once.

        Raises:
            TraceError: the file cannot be read.
        """
        try:
            return hashlib.blake2b(self.path.read_bytes(), digest_size=_DIGEST_BYTES).hexdigest()
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror}") from None

    def check(self) -> None:
        """Check the file before long work with it.

        Raises:
            TraceError: the file is not a trace, or too short for a seed.
        """
        self.cut(seed=0)

    def draw(self, slots: int, slot_s: float, seed: int) -> list[SlotArrival]:
        """Map the run onto a number of slots: scale all gaps by one factor, then round down to the slot's
        beginning.

        Raises:
            TraceError: the file is not a trace, or too short.
        """
        trace, place = self.cut(seed)
        return _on_slots(trace[place : place + self.jobs], slots, slot_s)

    def cut(self, seed: int) -> tuple[Sequence[TraceJob], int]:
        """Return the whole trace, and the start of a seed's run in it: after at least `jobs` others.

        Raises:
            TraceError: the file is not a trace, or too short.
        """
        trace = read_trace(self.path)
        try:
            return trace, place_in_trace(trace, self.jobs, seed, first=self.jobs)
        except ValueError as error:
            needed = f"a run of {self.jobs}, and the day before it"
            raise TraceError(f"{self.path}: {error}: {needed}") from None


@dataclass(frozen=True)
class JobsBefore:
    """Arrivals of the jobs directly before a run of the same trace: the history at its beginning."""

    run: TraceArrivals
    run_seed: int
    jobs: int
    """At most as many as the run has."""

    def draw(self, slots: int, slot_s: float, seed: int) -> list[SlotArrival]:  # noqa: ARG002
        """Map them onto slots like a run; `seed` is not used.

        Raises:
            TraceError: the file is not a trace, or too short.
        """
        trace, place = self.run.cut(self.run_seed)
        return _on_slots(trace[place - self.jobs : place], slots, slot_s)


def poisson(per_slot: float, slots: int, seed: int) -> list[SlotArrival]:
    """Draw arrivals with a mean per slot, independent from slot to slot, each of a user of its own.

    They are one seeded stream of exponential gaps, scaled: another rate yields the same tasks at other times.
    """
    gaps = random.Random(f"{seed}/arrivals")
    arrivals: list[SlotArrival] = []
    time = gaps.expovariate(1.0) / per_slot
    while time < slots:
        arrivals.append(SlotArrival(int(time), f"user-{len(arrivals):05d}"))
        time += gaps.expovariate(1.0) / per_slot
    return arrivals


def _on_slots(run: Sequence[TraceJob], slots: int, slot_s: float) -> list[SlotArrival]:
    # Without the bound, the last job would be at the end of the last slot.
    return [
        SlotArrival(min(int(job.offset_s / slot_s), slots - 1), job.user)
        for job in stretched(run, slots * slot_s)
    ]
