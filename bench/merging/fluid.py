"""A fast simulator of schemes on one cluster, without a cell: jobs train at a constant speed between events.

It tells schemes apart on measured step times in seconds of computation, where a simulated cell takes minutes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from solvers.merging.fairness import Finished
from solvers.merging.scheme import Contender, Scheme

Placement = tuple[int, ...]
"""GPUs per node, ascending, on the nodes that have any."""


@dataclass(frozen=True)
class FluidJob:
    """A job and the truth about it."""

    job_id: str
    submitted_s: float
    asked_gpus: int
    iterations: float
    step_s: Mapping[Placement, float]
    """Seconds of an iteration on each placement that it may have."""


class Cluster(NamedTuple):
    """Equal nodes."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """Of all nodes."""
        return self.nodes * self.gpus_per_node

    def compact(self, gpus: int) -> Placement:
        """So many GPUs on as few empty nodes as possible."""
        whole, rest = divmod(gpus, self.gpus_per_node)
        return ((rest,) if rest else ()) + (self.gpus_per_node,) * whole


@dataclass(frozen=True)
class Timing:
    """When a scheme decides, and what a change costs."""

    interval_s: float
    """Between two decisions; the first is at the time 0."""
    eager: bool = False
    """Whether it also decides whenever a job arrives or ends."""
    switch_s: float = 0.0
    """In which a job makes no progress, with each start and each change of its size."""


@dataclass(frozen=True)
class Outcome:
    """All jobs, in the order of their ends."""

    finished: tuple[Finished, ...]
    switches: int
    """Starts and changes of size, of all jobs."""
    decisions: int

    @property
    def completion_s(self) -> list[float]:
        """From submission to end, ascending."""
        return sorted(job.finished_s - job.submitted_s for job in self.finished)

    @property
    def average_s(self) -> float:
        """Of the completion times."""
        return math.fsum(self.completion_s) / len(self.finished)

    @property
    def tail_s(self) -> float:
        """Completion time that 99 of a hundred jobs do not exceed."""
        return self.completion_s[math.ceil(0.99 * len(self.finished)) - 1]

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        return max(job.finished_s for job in self.finished) - min(job.submitted_s for job in self.finished)


def simulate(jobs: Iterable[FluidJob], scheme: Scheme, cluster: Cluster, timing: Timing) -> Outcome:
    """What a scheme makes of jobs whose remaining times it is told as they are.

    A job that keeps its size keeps its GPUs. The others are placed anew, the largest first, each on as few
    nodes as possible: on the fullest node with room, else on whole nodes, the emptiest first.

    Raises:
        ValueError: a scheme gives more GPUs than there are or a size that a job may not have, or it leaves
            jobs waiting where all is idle; or a job has no step time where it is placed.
    """
    return _Simulation(jobs, scheme, cluster, timing).run()


@dataclass
class _Present:
    """A job that has been submitted and is not over."""

    job: FluidJob
    arrival: int
    sizes: Mapping[int, float]
    """Seconds of an iteration by size, on the best placement; those that are no faster are left out."""
    left: float
    """Iterations at `since_s`."""
    since_s: float
    """When its GPUs last changed."""
    taken: dict[int, int] = field(default_factory=dict)
    """GPUs by node."""
    step_s: float = math.inf
    productive_from_s: float = math.inf
    waited_s: float = 0.0
    running_s: float = 0.0
    attained_gpu_s: float = 0.0
    switches: int = 0

    @property
    def gpus(self) -> int:
        return sum(self.taken.values())

    @property
    def ends_s(self) -> float:
        return self.productive_from_s + self.left * self.step_s if self.taken else math.inf

    def left_at(self, time_s: float) -> float:
        """Iterations."""
        if not self.taken:
            return self.left
        return self.left - max(time_s - self.productive_from_s, 0.0) / self.step_s

    def settle(self, time_s: float) -> None:
        """Put down what it has done, before its GPUs change."""
        self.left = self.left_at(time_s)
        if self.taken:
            self.running_s += time_s - self.since_s
            self.attained_gpu_s += (time_s - self.since_s) * self.gpus
        else:
            self.waited_s += time_s - self.since_s
        self.since_s = time_s

    def contender(self, time_s: float) -> Contender:
        span_s = time_s - self.since_s
        left = self.left_at(time_s)
        return Contender(
            job_id=self.job.job_id,
            arrival=self.arrival,
            submitted_s=self.job.submitted_s,
            waited_s=self.waited_s + (0.0 if self.taken else span_s),
            running_s=self.running_s + (span_s if self.taken else 0.0),
            attained_gpu_s=self.attained_gpu_s + span_s * self.gpus,
            asked_gpus=self.job.asked_gpus,
            remaining_s={size: left * step_s for size, step_s in self.sizes.items()},
            total_s={size: self.job.iterations * step_s for size, step_s in self.sizes.items()},
            gpus=self.gpus,
            held_s=span_s if self.taken else 0.0,
            restarts=max(self.switches - 1, 0),
        )


class _Simulation:
    def __init__(self, jobs: Iterable[FluidJob], scheme: Scheme, cluster: Cluster, timing: Timing) -> None:
        self._coming = sorted(jobs, key=lambda job: job.submitted_s, reverse=True)
        self._scheme = scheme
        self._cluster = cluster
        self._timing = timing
        self._free = [cluster.gpus_per_node] * cluster.nodes
        self._present: dict[str, _Present] = {}
        self._finished: list[Finished] = []
        self._arrived = 0
        self._switches = 0
        self._decisions = 0

    def run(self) -> Outcome:
        time_s = 0.0
        round_s = 0.0
        while self._coming or self._present:
            if not self._present:
                # Nothing is decided where there is nobody.
                rounds = math.ceil(self._coming[-1].submitted_s / self._timing.interval_s)
                round_s = max(round_s, rounds * self._timing.interval_s)
            arrives_s = self._coming[-1].submitted_s if self._coming else math.inf
            ends_s = min((present.ends_s for present in self._present.values()), default=math.inf)
            time_s = min(round_s, arrives_s, ends_s)
            self._end(time_s)
            while self._coming and self._coming[-1].submitted_s <= time_s:
                self._arrive(self._coming.pop())
            if time_s == round_s:
                round_s += self._timing.interval_s
            elif not self._timing.eager:
                continue
            self._decide(time_s)
        return Outcome(tuple(self._finished), self._switches, self._decisions)

    def _arrive(self, job: FluidJob) -> None:
        sizes: dict[int, float] = {}
        for size in sorted({sum(placement) for placement in job.step_s}):
            step_s = job.step_s.get(self._cluster.compact(size))
            if (
                step_s is not None
                and size <= self._cluster.gpus
                and step_s < min(sizes.values(), default=math.inf)
            ):
                sizes[size] = step_s
        self._present[job.job_id] = _Present(job, self._arrived, sizes, job.iterations, job.submitted_s)
        self._arrived += 1

    def _end(self, time_s: float) -> None:
        over = [present for present in self._present.values() if present.ends_s <= time_s]
        for present in sorted(over, key=lambda present: (present.ends_s, present.arrival)):
            job = present.job
            self._release(present)
            del self._present[job.job_id]
            total_s = {size: job.iterations * step_s for size, step_s in present.sizes.items()}
            self._finished.append(Finished(job.job_id, job.submitted_s, time_s, job.asked_gpus, total_s))

    def _decide(self, time_s: float) -> None:
        if not self._present:
            return
        self._decisions += 1
        contenders = [present.contender(time_s) for present in self._present.values()]
        granted = self._scheme.allocate(contenders, self._cluster.gpus, time_s)
        self._check(granted)
        changed = [
            present for job_id, present in self._present.items() if present.gpus != granted.get(job_id, 0)
        ]
        for present in changed:
            present.settle(time_s)
            self._release(present)
        for present in sorted(
            changed, key=lambda present: (-granted.get(present.job.job_id, 0), present.arrival)
        ):
            self._place(present, granted.get(present.job.job_id, 0), time_s)

    def _check(self, granted: Mapping[str, int]) -> None:
        if sum(granted.values()) > self._cluster.gpus:
            raise ValueError(f"{sum(granted.values())} GPUs are given, of {self._cluster.gpus}")
        for job_id, gpus in granted.items():
            if gpus and gpus not in self._present[job_id].sizes:
                sizes = list(self._present[job_id].sizes)
                raise ValueError(f"{gpus} GPUs are given to {job_id!r}, which may have one of {sizes}")
        if not any(granted.values()) and not self._coming:
            raise ValueError(f"{len(self._present)} jobs are left waiting, and all is idle")

    def _release(self, present: _Present) -> None:
        for node, gpus in present.taken.items():
            self._free[node] += gpus
        present.taken = {}

    def _place(self, present: _Present, gpus: int, time_s: float) -> None:
        if gpus == 0:
            return
        present.taken = self._nodes_for(gpus)
        for node, taken in present.taken.items():
            self._free[node] -= taken
        placement = tuple(sorted(present.taken.values()))
        if placement not in present.job.step_s:
            raise ValueError(f"{present.job.job_id!r} has no step time on nodes with {placement} GPUs")
        present.step_s = present.job.step_s[placement]
        present.productive_from_s = time_s + self._timing.switch_s
        present.switches += 1
        self._switches += 1

    def _nodes_for(self, gpus: int) -> dict[int, int]:
        """GPUs by node."""
        fitting = [node for node, free in enumerate(self._free) if free >= gpus]
        if fitting:
            return {min(fitting, key=lambda node: (self._free[node], node)): gpus}
        taken: dict[int, int] = {}
        for node in sorted(range(len(self._free)), key=lambda node: (-self._free[node], node)):
            taken[node] = min(self._free[node], gpus - sum(taken.values()))
            if sum(taken.values()) == gpus:
                break
        return taken
