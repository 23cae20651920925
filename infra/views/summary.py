"""What came of a cell's log, in figures: the end of a simulation and of the demo."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from schemas.auction.evidence import Certificate, JobReplanned, WelfareDifference, ZonePriced, evidence_of
from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.codec import Decision
from schemas.decisions import (
    JobAdmitted,
    JobCompleted,
    JobOutcome,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeStatusChanged,
)
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from schemas.jobs import JobSubmitted
from schemas.solves import SolveFinished


def certified(decision: Outcome) -> dict[str, Certificate]:
    """How its zone stands after a decision, by zone; empty where the decision does not say so."""
    if isinstance(decision, ZonePriced):
        return {decision.zone: decision.certificate}
    certificate = evidence_of(decision).certificate
    if certificate is None or not isinstance(decision, JobOutcome | JobReplanned):
        return {}
    return {decision.zone: certificate}


@dataclass(frozen=True)
class TrainedAdapter:
    """An adapter that was trained to its end."""

    job_id: str
    node: str
    samples: int
    first_loss: float | None
    """As first reported; None where nothing was reported before the end."""
    last_loss: float


@dataclass(frozen=True)
class Summary:
    """Counts and sums of one cell's log."""

    bids: int
    admitted: int
    rejected: dict[str, int]
    """By reason."""
    replanned: int
    refunded: int
    withdrawn: int
    nodes_lost: int
    revenue_micros: int
    """Payments less what was given back."""
    planned_welfare_micros: int
    """Of the plans as admitted, of all zones, as their last decisions certify it: what the bound is held
    against."""
    dual_bound_micros: int
    proven_ratio: float | None
    """Dual bound over planned welfare; None while that is not positive."""
    realised_welfare_micros: int
    """What came of the plans; what is still planned counts as planned."""
    welfare_difference_micros: dict[str, int]
    """Realised less planned welfare, by cause: see `WelfareDifference`."""
    utilisation: float
    """Samples trained, as parts of what the nodes could have trained from the first tick to the last."""
    solves: int
    """Answers of solvers."""
    solves_without_plans: int
    """Those that found nothing in their time, though there might be something."""
    solve_s: float
    """What they took, all together, by their own clocks."""
    adapters: tuple[TrainedAdapter, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass
class Tally:
    """Folds ledger events and decisions of one cell into a summary."""

    configuration: CellConfigured | None = None
    _bids: int = 0
    _first_s: float | None = None
    _last_s: float = 0.0
    _rejected: Counter[str] = field(default_factory=Counter)
    _counts: Counter[str] = field(default_factory=Counter)
    _revenue_micros: int = 0
    _certificates: dict[str, Certificate] = field(default_factory=dict)
    _done: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    """Samples at the start and at the last report of a run, by job, node and slot."""
    _first_losses: dict[str, float] = field(default_factory=dict)
    _completed: list[JobCompleted] = field(default_factory=list)
    _solves_s: list[float] = field(default_factory=list)
    _solves_without_plans: int = 0

    def take_event(self, event: Event) -> None:
        """Count a ledger event."""
        match event:
            case CellConfigured() as configuration:
                self.configuration = self.configuration or configuration
            case JobSubmitted():
                self._bids += 1
            case SolveFinished():
                self._solves_s.append(event.solve_s)
                self._solves_without_plans += (
                    event.solution is None or getattr(event.solution, "status", "") == "none"
                )
            case RunStarted() as run:
                self._done[run.job_id, run.node, run.run_id] = (run.samples_done, run.samples_done)
            case RunProgressed() | RunFinished() as run:
                start, _ = self._done.get((run.job_id, run.node, run.run_id), (run.samples_done, 0))
                self._done[run.job_id, run.node, run.run_id] = (start, run.samples_done)
                if isinstance(run, RunProgressed):
                    self._first_losses.setdefault(run.job_id, run.loss)

    def take_decision(self, decision: Decision) -> None:
        """Count a decision."""
        if decision.time_s is not None:
            self._first_s = decision.time_s if self._first_s is None else self._first_s
            self._last_s = decision.time_s
        outcome = decision.outcome
        self._certificates |= certified(outcome)
        self._counts[type(outcome).__name__] += 1
        match outcome:
            case JobAdmitted():
                self._revenue_micros += outcome.payment_micros
            case JobRejected():
                self._rejected[outcome.reason] += 1
            case JobRefunded():
                self._revenue_micros -= outcome.refund_micros
            case JobWithdrawn():
                self._revenue_micros -= outcome.returned_micros
            case NodeStatusChanged(status="down"):
                self._counts["nodes_lost"] += 1
            case JobCompleted():
                self._completed.append(outcome)

    def summary(self) -> Summary:
        """The figures so far."""
        certificates = self._certificates.values()
        planned = sum(certificate.planned_welfare_micros for certificate in certificates)
        bound = sum(certificate.dual_bound_micros for certificate in certificates)
        return Summary(
            bids=self._bids,
            admitted=self._counts[JobAdmitted.__name__],
            rejected=dict(self._rejected.most_common()),
            replanned=self._counts[JobReplanned.__name__],
            refunded=self._counts[JobRefunded.__name__],
            withdrawn=self._counts[JobWithdrawn.__name__],
            nodes_lost=self._counts["nodes_lost"],
            revenue_micros=self._revenue_micros,
            planned_welfare_micros=planned,
            dual_bound_micros=bound,
            proven_ratio=bound / planned if planned > 0 else None,
            realised_welfare_micros=sum(c.realised_welfare_micros for c in certificates),
            welfare_difference_micros={
                cause.removesuffix("_micros"): sum(getattr(c.difference, cause) for c in certificates)
                for cause in WelfareDifference.model_fields
            },
            utilisation=self._utilisation(),
            solves=len(self._solves_s),
            solves_without_plans=self._solves_without_plans,
            solve_s=math.fsum(self._solves_s),
            adapters=tuple(
                TrainedAdapter(
                    outcome.job_id,
                    outcome.node,
                    outcome.samples_done,
                    # Looked up at the end: a follower may read a decision before the reports behind it.
                    self._first_losses.get(outcome.job_id),
                    outcome.loss,
                )
                for outcome in self._completed
            ),
        )

    def _utilisation(self) -> float:
        if self.configuration is None or self._first_s is None or self._last_s <= self._first_s:
            return 0.0
        speeds = {
            node.id: gpu.samples_per_s
            for zone in self.configuration.zones
            for gpu in zone.gpu_types
            for node in zone.nodes
            if node.gpu_type == gpu.name
        }
        busy_s = sum(
            max(end - start, 0) / speeds[node]
            for (_, node, _), (start, end) in self._done.items()
            if node in speeds  # a cell ignores what executors of other nodes report
        )
        return busy_s / ((self._last_s - self._first_s) * len(speeds))


def summarise(events: Iterable[Event], decisions: Iterable[Decision]) -> Summary:
    """The figures of one cell's whole log."""
    tally = Tally()
    for event in events:
        tally.take_event(event)
    for decision in decisions:
        tally.take_decision(decision)
    return tally.summary()
