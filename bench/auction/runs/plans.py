"""Whether the plans that a simulated cell admitted satisfy problem P, told from its ledger and its decisions.

They are not what the cell says it has reserved: the instance is made again from the events alone.
"""

from dataclasses import dataclass, replace

from infra.errors import CommandError
from infra.simulation.simulator import SimulatedRun
from schemas.cells import CellConfigured
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded, JobReplanned
from solvers.auction.calendar import Calendar
from solvers.auction.feasibility import broken_plans, overfull_cells
from solvers.auction.hindsight import instances_of
from solvers.auction.instance import Instance, PlannedTask
from solvers.auction.market import Placement
from solvers.auction.window import VendorOption


def check_plans(run: SimulatedRun) -> None:
    """Refuse a run with any fault.

    Raises:
        CommandError: with the first.
    """
    if found := faults(run):
        raise CommandError(f"{len(found)} violations of problem P by admitted plans, the first: {found[0]}")


def faults(run: SimulatedRun) -> list[str]:
    """Every violation of constraints 4a to 4g, and every plan that had to be changed, one line each.

    A job that is done before its plan is over frees the cells that are left, and others may take them: so
    each plan must do its work as it was admitted (4a to 4e), and no cell may hold too much (4f, 4g) of plans
    as far as they ran. Executors that keep pace give no reason to plan again.
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
        found += overfull_cells(instance, list(plans.ran.values()))
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
        plan = outcome.offer.plan
        if plan is None or outcome.job_id not in self._options:
            return [f"job {outcome.job_id}: admitted without a plan, or without a bid that could win"]
        # A vendor that the task was not offered is none of its options, which 4a finds.
        option = next(
            (option for option in self._options[outcome.job_id] if option.vendor == plan.vendor),
            VendorOption(plan.vendor, 0, 0),
        )
        row_of = self.instance.fleet.row_of
        slots = tuple(slot for slot, _ in plan.cells)
        placement = Placement(slots, tuple(row_of[node] for _, node in plan.cells))
        planned = PlannedTask(outcome.job_id, option, placement)
        self.admitted[outcome.job_id] = self.ran[outcome.job_id] = planned
        return []

    def _stop(self, job_id: str, last_slot: int) -> None:
        """A job needed nothing after this slot."""
        plan = self.ran[job_id]
        cells = [(slot, row) for slot, row in plan.placement.cells() if slot <= last_slot]
        placement = Placement(tuple(slot for slot, _ in cells), tuple(row for _, row in cells))
        self.ran[job_id] = replace(plan, placement=placement)
