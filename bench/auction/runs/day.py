"""One day of a setting under one contender: the cell itself, on virtual time, with its plans checked.

Whether the plans satisfy problem P is checked from the ledger and the decisions, independently of what the
cell says it has reserved: the instance is rebuilt from the events alone.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.workloads.cell import with_policy
from bench.workloads.paper import PaperSetting, draw
from infra.errors import CommandError
from infra.simulation.simulator import SimulatedRun, Simulation
from infra.views.auction.figures import AuctionFigures
from infra.views.board import Board
from infra.views.summary import Summary, summarise
from infra.workloads.timed import TimedEvent
from schemas.auction.evidence import JobReplanned, evidence_of
from schemas.auction.settings import AuctionPolicy
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.codec import Decision
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded
from schemas.jobs import JobSubmitted
from schemas.kind import PolicySettings
from schemas.solves import SolveFinished
from solvers.auction.market.fleet import Calendar
from solvers.auction.market.market import Placement
from solvers.auction.market.window import VendorOption
from solvers.auction.offline.feasibility import broken_plans, overfull_node_slots
from solvers.auction.offline.hindsight import instances_of
from solvers.auction.offline.instance import Instance, PlannedTask
from streams.cell.cell import Cell, LedgerEvent


def check_plans(run: SimulatedRun) -> None:
    """Refuse a run with any fault.

    Raises:
        CommandError: with the first.
    """
    if found := faults(run):
        raise CommandError(f"{len(found)} violations of problem P by admitted plans, the first: {found[0]}")


def faults(run: SimulatedRun) -> list[str]:
    """Every violation of constraints 4a to 4g, and every plan that had to be changed, one line each.

    A job that is done before its plan is over frees the node-slots that are left, and others may take them:
    so each plan must do its work as it was admitted (4a to 4e), and no node-slot may hold too much (4f, 4g)
    of plans as far as they ran. Executors that keep pace give no reason to plan again.
    """
    events = [entry.envelope.event for entry in run.ledger]
    cell = next(event for event in events if isinstance(event, CellConfigured))
    calendar = Calendar(cell.epoch_s, cell.slot_s)
    found: list[str] = []
    for zone, instance in instances_of(events).items():
        plans = _AdmittedPlans(zone, instance, calendar)
        for decision in run.decisions:
            found += plans.take(decision.outcome, decision.time_s)
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

    def take(self, outcome: object, time_s: float | None) -> list[str]:
        """Follow a decision; what is wrong with it on its face."""
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
        # A vendor that the task was not offered is none of its options, which 4a finds.
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
        """A job needed nothing after this slot."""
        plan = self.ran[job_id]
        held = [(slot, row) for slot, row in plan.placement.node_slots() if slot <= last_slot]
        placement = Placement(tuple(slot for slot, _ in held), tuple(row for _, row in held))
        self.ran[job_id] = replace(plan, placement=placement)


@dataclass(frozen=True)
class Day:
    """What came of it."""

    run: SimulatedRun
    summary: Summary
    wall_s: float
    """Of the whole simulation: bids, executors' reports, ticks and hashing."""
    bids_s: float
    """In the cell, with bids."""
    solves_s: float
    """In the cell, with solvers' answers: the solvers' own time is the summary's."""

    def values(self) -> dict[str, float]:
        """What a row keeps."""
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
            # As the paper counts Titan's: all its solver's time, over the tasks.
            "decision_s": (self.bids_s + self.solves_s + summary.solve_s) / max(summary.jobs, 1),
            **({} if figures.proven_ratio is None else {"proven_ratio": figures.proven_ratio}),
        }


class Stopwatch:
    """Folds events into a cell, and knows how long each kind took."""

    def __init__(self) -> None:
        self.seconds: defaultdict[type, float] = defaultdict(float)

    def fold(self, cell: Cell, event: LedgerEvent) -> list[Decision]:
        """`Cell.handle`, timed."""
        start_s = time.perf_counter()
        decisions = cell.handle(event)
        self.seconds[type(event.envelope.event)] += time.perf_counter() - start_s
        return decisions


def simulate_day(
    setting: PaperSetting, seed: int, policy_of: Callable[[AuctionPolicy], PolicySettings]
) -> Day:
    """Run a day of a setting.

    Args:
        policy_of: makes the policy of the zone from the one that the setting's operator declares.

    Raises:
        CommandError: the plans that were admitted violate problem P, or a solver found nothing in its time:
            a day on which it did is no fair one.
    """
    cell, workload = draw(setting, seed)
    return simulate(cell, workload.inputs(cell.epoch_s), policy_of)


def simulate(
    cell: CellConfigured,
    inputs: Sequence[TimedEvent[Event]],
    policy_of: Callable[[AuctionPolicy], PolicySettings],
) -> Day:
    """Run a cell of one zone until all that it is asked is over.

    Raises:
        CommandError: as for `simulate_day`.
    """
    (zone,) = cell.zones
    assert isinstance(zone.policy, AuctionPolicy)
    cell = with_policy(cell, policy_of(zone.policy))
    watch = Stopwatch()
    start_s = time.perf_counter()
    run = Simulation(cell, inputs, fold=watch.fold).run()
    wall_s = time.perf_counter() - start_s
    check_plans(run)
    summary = summarise(Board.of(cell.cell, (entry.envelope for entry in run.ledger), run.decisions))
    if unanswered := summary.solves_without_solution:
        raise CommandError(f"{unanswered} of {summary.solves} solves found no plan in time")
    return Day(run, summary, wall_s, watch.seconds[JobSubmitted], watch.seconds[SolveFinished])
