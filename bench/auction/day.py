"""One day of a setting under one contender: the cell itself, on virtual time, with checked plans.

Plans are checked against problem P from the ledger and the decisions, independently of the cell's
reservations: the instance is rebuilt from the events alone.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.workloads.paper import PaperSetting, SeededSetting, draw, with_policy
from infra.errors import CommandError
from infra.figures.auction.figures import AuctionFigures
from infra.figures.board import Board
from infra.figures.summary import Summary, summarise
from infra.simulation.simulator import SimulatedRun, Simulation
from infra.workloads.auction import AuctionWorkload
from infra.workloads.timed import TimedEvent
from schemas.auction.bids import BidTerms
from schemas.auction.evidence import JobReplanned, evidence_of
from schemas.auction.settings import PdftspPolicy
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded
from schemas.jobs import JobSubmitted
from schemas.kind import PolicySettings
from schemas.solves import SolveFinished
from solvers.auction.market.fleet import Calendar
from solvers.auction.market.market import Placement
from solvers.auction.market.window import VendorOption
from solvers.auction.offline.hindsight import instances_of
from solvers.auction.offline.instance import Instance, PlannedTask, broken_plans, overfull_node_slots
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell

_DAY_S = 86_400.0


def check_plans(run: SimulatedRun) -> None:
    """Check that the plans of a run have no fault.

    Raises:
        CommandError: they have; the message has the first.
    """
    if found := faults(run):
        raise CommandError(f"{len(found)} violations of problem P by admitted plans, the first: {found[0]}")


def faults(run: SimulatedRun) -> list[str]:
    """Return every violation of constraints 4a to 4g, and every changed plan, one line each.

    A job that is done before the end of its plan frees its remaining node-slots, which others may use. So
    each plan must do its work as admitted (4a to 4e), and no node-slot may exceed its capacity (4f, 4g) by
    the parts of plans that ran. Executors at full pace give no reason to plan again.
    """
    events = [entry.envelope.event for entry in run.ledger]
    cell = next(event for event in events if isinstance(event, CellConfigured))
    calendar = Calendar(cell.epoch_s, cell.slot_s)
    found: list[str] = []
    for zone, instance in instances_of(events).items():
        plans = _AdmittedPlans(zone, instance, calendar)
        for decision in run.decisions:
            found += plans.apply(decision.outcome, decision.time_s)
        found += broken_plans(instance, list(plans.admitted.values()))
        found += overfull_node_slots(instance, list(plans.ran.values()))
    return found


@dataclass
class _AdmittedPlans:
    zone: str
    instance: Instance
    calendar: Calendar

    def __post_init__(self) -> None:
        self.admitted: dict[str, PlannedTask] = {}
        self.ran: dict[str, PlannedTask] = {}
        self._options = {task.job_id: task.options for task in self.instance.tasks}

    def apply(self, outcome: object, time_s: float | None) -> list[str]:
        """Apply a decision, and return its apparent faults."""
        match outcome:
            case JobAdmitted(zone=self.zone):
                return self._admit(outcome)
            case JobCompleted(zone=self.zone):
                assert time_s is not None
                self._stop(outcome.job_id, self.calendar.slot_at(time_s))
            case JobReplanned(zone=self.zone) | JobRefunded(zone=self.zone):
                return [f"job {outcome.job_id}: {outcome.reason}, though its executors keep pace"]
        return []

    def _admit(self, outcome: JobAdmitted) -> list[str]:
        offer = evidence_of(outcome).offer
        plan = None if offer is None else offer.plan
        if plan is None or outcome.job_id not in self._options:
            return [f"job {outcome.job_id}: admitted without a plan, or without a bid that could win"]
        # A vendor that was not offered to the task is not among its options, which 4a detects.
        option = next(
            (option for option in self._options[outcome.job_id] if option.vendor == plan.vendor),
            VendorOption(plan.vendor, 0, 0),
        )
        row_of = self.instance.fleet.row_of
        slots = tuple(slot for slot, _ in plan.node_slots)
        placement = Placement(slots, tuple(row_of[node] for _, node in plan.node_slots))
        planned = PlannedTask(outcome.job_id, option, placement)
        self.admitted[outcome.job_id] = self.ran[outcome.job_id] = planned
        return []

    def _stop(self, job_id: str, last_slot: int) -> None:
        """Shorten a job's plan to the node-slots up to this slot."""
        plan = self.ran[job_id]
        held = [(slot, row) for slot, row in plan.placement.node_slots() if slot <= last_slot]
        placement = Placement(tuple(slot for slot, _ in held), tuple(row for _, row in held))
        self.ran[job_id] = replace(plan, placement=placement)


