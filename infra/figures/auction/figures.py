"""Figures of an auction or one of its baselines, by its certificates and prices."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from infra.figures.auction.basis import describe_basis
from infra.figures.jobs import Jobs, JobTimeline
from infra.figures.nodes import Node, Nodes
from infra.figures.zone import ZoneFigures
from infra.text import units
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

_CAUSES = {
    "finished_early": "work done early",
    "replanned": "plans made again",
    "refunded": "refunds in full",
    "failed": "jobs at fault",
    "withdrawn": "withdrawals",
    "undelivered": "vendors that delivered nothing",
}
"""Texts for the causes of a difference between planned and realised welfare."""


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


class AuctionFigures(ZoneFigures[BidTimeline]):
    """Welfare of one zone by its latest certificate, prices, and the slots of runs."""

    JOB = BidTimeline

    def __init__(self, cell: CellConfigured, zone: str, jobs: Jobs, nodes: Nodes) -> None:
        super().__init__(cell, zone, jobs, nodes)
        self._certificate: Certificate | None = None
        self._own_prices = ""
        """Text about the basis of the prices, if the zone forecasts them itself."""
        self._prices: dict[tuple[str, str], ClassPrices] = {}
        """Latest prices of future slots, by GPU type and tariff."""
        self.replanned = 0
        """Number of times that the rest of a job was planned again."""
        self.ordered = 0
        """Number of orders of pre-processing."""
        self.delivered = 0
        """Number of deliveries that were accepted and kept."""
        self.late_deliveries = 0
        """Number of accepted deliveries that were late."""
        self.vendors_paid_micros = 0
        """Payments of vendors, less what they returned."""
        self._slot_of_node: dict[str, int] = {}

    @property
    def planned_welfare_micros(self) -> int:
        """Welfare of the plans as admitted, with which the bound is compared."""
        return 0 if self._certificate is None else self._certificate.planned_welfare_micros

    @property
    def dual_bound_micros(self) -> int:
        """Upper bound on the welfare of any schedule of the same bids."""
        return 0 if self._certificate is None else self._certificate.dual_bound_micros

    @property
    def proven_ratio(self) -> float | None:
        """Dual bound over planned welfare; None while that is not positive."""
        planned = self.planned_welfare_micros
        return self.dual_bound_micros / planned if planned > 0 else None

    @property
    def realised_welfare_micros(self) -> int:
        """Welfare of finished work; unfinished work counts as planned."""
        return 0 if self._certificate is None else self._certificate.realised_welfare_micros

    @property
    def welfare_difference_micros(self) -> dict[str, int]:
        """Realised less planned welfare, by the causes of `WelfareDifference`."""
        difference = None if self._certificate is None else self._certificate.difference
        return {
            cause.removesuffix("_micros"): 0 if difference is None else getattr(difference, cause)
            for cause in WelfareDifference.model_fields
        }

    def fold_outcome(self, time_s: float, outcome: Outcome) -> None:  # noqa: ARG002
        """Fold a decision of the cell."""
        self._certificate = certified(outcome).get(self._zone, self._certificate)
        match outcome:
            case ZonePriced(zone=self._zone):
                self._own_prices = ""
                if outcome.basis is not None:
                    self._own_prices = describe_basis(outcome.basis, outcome.expected_by_hour)
                for prices in outcome.classes:
                    self._prices[prices.gpu_type, prices.tariff] = prices
            case SlotAssigned(zone=self._zone):
                self._slot_of_node[outcome.node] = outcome.slot
                for order in outcome.runs:
                    if (job := self._job(order.job_id)) is not None:
                        job.slot_of_run[order.run_id] = outcome.slot
            case JobReplanned(zone=self._zone):
                self.replanned += 1
                if (job := self._job(outcome.job_id)) is not None:
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

    def headline(self) -> str:
        """Return welfare, the proven ratio of the plans, and the basis of prices."""
        if self._certificate is None:
            return ""
        own_prices = f"; priced by {self._own_prices}" if self._own_prices else ""
        return (
            f"welfare planned {units(self.planned_welfare_micros)}, realised "
            f"{units(self.realised_welfare_micros)}, proven ratio of the plans {self._ratio}{own_prices}"
        )

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield welfare, the proven ratio, and the causes of differences."""
        if self._certificate is None:
            return
        yield "planned again", str(self.replanned)
        if self.ordered:
            late = f", {self.late_deliveries} late" if self.late_deliveries else ""
            yield "orders of pre-processing", f"{self.ordered}, {self.delivered} delivered{late}"
            yield "paid to vendors", units(self.vendors_paid_micros)
        yield "welfare of the plans as admitted", units(self.planned_welfare_micros)
        yield "proven ratio (dual bound / welfare of the plans)", self._ratio
        yield "welfare realised", units(self.realised_welfare_micros)
        for cause, micros in self.welfare_difference_micros.items():
            if micros:
                yield f"  of the difference: {_CAUSES[cause]}", units(micros)

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        if self._certificate is None:
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

    def job_cells(self, job: JobTimeline) -> dict[str, str]:
        """Return the lowest winning bid, the number of new plans, and the slot in which the work was done."""
        cells: dict[str, str] = {}
        if not isinstance(job, BidTimeline):
            return cells
        if job.lowest_winning_bid_micros is not None:
            cells["would have won"] = units(job.lowest_winning_bid_micros)
        if job.replanned:
            cells["planned again"] = str(job.replanned)
        if job.finish_run in job.slot_of_run:
            cells["finish slot"] = str(job.slot_of_run[job.finish_run])
        return cells

    def node_cells(self, node: Node) -> dict[str, str]:
        """Return price and use of future node-slots of the node's class, and its latest slot."""
        cells = {}
        prices = self._prices.get((node.gpu_type, node.tariff))
        if prices is not None:
            cells["compute price"] = units(prices.mean_compute_price_micros)
            cells["used ahead"] = f"{prices.compute_used_share:.0%}"
        if node.node in self._slot_of_node:
            cells["slot"] = str(self._slot_of_node[node.node])
        return cells

    @property
    def _ratio(self) -> str:
        return "–" if self.proven_ratio is None else f"{self.proven_ratio:.2f}"
