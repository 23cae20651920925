"""The library of a zone: adapters of finished jobs that later jobs may start from, by their owners' leave."""

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.merging.settings import LIBRARY_KEPT
from streams.cell.states import Stateful
from streams.policies.merging.tuning_job import TuningJob


@dataclass
class LibraryAdapter:
    """The adapter of a finished job whose workload is `reusable`."""

    job_id: str
    digest: str
    model: str
    """Base model that it adapts."""
    kind: str
    """Digest of the job's data and hyperparameters."""


@dataclass(init=False, eq=False)
class Library(Stateful):
    """The last adapters of a zone that may be reused, one of each kind of jobs."""

    adapters: list[LibraryAdapter]
    """Adapters, the last ones at the end."""

    def __init__(self) -> None:
        self.adapters = []

    def keep(self, job: TuningJob) -> None:
        """Keep the adapter of a finished job, if its owner has given leave and it has learned from no other
        job, whose owner may not have: from none, or from an adapter of the library."""
        finished, merge = job.finished, job.merge
        if finished is None or finished.adapter_digest is None or not job.workload.reusable:
            return
        if merge is not None and not merge.is_donor and not merge.adapter_digest:
            return
        self.adapters = [each for each in self.adapters if each.kind != job.kind]
        self.adapters.append(
            LibraryAdapter(job.job_id, finished.adapter_digest, job.workload.model, job.kind)
        )
        del self.adapters[:-LIBRARY_KEPT]

    def drop(self, digest: str) -> None:
        """Drop an adapter from which a job could not start."""
        self.adapters = [each for each in self.adapters if each.digest != digest]

    def offered(self, job: TuningJob) -> Iterable[LibraryAdapter]:
        """Return the adapters from which a job may start: none if it does not share, has begun, or was in a
        merge."""
        has_begun = job.iterations > 0 or job.merge is not None or bool(job.leaving)
        if has_begun or job.never_merges or not job.workload.sharing or job.workload.pipeline:
            return ()
        return [
            each for each in self.adapters if each.model == job.workload.model and each.job_id != job.job_id
        ]
