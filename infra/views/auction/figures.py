"""Figures of an auction or one of its baselines in words."""

from collections.abc import Iterator

from infra.figures.auction.figures import AuctionFigures, BidTimeline
from infra.figures.nodes import NodeState
from infra.text import units
from infra.views.auction.basis import describe_basis
from infra.views.policy import FiguresView

_CAUSES = {
    "finished_early": "work done early",
    "replanned": "plans made again",
    "refunded": "refunds in full",
    "failed": "jobs at fault",
    "withdrawn": "withdrawals",
    "undelivered": "vendors that delivered nothing",
}
"""Texts for the causes of a difference between planned and realised welfare."""


class AuctionFiguresView(FiguresView[AuctionFigures, BidTimeline]):
    """See `FiguresView`."""

    def headline(self, figures: AuctionFigures) -> str:
        """Return welfare, the proven ratio of the plans, and the basis of prices."""
        if figures.certificate is None:
            return ""
        priced, basis = figures.priced, ""
        if priced is not None and priced.basis is not None:
            basis = f"; priced by {describe_basis(priced.basis, priced.expected_by_hour)}"
        return (
            f"welfare planned {units(figures.planned_welfare_micros)}, realised "
            f"{units(figures.realised_welfare_micros)}, proven ratio of the plans {_ratio(figures)}{basis}"
        )

    def rows(self, figures: AuctionFigures) -> Iterator[tuple[str, str]]:
        """Yield welfare, the proven ratio, and the causes of differences."""
        if figures.certificate is None:
            return
        yield "planned again", str(figures.replanned)
        if figures.ordered:
            late = f", {figures.late_deliveries} late" if figures.late_deliveries else ""
            yield "orders of pre-processing", f"{figures.ordered}, {figures.delivered} delivered{late}"
            yield "paid to vendors", units(figures.vendors_paid_micros)
        yield "welfare of the plans as admitted", units(figures.planned_welfare_micros)
        yield "proven ratio (dual bound / welfare of the plans)", _ratio(figures)
        yield "welfare realised", units(figures.realised_welfare_micros)
        for cause, micros in figures.welfare_difference_micros.items():
            if micros:
                yield f"  of the difference: {_CAUSES[cause]}", units(micros)

    def job_cells(self, figures: AuctionFigures, job: BidTimeline) -> dict[str, str]:  # noqa: ARG002
        """Return the lowest winning bid, the number of new plans, and the slot in which the work was done."""
        cells: dict[str, str] = {}
        if job.lowest_winning_bid_micros is not None:
            cells["would have won"] = units(job.lowest_winning_bid_micros)
        if job.replanned:
            cells["planned again"] = str(job.replanned)
        if job.finish_run in job.slot_of_run:
            cells["finish slot"] = str(job.slot_of_run[job.finish_run])
        return cells

    def node_cells(self, figures: AuctionFigures, node: NodeState) -> dict[str, str]:
        """Return price and use of future node-slots of the node's class, and its latest slot."""
        cells = {}
        prices = figures.prices.get((node.gpu_type, node.tariff))
        if prices is not None:
            cells["compute price"] = units(prices.mean_compute_price_micros)
            cells["used ahead"] = f"{prices.compute_used_share:.0%}"
        if node.node in figures.slot_of_node:
            cells["slot"] = str(figures.slot_of_node[node.node])
        return cells


def _ratio(figures: AuctionFigures) -> str:
    return "–" if figures.proven_ratio is None else f"{figures.proven_ratio:.2f}"
