"""Small cells and events for the tests of the cell."""

from dataclasses import dataclass, field
from typing import Any

from schemas.auction.batches import BatchSolution, SolvedPlan
from schemas.auction.bids import BidTerms, DeadlineTerms, VendorLeft, VendorQuoted
from schemas.auction.deliveries import PreprocessingDelivered, PreprocessingFailed, delivery_path
from schemas.auction.evidence import JobReplanned
from schemas.auction.settings import PdftspPolicy
from schemas.base import HOURS_PER_DAY, Event, Outcome
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.decisions import JobAdmitted
from schemas.fleet import (
    CommandRefused,
    NodeOffline,
    NodeOnline,
    NodeSeen,
    NodeSilent,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
)
from schemas.jobs import JobQuoteRequested, JobSubmitted, JobWithdrawalRequested
from schemas.lora import Dataset, Delivery, LoraWorkload
from schemas.solves import SolveFinished, SolveRequested
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from tests.support.invariants import handle_checked

SLOT_S = 10.0
EPOCH_S = 1_000.0
UNIT = 1_000_000


def configuration(**changes: Any) -> CellConfigured:
    """A cell "c" of one zone "z": nodes a1, a2 (fast) and b1 (slow), six slots ahead, two vendors."""
    fields: dict[str, Any] = {
        "cell": "c",
        "epoch_s": EPOCH_S,
        "slot_s": SLOT_S,
        "node_timeout_s": 15.0,
        "tariffs": (Tariff(name="t", micros_per_kwh=(360 * UNIT,) * HOURS_PER_DAY),),
        "zones": (zone(),),
        "vendors": ("slow", "fast"),
    }
    return CellConfigured(**{**fields, **changes})


def zone(**changes: Any) -> Zone:
    """See `configuration`. A full fast node costs 1 unit of money per slot, a slow one half of it."""
    fields: dict[str, Any] = {
        "id": "z",
        "base_model": "tiny",
        "base_model_memory_gib": 2.0,
        "horizon_slots": 6,
        "gpu_types": (
            GpuType(name="fast", samples_per_s=10.0, memory_gib=10.0, power_kw=1.0),
            GpuType(name="slow", samples_per_s=5.0, memory_gib=6.0, power_kw=0.5),
        ),
        "nodes": (
            Node(id="a1", gpu_type="fast", tariff="t"),
            Node(id="a2", gpu_type="fast", tariff="t"),
            Node(id="b1", gpu_type="slow", tariff="t"),
        ),
        "policy": PdftspPolicy(
            kind="pdftsp",
            money_unit_micros=UNIT,
            max_value_per_compute_micros=4 * UNIT,
            max_value_per_memory_micros=4 * UNIT,
        ),
    }
    return Zone(**{**fields, **changes})


def workload(**changes: Any) -> LoraWorkload:
    """200 samples at 5 per second on either type: four slots of half a fast node."""
    fields: dict[str, Any] = {
        "work_samples": 200,
        "dataset": Dataset(path="d.jsonl", samples=1_000),
        "memory_gib": 2.0,
        "speed_samples_per_s": {"fast": 5.0, "slow": 5.0},
    }
    return LoraWorkload(**{**fields, **changes})


def bid(
    job_id: str = "j",
    units: float = 50.0,
    user: str = "u",
    zone: str = "z",
    deadline_s: float = EPOCH_S + 60.0,
    **changes: Any,
) -> JobSubmitted:
    """A bid of so many units of money for a `workload`, by default to be done within all six slots."""
    return JobSubmitted(
        cell="c",
        job_id=job_id,
        user=user,
        zone=zone,
        workload=workload(**changes),
        terms=BidTerms(bid_micros=int(units * UNIT), deadline_s=deadline_s),
    )


def ask(zone: str = "z", deadline_s: float = EPOCH_S + 60.0, **changes: Any) -> JobQuoteRequested:
    """A request for a quote of a `workload`."""
    return JobQuoteRequested(
        cell="c",
        quote_id="q",
        user="u",
        zone=zone,
        workload=workload(**changes),
        terms=DeadlineTerms(deadline_s=deadline_s),
    )


def with_bid(event: JobSubmitted, bid_micros: int) -> JobSubmitted:
    """Return the job with another bid."""
    return event.model_copy(update={"terms": event.terms.model_copy(update={"bid_micros": bid_micros})})


def withdraw(job_id: str = "j", user: str = "u") -> JobWithdrawalRequested:
    return JobWithdrawalRequested(cell="c", job_id=job_id, user=user)


def vendor(name: str, units: float, delay_s: float) -> VendorQuoted:
    """A standing quote that does not depend on the size of the data."""
    return VendorQuoted(
        cell="c",
        vendor=name,
        fixed_price_micros=int(units * UNIT),
        price_per_thousand_samples_micros=0,
        fixed_delay_s=delay_s,
        delay_per_thousand_samples_s=0.0,
    )


def vendor_left(name: str) -> VendorLeft:
    return VendorLeft(cell="c", vendor=name)


