"""What a watcher sees: jobs, nodes and prices as they stand, folded from the log."""

from dataclasses import dataclass, field

from infra.views.summary import certified
from schemas.auction.evidence import (
    Certificate,
    ClassPrices,
    JobReplanned,
    ZonePriced,
    evidence_of,
)
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.commands import SlotAssigned
from schemas.decisions import (
    JobAdmitted,
    JobCompleted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeStatusChanged,
)
from schemas.fleet import NodeOnline, RunFinished, RunProgressed, RunStarted
from schemas.jobs import JobSubmitted

NOT_SEEN = "not seen yet"


@dataclass
class JobRow:
    """A job as it stands."""

    job_id: str
    user: str = ""
    bid_micros: int | None = None
    work_samples: int | None = None
    deadline_s: float | None = None
    state: str = "submitted"
    reason: str = ""
    price_micros: int | None = None
    """What it pays, or the least bid that would have won."""
    node: str | None = None
    """Where it trains now."""
    samples_done: int = 0
    first_loss: float | None = None
    loss: float | None = None
    replanned: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to the job."""
        return self.state not in ("submitted", "admitted")


@dataclass
class NodeRow:
    """A node as it stands."""

    node: str
    gpu_type: str = ""
    tariff: str = ""
    status: str = NOT_SEEN
    slot: int | None = None
    prices: ClassPrices | None = None
    """Of the nodes of its class, for the slots ahead."""
    jobs: tuple[str, ...] = ()


@dataclass
class Board:
    """One cell, folded from its ledger events and decisions, each given in their order."""

    cell: str
    time_s: float | None = None
    jobs: dict[str, JobRow] = field(default_factory=dict)
    nodes: dict[str, NodeRow] = field(default_factory=dict)
    revenue_micros: int = 0
    certificates: dict[str, Certificate] = field(default_factory=dict)
    """The latest of each zone."""
    _read: set[tuple[str, str]] = field(default_factory=set)
    """Users and ids of the events that brought bids; a cell passes over what it has met before."""
    _bids: dict[tuple[str, str], JobSubmitted] = field(default_factory=dict)
    """The first of each user under each job's id, which is the one that counts."""

    @property
    def realised_welfare_micros(self) -> int:
        """Of all zones, as things stand."""
        return sum(certificate.realised_welfare_micros for certificate in self.certificates.values())

    @property
    def planned_welfare_micros(self) -> int:
        """Of the plans of all zones, as they were admitted."""
        return sum(certificate.planned_welfare_micros for certificate in self.certificates.values())

    @property
    def proven_ratio(self) -> float | None:
        """Dual bound over planned welfare, of all zones; None while that is not positive."""
        bound = sum(certificate.dual_bound_micros for certificate in self.certificates.values())
        return bound / self.planned_welfare_micros if self.planned_welfare_micros > 0 else None

    def take_event(self, envelope: Envelope) -> None:
        """Take a ledger event."""
        match event := envelope.event:
            case CellConfigured():
                self._configure(event)
            case ClockTicked():
                self.time_s = max(self.time_s or 0.0, event.time_s)
            case JobSubmitted() if (event.user, envelope.id) not in self._read:
                self._read.add((event.user, envelope.id))
                self._bids.setdefault((event.user, event.job_id), event)
                row = self._row(event.job_id)
                if row.user in ("", event.user) or row.state == "rejected":
                    self._take_bid(row, event.user)
            case NodeOnline():
                node = self._node(event.node)
                # Of a node that was lost, it is a decision that says when it is back.
                node.status = "up" if node.status == NOT_SEEN else node.status
            case RunStarted() | RunProgressed() | RunFinished():
                self._run(self._row(event.job_id), event)

    def take_decision(self, decision: Decision) -> None:
        """Take a decision."""
        outcome = decision.outcome
        self.certificates |= certified(outcome)
        match outcome:
            case NodeStatusChanged():
                node = self._node(outcome.node)
                node.status = outcome.status
                node.jobs = () if outcome.status == "down" else node.jobs
            case ZonePriced():
                self._price(outcome)
            case SlotAssigned():
                node = self._node(outcome.node)
                node.slot, node.jobs = outcome.slot, tuple(run.job_id for run in outcome.runs)
            case (
                JobAdmitted()
                | JobRejected()
                | JobReplanned()
                | JobRefunded()
                | JobWithdrawn()
                | JobCompleted()
            ):
                self._decide(self._row(outcome.job_id), outcome)

    def _configure(self, cell: CellConfigured) -> None:
        for node in (node for zone in cell.zones for node in zone.nodes):
            row = self._node(node.id)
            # Only a cell's first configuration holds.
            row.gpu_type, row.tariff = row.gpu_type or node.gpu_type, row.tariff or node.tariff

    def _node(self, node: str) -> NodeRow:
        return self.nodes.setdefault(node, NodeRow(node))

    def _price(self, zone: ZonePriced) -> None:
        classes = {(prices.gpu_type, prices.tariff): prices for prices in zone.classes}
        for node in self.nodes.values():
            node.prices = classes.get((node.gpu_type, node.tariff), node.prices)

    def _row(self, job_id: str) -> JobRow:
        """A decision may be read before the bid that it is about: two topics keep no common order."""
        return self.jobs.setdefault(job_id, JobRow(job_id))

    def _take_bid(self, row: JobRow, user: str) -> None:
        """The id, under which bids of other users have lost or will lose, is this user's job."""
        row.user = user
        bid = self._bids.get((user, row.job_id))
        if bid is None:  # not read yet
            row.work_samples = row.deadline_s = None
        else:
            row.bid_micros = bid.terms.offered_micros
            row.work_samples, row.deadline_s = bid.workload.total_samples, bid.terms.latest_s

    def _decide(
        self,
        row: JobRow,
        outcome: JobAdmitted | JobRejected | JobReplanned | JobRefunded | JobWithdrawn | JobCompleted,
    ) -> None:
        match outcome:
            case JobAdmitted():
                self._take_bid(row, outcome.user)
                row.state, row.price_micros = "admitted", outcome.payment_micros
                row.bid_micros = evidence_of(outcome).bid_micros or row.bid_micros
                self.revenue_micros += outcome.payment_micros
            case JobRejected(reason="duplicate_job"):
                pass
            case JobRejected():
                self._take_bid(row, outcome.user)
                evidence = evidence_of(outcome)
                row.state, row.reason = "rejected", outcome.reason
                row.bid_micros = evidence.bid_micros or row.bid_micros
                row.price_micros = evidence.lowest_winning_bid_micros
            case JobReplanned():
                row.replanned += 1
                row.reason = outcome.reason
            case JobRefunded():
                row.state, row.reason, row.node = "refunded", outcome.reason, None
                self.revenue_micros -= outcome.refund_micros
            case JobWithdrawn():
                row.state, row.node = "withdrawn", None
                self.revenue_micros -= outcome.returned_micros
            case JobCompleted():
                row.state, row.node = "completed", None
                row.samples_done, row.loss = outcome.samples_done, outcome.loss

    def _run(self, row: JobRow, report: RunStarted | RunProgressed | RunFinished) -> None:
        row.samples_done = report.samples_done
        if isinstance(report, RunStarted):
            row.node = None if row.is_over else report.node
            return
        if row.first_loss is None:
            row.first_loss = report.loss
        row.loss = report.loss
        if isinstance(report, RunFinished) or report.complete:
            row.node = None
