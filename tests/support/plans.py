"""Holders of node-slots, from decisions alone."""

from collections.abc import Iterable

from schemas.auction.evidence import JobReplanned
from schemas.codec import Decision
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobWithdrawn, NodeMoved
from streams.policies.auction.zone import AuctionZone

JobCells = dict[str, dict[int, str | None]]
"""Node by slot, by job; past slots too. None in place of a node that has left the zone."""


class HeldCells:
    """Folds the decisions of a zone, given in their order; no event and no configuration."""

    def __init__(self) -> None:
        self.by_job: JobCells = {}

    def fold(self, decisions: Iterable[Decision]) -> None:
        """Fold the next decisions."""
        for decision in decisions:
            match outcome := decision.outcome:
                case JobAdmitted():
                    assert outcome.evidence.offer.plan is not None
                    self.by_job[outcome.job_id] = dict(outcome.evidence.offer.plan.node_slots)
                case JobReplanned():
                    cells = self.by_job[outcome.job_id]
                    kept = {slot: node for slot, node in cells.items() if slot < outcome.first_slot}
                    self.by_job[outcome.job_id] = kept | dict(outcome.plan.node_slots)
                case NodeMoved():
                    for cells in self.by_job.values():
                        cells.update({slot: None for slot, node in cells.items() if node == outcome.node})
                case JobCompleted() | JobRefunded() | JobWithdrawn():
                    # A bid that waits for a solver may be withdrawn before it holds anything.
                    self.by_job.pop(outcome.job_id, None)


def held_cells(zone: AuctionZone) -> JobCells:
    """State of the zone as `millrace state` shows it."""
    return {
        job_id: {part["slot"]: part["node"] for part in job["plan"]}
        for job_id, job in zone.describe()["jobs"].items()
        if "plan" in job
    }
