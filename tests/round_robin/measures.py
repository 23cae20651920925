"""What a simulation tells of a round-robin zone."""

from collections.abc import Iterator, Mapping
from typing import Any

from infra.simulation.measures import Table
from infra.simulation.simulator import Step
from schemas.cells import CellConfigured
from schemas.jobs import JobSubmitted
from tests.support.counting_commands import CountOrdered


class RoundRobinMeasures:
    """See `ZoneMeasures`: how long jobs wait for their first turn."""

    def __init__(self, cell: CellConfigured, zone: str) -> None:
        self._zone = zone
        self._submitted_s: dict[str, float] = {}
        self._waited_s: dict[str, float] = {}

    def take(self, step: Step) -> None:
        event = step.entry.envelope.event
        if isinstance(event, JobSubmitted) and event.zone == self._zone:
            self._submitted_s.setdefault(event.job_id, step.time_s)
        for decision in step.decisions:
            match decision.outcome:
                case CountOrdered(zone=self._zone, job_id=job_id):
                    self._waited_s.setdefault(job_id, step.time_s - self._submitted_s[job_id])

    def rows(self) -> Iterator[tuple[str, str]]:
        yield "longest wait for a turn", f"{max(self._waited_s.values(), default=0.0):.0f} s"

    def as_json(self) -> dict[str, Any]:
        return {"longest_wait_s": max(self._waited_s.values(), default=0.0)}

    def tables(self) -> Mapping[str, Table]:
        return {"waits": [{"job_id": id, "waited_s": waited_s} for id, waited_s in self._waited_s.items()]}
