"""Labour vendors of a zone: their standing quotes, the orders of jobs, and their deliveries."""

from dataclasses import dataclass
from typing import get_args

from schemas.auction.bids import QuoteAccepted, VendorLeft, VendorQuoted
from schemas.auction.deliveries import (
    ClosingReason,
    DataFault,
    Deliveries,
    PreprocessingAccepted,
    PreprocessingDelivered,
    PreprocessingFailed,
    PreprocessingOrdered,
    PreprocessingReport,
    delivery_path,
)
from schemas.auction.settings import MarketPolicy
from schemas.base import Event
from schemas.decisions import EventIgnored
from schemas.facts import Facts, quoted
from schemas.fleet import RunFailed
from schemas.lora import LoraWorkload
from solvers.auction.market.demand import UnplannableError
from solvers.auction.market.fleet import Calendar
from solvers.auction.market.window import VendorOption, undominated, vendor_options
from solvers.auction.mechanism.auctioneer import Auctioneer
from solvers.auction.mechanism.search import Schedule
from streams.cell.states import Stateful
from streams.policies.auction.book import JobBook
from streams.policies.auction.planned_job import PlannedJob
from streams.policies.auction.replanning import Replanner
from streams.policies.auction.vendor_order import MOST_ORDERS, VendorOrder, order_id_of
from streams.policies.orders import facts_of_failure
from streams.policies.policy import ZoneContext


