"""Descriptions of the auction's own types: bids, offers, plans, batches and slots."""

from infra.text import units, written
from infra.views.auction.figures import AuctionFiguresView
from infra.views.auction.offers import describe_offer, describe_plan
from infra.views.auction.sentences import SENTENCES
from infra.views.policy import PolicyView
from infra.views.sentences import sentence
from schemas.auction.batches import BatchSolution
from schemas.auction.bids import BidTerms, QuoteAccepted
from schemas.auction.deliveries import (
    PreprocessingAccepted,
    PreprocessingClosed,
    PreprocessingDelivered,
    PreprocessingFailed,
    PreprocessingOrdered,
)
from schemas.auction.evidence import AuctionEvidence, JobReplanned, evidence_of
from schemas.base import Event, Outcome, Record
from schemas.decisions import JobAdmitted, JobQuoted, JobRejected
from schemas.lora import Delivery, LoraWorkload
from schemas.lora_commands import SlotAssigned
from schemas.solves import Question, SolveFinished, SolveRequested


class AuctionView(PolicyView):
    """`PolicyView` of the auction."""

    sentences = SENTENCES
    figures = AuctionFiguresView()

    def part_of(self, record: Event | Outcome, job_id: str) -> Event | Outcome | None:
        """Return the job's run in a slot's command, or its plan in a solver's answer."""
        match record:
            case SlotAssigned():
                runs = tuple(order for order in record.runs if order.job_id == job_id)
                return record.model_copy(update={"runs": runs}) if runs else None
            case SolveFinished(solution=BatchSolution() as solution):
                plans = tuple(plan for plan in solution.plans if plan.job_id == job_id)
                found = solution.model_copy(update={"plans": plans})
                return record.model_copy(update={"solution": found}) if plans else None
        return None

    def words(self, record: Record) -> list[str] | None:
        """Return words for records about one job alone, as `part_of` returns them."""
        match record:
            case LoraWorkload():
                return [_workload(record)]
            case BidTerms():
                bid, latest = units(record.bid_micros), written(record.deadline_s)
                return [f"bids {bid}, for the work to be done by {latest}"]
            case AuctionEvidence():
                return list(describe_offer(record.offer))
            case JobQuoted(evidence=AuctionEvidence() as evidence):
                return [_answer(record, evidence), *describe_offer(evidence.offer)]
            case SolveRequested(question=Question(kind="batch")):
                return ["waits for a solver with the other bids of its slot"]
            case SolveFinished(solution=BatchSolution(plans=(plan,), status=status)):
                return [f"the solver ({status}) plans it in {len(plan.node_slots)} slots"]
            case SlotAssigned(runs=(order,)):
                quota = f"{order.quota_samples} samples, from {order.resume_samples}"
                return [f"slot {record.slot} on {record.node}: {quota}"]
            case JobReplanned() if not record.plan.node_slots:
                return [f"planned again ({record.reason}): its present runs suffice, no more slots are held"]
            case JobReplanned():
                left = f"{record.remaining_samples} samples are left"
                return [f"planned again ({record.reason}): {left}", describe_plan(record.plan)]
            case PreprocessingOrdered():
                return [f"its data are ordered from {_order(record)}"]
            case PreprocessingDelivered(vendor=vendor, delivery=delivery):
                return [f"{vendor} has prepared {_delivery(delivery)}", f"BLAKE2b {delivery.digest}"]
            case PreprocessingFailed():
                return [f"{record.vendor} cannot prepare the data ({record.reason}): {record.detail}"]
            case PreprocessingAccepted():
                return [f"delivered ({record.reason}): {record.vendor} gets {units(record.paid_micros)}"]
            case PreprocessingClosed():
                returned = f", {units(record.returned_micros)} returned" if record.returned_micros else ""
                return [f"order of {record.vendor} closed ({record.reason}){returned}{_because(record)}"]
        return None

    def happening(self, outcome: Outcome) -> str | None:
        """Return words for bids that win or lose by their price, plans made again, and batches."""
        evidence = evidence_of(outcome)
        bid = units(evidence.bid_micros)
        match outcome:
            case JobAdmitted() if evidence.bid_micros is not None:
                plan = evidence.offer and evidence.offer.plan
                slots = [slot for slot, _ in plan.node_slots] if plan else []
                when = f", trains in {_slots(slots[0], slots[-1])}" if slots else ""
                return f"{outcome.job_id} admitted: bid {bid}, pays {units(outcome.payment_micros)}{when}"
            case JobRejected() if evidence.lowest_winning_bid_micros is not None:
                lowest = units(evidence.lowest_winning_bid_micros)
                return f"{outcome.job_id} rejected ({outcome.reason}): bid {bid}, {lowest} would have won"
            case JobReplanned():
                left = f"{outcome.remaining_samples} samples left"
                return f"{outcome.job_id} planned again ({outcome.reason}): {left}"
            case PreprocessingOrdered():
                return f"{outcome.job_id} waits for its data, from {_order(outcome)}"
            case PreprocessingAccepted():
                paid = units(outcome.paid_micros)
                return f"{outcome.job_id} has its data ({outcome.reason}): {outcome.vendor} gets {paid}"
            case PreprocessingClosed():
                return f"{outcome.job_id}: order of {outcome.vendor} closed ({outcome.reason})"
            case QuoteAccepted(reason="late"):
                return f"{outcome.vendor} is late and gets no more orders before its next quote"
            case SolveRequested(question=Question(kind="batch", counts=counts)):
                return f"zone {outcome.zone} asks a solver to schedule {counts['bids']} bids together"
        return None


def _slots(first: int, last: int) -> str:
    return f"slot {first}" if first == last else f"slots {first} to {last}"


def _order(order: PreprocessingOrdered) -> str:
    price, due = units(order.price_micros), written(order.due_s)
    return f"{order.vendor} for {price}, due by {due} (slot {order.due_slot})"


def _delivery(delivery: Delivery) -> str:
    return f"{delivery.samples} samples in {delivery.path}, {delivery.size_bytes} bytes"


def _because(closed: PreprocessingClosed) -> str:
    words = sentence(closed)
    return f": {words}" if words else ""


def _workload(lora: LoraWorkload) -> str:
    prepared = ", to be prepared by a vendor" if lora.needs_preprocessing else ""
    return (
        f"{lora.work_samples} samples of {lora.dataset.path}, rank {lora.hyperparameters.rank}, "
        f"batch size {lora.hyperparameters.batch_size}{prepared}"
    )


def _answer(quoted: JobQuoted, evidence: AuctionEvidence) -> str:
    if evidence.offer is None or evidence.offer.price is None:
        return f"no price ({quoted.reason}): {sentence(quoted)}"
    if quoted.reason != "plan_found":
        return f"no bid wins now ({quoted.reason}): {sentence(quoted)}"
    return f"a bid of {units(evidence.lowest_winning_bid_micros)} wins now"
