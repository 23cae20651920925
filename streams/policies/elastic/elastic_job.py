"""A job of an elastic zone: its workers, its progress and its place in the queue."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Self, cast

from schemas.elastic.outcomes import ServerPool
from schemas.elastic.workload import ElasticWorkload
from streams.policies.elastic.expectation import Expectation
from streams.policies.elastic.profiles import KnownSteps
from streams.policies.gang.generation import Gang

_BYTES_PER_JOB = 500
"""Packed numbers of a job and its user's last turn, besides its nodes and its end."""
LEAST_PACE = 1 / 16
"""Least part of its speed by its profile, or as declared, that a job is expected to have."""
MOST_PACE = 2.0
"""Most of its speed by its profile, or as declared, that a job is expected to have."""
MOST_ERROR = 16.0
"""Largest expected relative error."""
_REFUTED = 2.0
"""If a promised speed exceeds the measured speed by this factor, the measurement refutes it."""
_REFUTING_REPORTS = 2
"""Reports in a row that refute the speed by which a job started."""
_BYTES_PER_NODE = 16
"""Packed number of a node, besides its id."""


@dataclass
class ElasticJob(Gang):
    """A job whose processes are workers, see `Gang`."""

    workers: int = 0
    """Number of its workers, counted as on training servers."""
    pool: ServerPool | None = None
    flexible_pool: ServerPool | None = None
    since_s: float | None = None
    """Time of its leader's last report of progress; None until the start of this generation is reported.
    Until then the job makes no progress."""
    due_s: float | None = None
    """Time by which it should be over with its base demand, as declared; None while it waits."""
    waits_since_s: float = 0.0
    """Time at which it was last queued; meaningless while it has workers."""
    pace: float = 1.0
    """Measured speed over that by its profile, or as declared, with all workers in one pool; 1 before it is
    measured."""
    spanning_speed: float | None = None
    """Measured fraction of its speed that remains when it spans both pools; None before it is measured."""
    relative_error: float | None = None
    """Expected error of its running time, see `duration_error_pct`; None where nothing is measured."""
    measured_generation: int = 0
    """Last generation with a measurement; 0 before the first."""
    promised_per_s: float | None = None
    """Expected speed of one worker by which it started first; None where nothing was known, or later."""
    refutations: int = 0
    """Number of reports in a row by which its speed is half of the promised one or less."""
    _: KW_ONLY
    known: KnownSteps | None
    """Measured steps of its kind at its submission or, later, when its generation was first measured."""
    assumed_running_s: float
    """Running time that is expected where nothing is known or declared."""

    def __post_init__(self) -> None:
        self.workload = cast(ElasticWorkload, self.job.workload)
        """Workload of the job."""
        self._expect()
        if not self.generation:
            self.relative_error = self.expected.relative_error

    def _expect(self) -> None:
        self.expected = Expectation.of(self.workload, self.known, self.assumed_running_s)
        """Expected speeds before its runs correct them."""
        self.speedup = self.expected.speedup
        """Speed by number of workers over that of one, from 0 workers on."""

    @property
    def is_formed(self) -> bool:
        """Whether all of its workers run."""
        return self.since_s is not None

    @property
    def keeps_progress(self) -> bool:
        return self.workload.keeps_checkpoints

    @property
    def is_elastic(self) -> bool:
        """Whether it has flexible demand."""
        return self.workload.max_workers > self.workload.min_workers

    @property
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot."""
        # A member is among the servers of the cluster too, with base workers and with flexible ones.
        nodes = (*self.members, *self.members, *self.members, *self.done, *self.leaving, self.leader)
        return _BYTES_PER_JOB + self.ending_bytes + sum(_BYTES_PER_NODE + len(node) for node in nodes)

    def describe(self, elapsed_s: float) -> dict[str, Any]:
        return {
            **super().describe(elapsed_s),
            "workers": self.workers,
            "pool": self.pool,
            "flexible_pool": self.flexible_pool,
            "is_formed": self.is_formed,
            "due_s": self.due_s,
            "waits_since_s": None if self.members else self.waits_since_s,
            "pace": self.pace,
            "spanning_speed": self.spanning_speed,
            "samples_per_s": self.samples_per_s,
            "speed_from": self.expected.speed_from,
            "duration_error_pct": self.duration_error_pct,
        }

    @property
    def samples_per_s(self) -> float:
        """Expected speed of one worker on the reference GPU, corrected by what is measured."""
        return self.expected.samples_per_s * self.pace

    @property
    def duration_error_pct(self) -> float | None:
        """Expected error of its running time (%); None where nothing is measured."""
        return None if self.relative_error is None else 100 * self.relative_error

    @property
    def gives_way(self) -> bool:
        """Whether jobs may start in its place, as it started by a speed that it does not reach. One report
        may err, and a job without checkpoints would lose all of its work."""
        return self.refutations >= _REFUTING_REPORTS and bool(self.members) and self.keeps_progress

    @property
    def is_known_by_runs(self) -> bool:
        """Whether its expected speed is measured, in runs of its kind or its own."""
        return self.expected.speed_from == "measured" or self.measured_generation > 0

    @property
    def is_assumed(self) -> bool:
        """Whether its speed is neither known nor declared: its present workers, if any, are to measure it."""
        return self.expected.speed_from == "assumed"

    @property
    def spans_pools(self) -> bool:
        """Whether its workers are in both pools."""
        return self.flexible_pool is not None and self.flexible_pool != self.pool

    def learn(self, known: KnownSteps) -> None:
        """Expect other speeds, by measured steps of its kind that include those of its present workers."""
        self.known, self.pace = known, 1.0
        self._expect()
        if not self.members:
            self.relative_error = self.expected.relative_error

    def note_deviation(self, ratio: float) -> None:
        """Update the expected error by the ratio of a measured speed to the expected one."""
        deviation = min(abs(ratio - 1), MOST_ERROR)
        before = deviation if self.relative_error is None else self.relative_error
        self.relative_error = (before + deviation) / 2

    def check_promise(self, samples_per_s: float) -> None:
        """Count a measured speed of one worker that refutes the speed assumed at the start of the job."""
        if self.promised_per_s is not None:
            is_refuted = self.promised_per_s >= _REFUTED * samples_per_s
            self.refutations = self.refutations + 1 if is_refuted else 0

    def measure(self, samples_per_s: float, assumed_spanning: float) -> None:
        """Correct the expected speed by the measured speed of its present workers.

        A report moves it by half of the difference, and never beyond bounds, so that an erring node distorts
        the expectations of its own job, and only in part.

        Args:
            assumed_spanning: fraction of its speed in both pools, where none is measured.
        """
        measured = samples_per_s / (self.expected.samples_per_s * self.speedup[self.workers])
        if self.spans_pools:
            before = assumed_spanning if self.spanning_speed is None else self.spanning_speed
            self.spanning_speed = _between(measured / self.pace, before, 1.0)
        else:
            self.pace = _between(measured, self.pace, MOST_PACE)

    def work_left_s(self, time_s: float | None, speed: float) -> float:
        """Return the remaining work by now, in seconds of one worker on a training server.

        Args:
            speed: work of its workers per second since `since_s`, in the same unit.
        """
        samples_per_s = self.samples_per_s
        work_s = (self.workload.work_samples - self.job.samples_done) / samples_per_s
        if self.since_s is not None and time_s is not None:
            work_s -= (time_s - self.since_s) * speed
        # Even if its end is late, one sample is left.
        return max(work_s, 1 / samples_per_s)


def _between(measured: float, before: float, most: float) -> float:
    """Return the middle of a measured ratio and the one before, both within bounds."""
    return (min(max(measured, LEAST_PACE), most) + before) / 2


class QueueEntry(NamedTuple):
    """A job without workers: its base demand and the time of its remaining work, which change only with the
    samples done."""

    job: ElasticJob
    gpus: int
    """GPUs of its base demand."""
    shortest_s: float
    """Time of the remaining work with its most workers (s)."""
    base_s: float
    """Time of the remaining work with its base demand (s)."""

    @classmethod
    def of(cls, job: ElasticJob) -> Self:
        """Compute the entry of a job without workers."""
        workload, speedup = job.workload, job.speedup
        # Without a run, neither the time nor the speed matters.
        work_s = job.work_left_s(None, 0.0)
        return cls(
            job,
            workload.min_workers * workload.gpus_per_worker,
            work_s / speedup[workload.max_workers],
            work_s / speedup[workload.min_workers],
        )