@dataclass(frozen=True)
class Day:
    """Results of a day."""

    run: SimulatedRun
    summary: Summary
    wall_s: float
    """Time of the whole simulation: bids, executors' reports, ticks and hashing."""
    bids_s: float
    """Time in the cell for bids."""
    solves_s: float
    """Time in the cell for solvers' answers; the solvers' own time is in the summary."""

    def values(self) -> dict[str, float]:
        """Return the values of an outcome."""
        summary, figures = self.summary, self.summary.part(AuctionFigures)
        return {
            "welfare_micros": figures.realised_welfare_micros,
            "planned_welfare_micros": figures.planned_welfare_micros,
            "revenue_micros": summary.revenue_micros,
            "bids": summary.jobs,
            "admitted": summary.admitted,
            "dual_bound_micros": figures.dual_bound_micros,
            "wall_s": self.wall_s,
            "solver_s": summary.solve_s,
            "solves": summary.solves,
            # As in the paper for Titan: all the solver's time, over the tasks.
            "decision_s": (self.bids_s + self.solves_s + summary.solve_s) / max(summary.jobs, 1),
            **({} if figures.proven_ratio is None else {"proven_ratio": figures.proven_ratio}),
        }


class Stopwatch:
    """Folds events into a cell, and measures the time of each type of event."""

    def __init__(self) -> None:
        self.seconds: defaultdict[type, float] = defaultdict(float)

    def fold(self, cell: Cell, event: LedgerEvent) -> list[Decision]:
        """Call `Cell.handle`, timed."""
        start_s = time.perf_counter()
        decisions = cell.handle(event)
        self.seconds[type(event.envelope.event)] += time.perf_counter() - start_s
        return decisions


def simulate_day(
    setting: PaperSetting, seed: int, policy_of: Callable[[PdftspPolicy], PolicySettings]
) -> Day:
    """Run a day of a setting until all its inputs are handled and its jobs are over.

    Args:
        policy_of: returns the policy of the zone for the declared one of the setting.

    Raises:
        CommandError: the admitted plans violate problem P, or a solver found nothing in its time: such a day
            would be unfair.
    """
    cell, workload = draw(setting, seed)
    return _simulate(cell, workload.inputs(cell.epoch_s), policy_of)


def second_day_micros(
    before: SeededSetting, day: SeededSetting, policy_of: Callable[[PdftspPolicy], PolicySettings]
) -> int:
    """Return the realised welfare of a day whose ledger begins with the slots of another one.

    The measured day begins after one calendar day, so that its hours have their tariff, and the other one
    ends there. No deadline is after the last slot of its day. So the other day is decided as without the
    measured one, and the welfare of a run of it alone is subtracted.

    Raises:
        CommandError: as for `simulate_day`.
    """
    cell, measured = draw(*day)
    _, other = draw(*before)
    later_s = _DAY_S * math.ceil(day[0].slots * cell.slot_s / _DAY_S)
    earlier = _moved(other, later_s - before[0].slots * cell.slot_s, "before-")
    inputs = [*earlier, *_moved(measured, later_s, "")]
    both, alone = (_simulate(cell, each, policy_of).summary for each in (inputs, earlier))
    return (
        both.part(AuctionFigures).realised_welfare_micros - alone.part(AuctionFigures).realised_welfare_micros
    )


def _moved(workload: AuctionWorkload, later_s: float, prefix: str) -> list[TimedEvent[Event]]:
    """Return the inputs of a workload, later in time, with a prefix before the ids of jobs."""
    return [
        *(TimedEvent(later_s, quote) for quote in workload.quotes),
        *(
            TimedEvent(
                timed.time_s + later_s,
                timed.event.model_copy(
                    update={
                        "job_id": f"{prefix}{timed.event.job_id}",
                        "terms": _moved_terms(timed.event, later_s),
                    }
                ),
            )
            for timed in workload.jobs
        ),
    ]


def _moved_terms(bid: JobSubmitted, later_s: float) -> BidTerms:
    assert isinstance(bid.terms, BidTerms)
    return bid.terms.model_copy(update={"deadline_s": bid.terms.deadline_s + later_s})


def _simulate(
    cell: CellConfigured,
    inputs: Sequence[TimedEvent[Event]],
    policy_of: Callable[[PdftspPolicy], PolicySettings],
) -> Day:
    (zone,) = cell.zones
    assert isinstance(zone.policy, PdftspPolicy)
    cell = with_policy(cell, policy_of(zone.policy))
    watch = Stopwatch()
    start_s = time.perf_counter()
    run = Simulation(cell, inputs, fold=watch.fold).run()
    wall_s = time.perf_counter() - start_s
    check_plans(run)
    summary = summarise(Board.of(cell.cell, run.ledger, run.decisions))
    if unanswered := summary.solves_without_solution:
        raise CommandError(f"{unanswered} of {summary.solves} solves found no plan in time")
    return Day(run, summary, wall_s, watch.seconds[JobSubmitted], watch.seconds[SolveFinished])


def hindsight_of(cell: CellConfigured, workload: AuctionWorkload) -> Instance:
    """Return the instance of the cell's ledger of this day. It does not depend on executors' reports, and on
    its policy only by whether quotas are even."""
    (instance,) = instances_of(_events(cell, workload)).values()
    return instance


def _events(cell: CellConfigured, workload: AuctionWorkload) -> Iterator[Event]:
    """Yield configuration, quotes, and the bids by time, each after the tick of its slot."""
    yield cell
    yield from workload.quotes
    time_s = -1.0
    for timed in workload.jobs:
        if timed.time_s > time_s:
            time_s = timed.time_s
            yield ClockTicked(cell=cell.cell, time_s=time_s)
        yield timed.event
