"""Figures of an auction or one of its baselines, by its certificates and prices."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from infra.figures.jobs import Jobs, JobTimeline
from infra.figures.nodes import Nodes
from infra.figures.zone import ZoneFigures
from schemas.auction.deliveries import PreprocessingAccepted, PreprocessingClosed, PreprocessingOrdered
from schemas.auction.evidence import (
    Certificate,
    ClassPrices,
    JobReplanned,
    WelfareDifference,
    ZonePriced,
    evidence_of,
)
from schemas.base import Outcome
from schemas.cells import CellConfigured
from schemas.decisions import JobOutcome, JobRejected
from schemas.lora_commands import SlotAssigned


def certified(decision: Outcome) -> dict[str, Certificate]:
    """Return the certificate of the decision's zone, by zone; empty if the decision has none."""
    if isinstance(decision, ZonePriced):
        return {decision.zone: decision.certificate}
    certificate = evidence_of(decision).certificate
    if certificate is None or not isinstance(decision, JobOutcome | JobReplanned):
        return {}
    return {decision.zone: certificate}


@dataclass(eq=False)
class BidTimeline(JobTimeline):
    """A bid and its plans."""

    replanned: int = 0
    """Number of times that the rest of it was planned again."""
    lowest_winning_bid_micros: int | None = None
    """Lowest winning bid at its rejection."""
    slot_of_run: dict[str, int] = field(default_factory=dict)
    """Slots by run."""

    def counts(self) -> Counter[str]:
        """Return the number of new plans."""
        return Counter(replanned=self.replanned)


class AuctionFigures(ZoneFigures[BidTimeline]):
    """Welfare of one zone by its latest certificate, prices, and the slots of runs."""

    JOB = BidTimeline

    def __init__(self, cell: CellConfigured, zone: str, jobs: Jobs, nodes: Nodes) -> None:
        super().__init__(cell, zone, jobs, nodes)
        self.certificate: Certificate | None = None
        self.priced: ZonePriced | None = None
        """Latest state of the market."""
        self.prices: dict[tuple[str, str], ClassPrices] = {}
        """Latest prices of future slots, by GPU type and tariff."""
        self.ordered = 0
        """Number of orders of pre-processing."""
        self.delivered = 0
        """Number of deliveries that were accepted and kept."""
        self.late_deliveries = 0
        """Number of accepted deliveries that were late."""
        self.vendors_paid_micros = 0
        """Payments of vendors, less what they returned."""
        self.slot_of_node: dict[str, int] = {}

    @property
    def replanned(self) -> int:
        """Number of times that the rest of a job was planned again."""
        return self.totals()["replanned"]

    @property
    def planned_welfare_micros(self) -> int:
        """Welfare of the plans as admitted, with which the bound is compared."""
        return 0 if self.certificate is None else self.certificate.planned_welfare_micros

    @property
    def dual_bound_micros(self) -> int:
        """Upper bound on the welfare of any schedule of the same bids."""
        return 0 if self.certificate is None else self.certificate.dual_bound_micros

    @property
    def proven_ratio(self) -> float | None:
        """Dual bound over planned welfare; None while that is not positive."""
        planned = self.planned_welfare_micros
        return self.dual_bound_micros / planned if planned > 0 else None

    @property
    def realised_welfare_micros(self) -> int:
        """Welfare of finished work; unfinished work counts as planned."""
        return 0 if self.certificate is None else self.certificate.realised_welfare_micros

    @property
    def welfare_difference_micros(self) -> dict[str, int]:
        """Realised less planned welfare, by the causes of `WelfareDifference`."""
        difference = None if self.certificate is None else self.certificate.difference
        return {
            cause.removesuffix("_micros"): 0 if difference is None else getattr(difference, cause)
            for cause in WelfareDifference.model_fields
        }

    def fold_outcome(self, time_s: float, outcome: Outcome) -> None:  # noqa: ARG002
        """Fold a decision of the cell."""
        self.certificate = certified(outcome).get(self._zone, self.certificate)
        match outcome:
            case ZonePriced(zone=self._zone):
                self.priced = outcome
                for prices in outcome.classes:
                    self.prices[prices.gpu_type, prices.tariff] = prices
            case SlotAssigned(zone=self._zone):
                self.slot_of_node[outcome.node] = outcome.slot
                for order in outcome.runs:
                    if (job := self._job(order.job_id)) is not None:
                        job.slot_of_run[order.run_id] = outcome.slot
            case JobReplanned(zone=self._zone) if (job := self._job(outcome.job_id)) is not None:
                job.replanned += 1
            case PreprocessingOrdered(zone=self._zone):
                self.ordered += 1
            case PreprocessingAccepted(zone=self._zone):
                self.delivered += 1
                self.late_deliveries += outcome.reason == "late"
                self.vendors_paid_micros += outcome.paid_micros
            case PreprocessingClosed(zone=self._zone, reason="data_differ"):
                self.delivered -= 1
                self.vendors_paid_micros -= outcome.returned_micros
            case JobRejected(zone=self._zone):
                lowest = evidence_of(outcome).lowest_winning_bid_micros
                if lowest is not None and (job := self._job(outcome.job_id)) is not None:
                    job.lowest_winning_bid_micros = lowest

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        if self.certificate is None:
            return {}
        orders = {
            "ordered": self.ordered,
            "delivered": self.delivered,
            "late_deliveries": self.late_deliveries,
            "vendors_paid_micros": self.vendors_paid_micros,
        }
        return {
            "replanned": self.replanned,
            **(orders if self.ordered else {}),
            "planned_welfare_micros": self.planned_welfare_micros,
            "dual_bound_micros": self.dual_bound_micros,
            "proven_ratio": self.proven_ratio,
            "realised_welfare_micros": self.realised_welfare_micros,
            "welfare_difference_micros": self.welfare_difference_micros,
        }
