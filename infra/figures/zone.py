"""Interface of a policy's figures of one zone."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

from infra.figures.jobs import Jobs, JobTimeline
from infra.figures.nodes import Nodes
from infra.tools import tools_of
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured

Table = Sequence[Mapping[str, Any]]
"""Rows with the same columns."""


J = TypeVar("J", bound=JobTimeline)


class ZoneFigures(Generic[J]):
    """Figures of one zone, folded from its cell's events and decisions; they can be read at any time.

    The caller gives the times (Unix s): a simulation those of its steps, a follower of a log those of the
    cell's clock, which stands still between two ticks. A decision is folded after its event. Jobs and nodes
    are folded first, so figures may set fields of jobs. Each method is optional. Words for people are made by
    the policy's view.
    """

    JOB: type[J]
    """Type of the zone's jobs."""

    def __init__(self, cell: CellConfigured, zone: str, jobs: Jobs, nodes: Nodes) -> None:
        """Begin.

        Args:
            cell: Configuration of the cell, when the zone is added.
            zone: Id of the zone.
            jobs: Jobs of the cell.
            nodes: Nodes of the cell.
        """
        self.policy: str = next(each.policy.kind for each in cell.zones if each.id == zone)
        """Kind of the zone's policy, as it is at first."""
        self._zone = zone
        self._jobs = jobs
        self._nodes = nodes

    def fold_event(self, time_s: float, event: Event) -> None:
        """Fold an event of the cell."""

    def fold_outcome(self, time_s: float, outcome: Outcome) -> None:
        """Fold a decision of the cell."""

    def as_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return {}

    def tables(self) -> Mapping[str, Table]:
        """Return tables for files, by the file's name without its ending."""
        return {}

    @property
    def submitted(self) -> int:
        """Number of submitted jobs, without those that are repeated or under the id of another job."""
        return self._jobs.begun[self._zone]

    @property
    def completed(self) -> int:
        """Number of completed jobs."""
        return self._jobs.ended(self._zone)["completed"]

    def totals(self) -> Counter[str]:
        """Return the sums of the counts of all jobs of the zone (`JobTimeline.counts`)."""
        totals = Counter(self._jobs.left.get(self._zone))
        for job in self.kept():
            totals.update(job.counts())
        return totals

    def kept(self) -> Iterator[J]:
        """Yield the jobs of the zone that are not over or are kept, in the order of submission."""
        for job in self._jobs.by_id.values():
            if isinstance(job, self.JOB) and job.zone == self._zone:
                yield job

    def admitted(self) -> Iterator[J]:
        """Yield the jobs of the zone that are admitted and not over."""
        return (job for job in self.kept() if job.state == "admitted")

    def _job(self, job_id: str) -> J | None:
        job = self._jobs.by_id.get(job_id)
        return job if isinstance(job, self.JOB) and job.zone == self._zone else None


def figures_of(cell: CellConfigured, zone: str, jobs: Jobs, nodes: Nodes) -> ZoneFigures[Any] | None:
    """Return the figures of a zone of this cell; None if its policy has none."""
    kind = next(each.policy.kind for each in cell.zones if each.id == zone)
    reference = tools_of(kind).figures
    if reference is None:
        return None
    figures: ZoneFigures[Any] = resolve_name(reference)(cell, zone, jobs, nodes)
    jobs.types[zone] = figures.JOB
    return figures
