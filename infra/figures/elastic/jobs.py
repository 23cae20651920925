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
        }
