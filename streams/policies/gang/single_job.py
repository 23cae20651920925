"""Gangs of one job each: the decisions where a job's processes change, and the orders to their nodes."""

from abc import abstractmethod

from schemas.base import Outcome
from streams.policies.gang.gangs import G, Gangs, R, Why


class SingleJobGangs(Gangs[G, R]):
    """Gangs of one zone, each of the processes of one job."""

    def end(self, job: G, why: Why[R], without: str | None = None) -> None:
        if job.members:
            before, working = self._width(job), job.working
            self._release_all(job)
            self._outcomes.add(self._changed(job, before, why))
            for node in working:
                if node != without:
                    self._outcomes.add(self._released(job, node, job.generation, why))
        self._end_if_over(job)

    def _width(self, job: G) -> int:
        """Return how many processes a job counts as."""
        return sum(job.members.values())

    @abstractmethod
    def _changed(self, job: G, width_before: int, why: Why[R]) -> Outcome:
        """Return the decision that a job has other processes than before, or none."""

    @abstractmethod
    def _released(self, job: G, node: str, generation: int, why: Why[R]) -> Outcome:
        """Return the order to a node to end the processes of a generation."""
