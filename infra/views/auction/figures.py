"""Figures computed from an auction's certificates and prices."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from infra.views.auction.offers import describe_basis
from infra.views.jobs import Job
from infra.views.nodes import Node
from infra.views.policy import PolicyFigures
from infra.views.text import units
from schemas.auction.evidence import (
    Certificate,
    ClassPrices,
    JobReplanned,
    WelfareDifference,
    ZonePriced,
    evidence_of,
)
from schemas.base import Outcome
from schemas.codec import Decision
from schemas.decisions import JobOutcome, JobRejected
from schemas.lora_commands import SlotAssigned

_CAUSES = {
    "finished_early": "work done early",
    "replanned": "plans made again",
    "refunded": "refunds in full",
    "failed": "jobs at fault",
    "withdrawn": "withdrawals",
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


class AuctionFigures(PolicyFigures):
    """Welfare over all zones by their latest certificates, prices, and the slots of runs."""

    NAME = "auction"

    def __init__(self) -> None:
        self._certificates: dict[str, Certificate] = {}
        self._own_prices: dict[str, str] = {}
        """Text about the basis of the prices of each zone that forecasts them itself."""
        self._prices: dict[tuple[str, str, str], ClassPrices] = {}
        """Latest prices of future slots, by zone, GPU type and tariff."""
        self._replanned: Counter[str] = Counter()
        """Number of new plans by job."""
        self._lowest_winning_bids: dict[str, int] = {}
        """Lowest winning bids of rejected jobs, by job."""
        self._slot_of_node: dict[str, int] = {}
        self._slot_of_run: dict[str, int] = {}

    @property
    def planned_welfare_micros(self) -> int:
        """Welfare of the plans as admitted, with which the bound is compared."""
        return sum(certificate.planned_welfare_micros for certificate in self._certificates.values())

    @property
    def dual_bound_micros(self) -> int:
        """Upper bound on the welfare of any schedule of the same bids."""
        return sum(certificate.dual_bound_micros for certificate in self._certificates.values())

    @property
    def proven_ratio(self) -> float | None:
        """Dual bound over planned welfare; None while that is not positive."""
        planned = self.planned_welfare_micros
        return self.dual_bound_micros / planned if planned > 0 else None

    @property
    def realised_welfare_micros(self) -> int:
        """Welfare of finished work; unfinished work counts as planned."""
        return sum(certificate.realised_welfare_micros for certificate in self._certificates.values())

    @property
    def welfare_difference_micros(self) -> dict[str, int]:
        """Realised less planned welfare, by the causes of `WelfareDifference`."""
        certificates = self._certificates.values()
        return {
            cause.removesuffix("_micros"): sum(getattr(one.difference, cause) for one in certificates)
            for cause in WelfareDifference.model_fields
        }

    @property
    def replanned(self) -> int:
        """Number of times that the rest of a job was planned again."""
        return self._replanned.total()

    def take_decision(self, decision: Decision) -> None:
        """Fold a decision; those of other policies have no effect."""
        self._certificates |= certified(decision.outcome)
        match outcome := decision.outcome:
            case ZonePriced():
                if outcome.basis is None:
                    self._own_prices.pop(outcome.zone, None)
                else:
                    self._own_prices[outcome.zone] = describe_basis(outcome.basis, outcome.expected_by_hour)
                for prices in outcome.classes:
                    self._prices[outcome.zone, prices.gpu_type, prices.tariff] = prices
            case SlotAssigned():
                self._slot_of_node[outcome.node] = outcome.slot
                self._slot_of_run |= {order.run_id: outcome.slot for order in outcome.runs}
            case JobReplanned():
                self._replanned[outcome.job_id] += 1
            case JobRejected():
                lowest = evidence_of(outcome).lowest_winning_bid_micros
                if lowest is not None:
                    self._lowest_winning_bids[outcome.job_id] = lowest

    def headline(self) -> str:
        """Return welfare, the proven ratio of the plans, and the basis of prices."""
        if not self._certificates:
            return ""
        own_prices = "".join(
            f"; {zone} is priced by {basis}" for zone, basis in sorted(self._own_prices.items())
        )
        return (
            f"welfare planned {units(self.planned_welfare_micros)}, realised "
            f"{units(self.realised_welfare_micros)}, proven ratio of the plans {self._ratio}{own_prices}"
        )

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield welfare, the proven ratio, and the causes of differences."""
        if not self._certificates:
            return
        yield "planned again", str(self.replanned)
        yield "welfare of the plans as admitted", units(self.planned_welfare_micros)
        yield "proven ratio (dual bound / welfare of the plans)", self._ratio
        yield "welfare realised", units(self.realised_welfare_micros)
        for cause, micros in self.welfare_difference_micros.items():
            if micros:
                yield f"  of the difference: {_CAUSES[cause]}", units(micros)

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        if not self._certificates:
            return {}
        return {
            "replanned": self.replanned,
            "planned_welfare_micros": self.planned_welfare_micros,
            "dual_bound_micros": self.dual_bound_micros,
            "proven_ratio": self.proven_ratio,
            "realised_welfare_micros": self.realised_welfare_micros,
            "welfare_difference_micros": self.welfare_difference_micros,
        }

    def job_cells(self, job: Job) -> dict[str, str]:
        """Return the lowest winning bid, the number of new plans, and the slot in which the work was done."""
        cells = {}
        if job.state == "rejected" and job.job_id in self._lowest_winning_bids:
            cells["would have won"] = units(self._lowest_winning_bids[job.job_id])
        if job.job_id in self._replanned:
            cells["planned again"] = str(self._replanned[job.job_id])
        if job.finish_run in self._slot_of_run:
            cells["finish slot"] = str(self._slot_of_run[job.finish_run])
        return cells

    def node_cells(self, node: Node) -> dict[str, str]:
        """Return price and use of future node-slots of the node's class, and its latest slot."""
        cells = {}
        prices = self._prices.get((node.zone, node.gpu_type, node.tariff))
        if prices is not None:
            cells["compute price"] = units(prices.mean_compute_price_micros)
            cells["used ahead"] = f"{prices.compute_used_share:.0%}"
        if node.node in self._slot_of_node:
            cells["slot"] = str(self._slot_of_node[node.node])
        return cells

    @property
    def _ratio(self) -> str:
        return "–" if self.proven_ratio is None else f"{self.proven_ratio:.2f}"