def delivered(
    vendor: str,
    order_id: str,
    job_id: str = "j",
    samples: int = 900,
    size_bytes: int = 18_000,
    path: str | None = None,
) -> PreprocessingDelivered:
    delivery = Delivery(
        path=path or delivery_path("c", vendor, order_id),
        digest="a" * 64,
        size_bytes=size_bytes,
        samples=samples,
    )
    return PreprocessingDelivered(
        cell="c", vendor=vendor, order_id=order_id, job_id=job_id, delivery=delivery
    )


def failed_order(
    vendor: str, order_id: str, job_id: str = "j", reason: Any = "vendor_unable", detail: str = ""
) -> PreprocessingFailed:
    return PreprocessingFailed(
        cell="c", vendor=vendor, order_id=order_id, job_id=job_id, reason=reason, detail=detail
    )


def tick(slot: float) -> ClockTicked:
    """It is the beginning of `slot` (or some way into it)."""
    return ClockTicked(cell="c", time_s=EPOCH_S + slot * SLOT_S)


def solved(requested: SolveRequested, *plans: SolvedPlan, status: str = "feasible") -> SolveFinished:
    """An answer to a request of zone "z"."""
    return SolveFinished(
        cell="c",
        zone=requested.zone,
        request_id=requested.request_id,
        solution=BatchSolution(status=status, plans=plans, bound_micros=None),
        solve_s=0.5,
    )


def online(node: str, base_model: str = "tiny") -> NodeOnline:
    return NodeOnline(cell="c", node=node, base_model=base_model, runners=("lora",))


def offline(node: str) -> NodeOffline:
    return NodeOffline(cell="c", node=node)


def node_seen(node: str) -> NodeSeen:
    return NodeSeen(cell="c", node=node, base_model="tiny", runners=("lora",))


def silent(node: str) -> NodeSilent:
    return NodeSilent(cell="c", node=node, silent_s=20.0)


def started(
    node: str, slot: int, done: int, job_id: str = "j", dataset_samples: int | None = None
) -> RunStarted:
    return RunStarted(
        cell="c",
        node=node,
        run_id=f"{slot}/{job_id}",
        job_id=job_id,
        samples_done=done,
        dataset_samples=dataset_samples,
    )


def progressed(
    node: str, slot: int, done: int, complete: bool = True, job_id: str = "j", node_s: float = 0.0
) -> RunProgressed:
    """Without `node_s`, the node is to blame for whatever is missing."""
    return RunProgressed(
        cell="c",
        node=node,
        run_id=f"{slot}/{job_id}",
        job_id=job_id,
        samples_done=done,
        loss=1.0,
        node_s=node_s,
        complete=complete,
    )


def finished(node: str, slot: int, done: int = 200, job_id: str = "j") -> RunFinished:
    return RunFinished(
        cell="c",
        node=node,
        run_id=f"{slot}/{job_id}",
        job_id=job_id,
        samples_done=done,
        loss=0.5,
        adapter_path=f"c/{job_id}",
        adapter_digest="0" * 64,
    )


def failed(node: str, slot: int, done: int, permanent: bool, job_id: str = "j") -> RunFailed:
    return RunFailed(
        cell="c",
        node=node,
        run_id=f"{slot}/{job_id}",
        job_id=job_id,
        samples_done=done,
        error="boom",
        permanent=permanent,
    )


def refused(node: str) -> CommandRefused:
    return CommandRefused(
        cell="c", node=node, command_id="c-7-0", runner="tuner", reason="runner_missing", detail="it has lora"
    )


def nodes_by_slot(outcome: JobAdmitted | JobReplanned) -> dict[int, str]:
    plan = outcome.plan if isinstance(outcome, JobReplanned) else outcome.evidence.offer.plan
    assert plan is not None
    return dict(plan.node_slots)


@dataclass
class Bench:
    """A cell and the ledger that was fed to it."""

    cell: Cell = field(default_factory=lambda: Cell("c"))
    ledger: list[LedgerEvent] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    @classmethod
    def configured(cls, **changes: Any) -> "Bench":
        bench = cls()
        bench.send(configuration(**changes))
        return bench

    def send(self, *events: Event) -> list[Outcome]:
        """Feed events to the cell; what it decides because of them."""
        outcomes: list[Outcome] = []
        for event in events:
            offset = len(self.ledger)
            entry = LedgerEvent(offset, Envelope(f"e{offset}", "test", "", event))
            self.ledger.append(entry)
            decided = self.handle_entry(entry)
            self.decisions += decided
            outcomes += [decision.outcome for decision in decided]
        return outcomes

    @property
    def zone(self) -> Any:
        return self.cell.zones["z"]

    @property
    def described(self) -> dict[str, Any]:
        """State of zone "z" as `millrace state` shows it."""
        return self.zone.describe()

    def job(self, job_id: str) -> dict[str, Any]:
        """State of a job of zone "z", with its id."""
        return {"job_id": job_id, **self.described["jobs"][job_id]}

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """States of all jobs of zone "z", with their ids."""
        return [{"job_id": job_id, **job} for job_id, job in self.described["jobs"].items()]

    def handle_entry(self, entry: LedgerEvent) -> list[Decision]:
        return self.cell.handle(entry)


class CheckedBench(Bench):
    """A bench that checks the invariants after every event."""

    def handle_entry(self, entry: LedgerEvent) -> list[Decision]:
        return handle_checked(self.cell, entry)