@dataclass(init=False, eq=False)
class Vendors(Stateful):
    """Quotes and orders of one zone."""

    quotes: dict[str, VendorQuoted]
    """Latest quote of each vendor."""

    def __init__(
        self,
        context: ZoneContext,
        auctioneer: Auctioneer,
        calendar: Calendar,
        book: JobBook,
        replanner: Replanner,
    ) -> None:
        policy = context.zone.policy
        assert isinstance(policy, MarketPolicy), "an auction zone has a market"
        self._deliveries = policy.deliveries
        self.quotes = {}
        self._cell = context.cell.cell
        self._zone = context.zone.id
        self._market_zones = {zone.id for zone in context.cell.zones if isinstance(zone.policy, MarketPolicy)}
        self._names = context.cell.vendors
        self._jobs = context.jobs
        self._outcomes = context.outcomes
        self._welfare = auctioneer.welfare
        self._market = auctioneer.market
        self._calendar = calendar
        self._book = book
        self._replanner = replanner

    def options(self, workload: LoraWorkload) -> list[VendorOption]:
        """Return the offers for a task; see `vendor_options`."""
        return vendor_options(self.quotes, workload, self._calendar.slot_s)

    def orders(self, schedule: Schedule) -> bool:
        """Return whether the zone orders the pre-processing of a plan."""
        return self._deliveries is not None and schedule.vendor is not None

    def order(self, job_id: str, schedule: Schedule) -> VendorOrder | None:
        """Return the order for a winner's plan; None if nothing is ordered."""
        if schedule.vendor is None or not self.orders(schedule):
            return None
        first_slot = self._market.first_slot
        due_slot = first_slot + schedule.vendor_delay_slots
        return VendorOrder(order_id_of(first_slot, job_id), schedule.vendor, schedule.vendor_micros, due_slot)

    def ordered(self, job: PlannedJob, order: VendorOrder) -> PreprocessingOrdered:
        """Return the decision that sends an order to its vendor."""
        return PreprocessingOrdered(
            zone=self._zone,
            vendor=order.vendor,
            order_id=order.order_id,
            job_id=job.job_id,
            dataset=job.workload.dataset,
            least_samples=self._least_samples(job),
            price_micros=order.price_micros,
            due_slot=order.due_slot,
            due_s=self._calendar.start_s(order.due_slot),
        )

    def apply(self, event: Event) -> None:
        """Apply a quote or a report of a vendor.

        Raises:
            TypeError: it is neither.
        """
        if not isinstance(event, VendorQuoted | VendorLeft | PreprocessingReport):
            raise TypeError(f"an auction zone takes no {event.TYPE}")
        if isinstance(event, PreprocessingReport) and self._is_of_another_zone(event):
            return
        if event.vendor not in self._names:
            facts: Facts = {"vendor": event.vendor, "vendors": tuple(self._names)}
            self._outcomes.add(EventIgnored(reason="unknown_vendor", facts=facts))
            return
        match event:
            case VendorQuoted():
                self.quotes[event.vendor] = event
                self._outcomes.add(QuoteAccepted(zone=self._zone, vendor=event.vendor, reason="quoted"))
            case VendorLeft():
                self.quotes.pop(event.vendor, None)
                self._outcomes.add(QuoteAccepted(zone=self._zone, vendor=event.vendor, reason="left"))
            case PreprocessingReport():
                self._report(event)

    def note_late(self) -> None:
        """At the start of a slot, mark the jobs to be replanned that have lost slots for lack of a delivery.
        Their vendors get no orders before their next quotes."""
        for job in self._book.jobs.values():
            if job.order is None or not job.awaits_delivery or not self._book.miss_slots(job):
                continue
            job.set_back("delivery_late")
            if self.quotes.pop(job.order.vendor, None) is not None:
                late = QuoteAccepted(zone=self._zone, vendor=job.order.vendor, reason="late")
                self._outcomes.add(late)

    def refuse_data(self, job: PlannedJob, order: VendorOrder, failed: RunFailed) -> None:
        """Apply a node's report that the data of a job differ from its delivery. The vendor returns its
        payment. Before the first run, another vendor may get the order."""
        self._close(job, order, "data_differ", facts_of_failure(failed))

    def inherit(self, before: "Vendors") -> None:
        """Take over the quotes."""
        self.quotes = before.quotes

    def _is_of_another_zone(self, event: PreprocessingReport) -> bool:
        """Return whether a report is on a live job of another zone with vendors, which answers it."""
        job = self._jobs.get(event.job_id)
        return job is not None and job.zone != self._zone and job.zone in self._market_zones

    def _report(self, event: PreprocessingReport) -> None:
        job = self._book.jobs.get(event.job_id)
        order = None if job is None else job.order
        if job is None or order is None or (order.vendor, order.order_id) != (event.vendor, event.order_id):
            self._ignore("unknown_order", event)
        elif not order.is_open:
            self._ignore("order_is_over", event)
        elif isinstance(event, PreprocessingDelivered):
            self._deliver(job, order, event)
        elif isinstance(event, PreprocessingFailed):
            dataset = job.workload.dataset
            facts: Facts = {"path": quoted(dataset.path), "declared_samples": dataset.samples}
            self._close(job, order, event.reason, facts)

    def _deliver(self, job: PlannedJob, order: VendorOrder, event: PreprocessingDelivered) -> None:
        path = delivery_path(self._cell, order.vendor, order.order_id)
        if event.delivery.path != path:
            self._close(job, order, "wrong_path", {"path": quoted(event.delivery.path), "ordered_path": path})
            return
        samples, most = event.delivery.samples, job.workload.dataset.samples
        least = self._least_samples(job)
        if not least <= samples <= most:
            facts: Facts = {"samples": samples, "least_samples": least, "most_samples": most}
            self._close(job, order, "wrong_size", facts)
            return
        job.set_order(order.delivered(event.delivery))
        job.ready_slot = min(job.ready_slot, self._market.first_slot)
        is_late = self._market.first_slot > order.due_slot
        self._outcomes.add(
            PreprocessingAccepted(
                zone=self._zone,
                vendor=order.vendor,
                order_id=order.order_id,
                job_id=job.job_id,
                reason="late" if is_late else "in_time",
                delivery=event.delivery,
                paid_micros=order.price_micros,
            )
        )

    def _close(self, job: PlannedJob, order: VendorOrder, reason: ClosingReason, facts: Facts) -> None:
        """End an order without payment, and the job if its data are at fault or no other vendor can do it."""
        self._book.close_order(job, order, reason, facts)
        path = job.workload.dataset.path
        about: Facts = {"vendor": order.vendor, "path": quoted(path)}
        if reason == "more_data_than_ordered":
            declared = {"declared_samples": job.workload.dataset.samples}
            self._book.end_at_fault(job, "dataset_size_misstated", {"case": "by_vendor", **about, **declared})
        elif reason in get_args(DataFault):
            self._book.end_at_fault(job, "dataset_unfit", {"case": reason, **about})
        elif not self._order_again(job, order):
            self._book.refund(job, "delivery_failed", {"case": reason, **about})

    def _order_again(self, job: PlannedJob, before: VendorOrder) -> bool:
        """Order from another vendor: the cheapest one with data before the plan begins. If all are later,
        order from the fastest, and plan the work again. Return whether there is one.

        A job that has trained keeps its data, as its checkpoints depend on them. The provider pays the
        difference of the prices, and no more than it was paid for the job.
        """
        tried = (*before.tried, before.vendor)
        options = self._others(job, tried)
        if job.run_slot >= 0 or len(tried) >= MOST_ORDERS or not options:
            return False
        first_slot = self._market.first_slot
        begin_slot = min(job.ahead(first_slot).slots, default=first_slot)
        fitting = [option for option in options if first_slot + option.delay_slots <= begin_slot]
        option = min(fitting, key=lambda one: one.price_micros, default=options[0])
        assert option.vendor is not None, "the job needs a vendor"
        due_slot = first_slot + option.delay_slots
        order = VendorOrder(
            order_id_of(first_slot, job.job_id), option.vendor, option.price_micros, due_slot, tried
        )
        job.ready_slot = due_slot
        self._book.miss_slots(job)
        if due_slot > begin_slot:
            self._replanner.replan(job, "delivery_failed")
        else:
            self._replanner.check(job, "delivery_failed")
        if job.job_id in self._book.jobs:
            self._welfare.replanned_micros -= order.price_micros
            job.set_order(order)
            self._outcomes.add(self.ordered(job, order))
        return True

    def _others(self, job: PlannedJob, tried: tuple[str, ...]) -> list[VendorOption]:
        """Return offers of vendors that were not tried, by delay, no dearer than the job's payment."""
        try:
            options = self.options(job.workload)
        except UnplannableError:
            return []
        return undominated(
            option
            for option in options
            if option.vendor not in tried and option.price_micros <= job.payment_micros
        )

    def _least_samples(self, job: PlannedJob) -> int:
        # A zone that has ceased to order keeps its open orders.
        part = (self._deliveries or Deliveries()).least_part
        return max(int(job.workload.dataset.samples * part), 1)

    def _ignore(self, reason: str, event: PreprocessingReport) -> None:
        facts: Facts = {"vendor": event.vendor, "order_id": event.order_id, "job_id": event.job_id}
        self._outcomes.add(EventIgnored(reason=reason, facts=facts))
