"""Timeline of an elastic job."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from infra.figures.jobs import JobTimeline
from schemas.elastic.outcomes import JobResized
from schemas.elastic.workload import ElasticWorkload


@dataclass(eq=False)
class ElasticTimeline(JobTimeline):
    """A job and its workers."""

    size: JobResized | None = None
    """Latest size; None before its first workers, and when it is over."""
    preemptions: int = 0
    """Number of times that it lost its base demand to a reclaim."""
    resizes: int = 0
    """Number of changes of its workers while it ran."""
    was_on_loaned: bool = False
    ordered_per_s: float = 0.0
    """Expected speed of the workers that were ordered last, all together (samples/s)."""
    expected_per_s: float = 0.0
    """Expected speed of those that run."""
    begun: tuple[float, int] | None = None
    """Time and samples done at which its present workers began; None before."""
    predicted_s: float = 0.0
    """Expected time of the work that sets of workers have done."""
    ran_s: float = 0.0
    """Time that this work took."""

    @property
    def running_time_error_pct(self) -> float | None:
        """Error of the expected running time, of each set of workers by what was expected when they began or,
        if nothing was known, when they were measured; None without any."""
        return 100 * abs(self.predicted_s / self.ran_s - 1) if self.ran_s > 0 else None

    def leads(self, node: str) -> bool:
        """Return whether a node leads its present workers."""
        return self.size is not None and bool(self.size.servers) and self.size.servers[0].node == node

    def begin(self, time_s: float, samples_done: int) -> None:
        """Note that its present workers run."""
        self.reach(time_s, samples_done)
        self.begun, self.expected_per_s = (time_s, samples_done), self.ordered_per_s

    def reach(self, time_s: float, samples_done: int) -> None:
        """Note the progress of its present workers until their end."""
        if self.begun is not None and self.expected_per_s > 0:
            self.predicted_s += max(samples_done - self.begun[1], 0) / self.expected_per_s
            self.ran_s += time_s - self.begun[0]
        self.begun = None

    @property
    def workload(self) -> ElasticWorkload | None:
        """Its work; None if it was rejected for another kind of work."""
        workload = None if self.submission is None else self.submission.workload
        return workload if isinstance(workload, ElasticWorkload) else None

    def counts(self) -> Counter[str]:
        """Return the numbers of preemptions and resizes."""
        return Counter(preemptions=self.preemptions, resizes=self.resizes)

    def resize(self, time_s: float, size: JobResized) -> None:
        """Count a change of the job's workers."""
        if size.workers_before > 0 and size.workers > 0:
            self.resizes += 1
        if size.workers > 0:
            self.started_s = time_s if self.started_s is None else self.started_s
            self.run(time_s)
        elif size.reason != "stopped":
            self.begun = None
            self.wait(time_s)
        self.preemptions += size.reason == "preempted"

    def as_row(self, workload: ElasticWorkload) -> dict[str, Any]:
        """Return plain values, for a file."""
        return {
            "job_id": self.job_id,
            "user": self.user,
            "submitted_s": self.submitted_s,
            "started_s": self.started_s,
            "ended_s": self.ended_s,
            "state": self.state,
            "queuing_s": self.queuing_s,
            "jct_s": self.jct_s,
            "gpus_per_worker": workload.gpus_per_worker,
            "min_workers": workload.min_workers,
            "max_workers": workload.max_workers,
            "fungible": workload.fungible,
            "heterogeneous": workload.heterogeneous,
            "preemptions": self.preemptions,
            "resizes": self.resizes,
            "was_on_loaned": self.was_on_loaned,
            "running_time_error_pct": self.running_time_error_pct,
        }
