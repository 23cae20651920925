"""One day of a setting under one contender: the cell itself, on virtual time, with its plans checked."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bench.auction.runs.plans import check_plans
from bench.workloads.paper import PaperSetting, draw
from infra.errors import CommandError
from infra.simulation.simulator import SimulatedRun, Simulation
from infra.summary import Summary, summarise
from schemas.codec import Decision
from schemas.jobs import JobSubmitted
from schemas.policies import AuctionPolicy, Policy
from schemas.solves import SolveFinished
from streams.cell import Cell, LedgerEvent


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
        summary = self.summary
        return {
            "welfare_micros": summary.realised_welfare_micros,
            "planned_welfare_micros": summary.planned_welfare_micros,
            "revenue_micros": summary.revenue_micros,
            "bids": summary.bids,
            "admitted": summary.admitted,
            "dual_bound_micros": summary.dual_bound_micros,
            "utilisation": summary.utilisation,
            "wall_s": self.wall_s,
            "solver_s": summary.solve_s,
            "solves": summary.solves,
            # As the paper counts Titan's: all its solver's time, over the tasks.
            "decision_s": (self.bids_s + self.solves_s + summary.solve_s) / max(summary.bids, 1),
            **({} if summary.proven_ratio is None else {"proven_ratio": summary.proven_ratio}),
        }


class Stopwatch:
    """Folds events into a cell, and knows how long each kind took."""

    def __init__(self) -> None:
        self.seconds: Counter[type] = Counter()

    def fold(self, cell: Cell, event: LedgerEvent) -> list[Decision]:
        """`Cell.handle`, timed."""
        start_s = time.perf_counter()
        decisions = cell.handle(event)
        self.seconds[type(event.envelope.event)] += time.perf_counter() - start_s
        return decisions


def simulate_day(setting: PaperSetting, seed: int, policy_of: Callable[[AuctionPolicy], Policy]) -> Day:
    """Run a day of a setting.

    Args:
        policy_of: makes the policy of the zone from the one that the setting's operator declares.

    Raises:
        CommandError: the plans that were admitted violate problem P, or a solver found nothing in its time:
            a day on which it did is no fair one.
    """
    cell, workload = draw(setting, seed)
    (zone,) = cell.zones
    assert isinstance(zone.policy, AuctionPolicy)
    zone = zone.model_copy(update={"policy": policy_of(zone.policy)})
    cell = cell.model_copy(update={"zones": (zone,)})
    watch = Stopwatch()
    start_s = time.perf_counter()
    run = Simulation(cell, workload.bids, workload.quotes, fold=watch.fold).run()
    wall_s = time.perf_counter() - start_s
    check_plans(run)
    summary = summarise((entry.envelope.event for entry in run.ledger), run.decisions)
    if summary.solves_without_plans:
        raise CommandError(f"{summary.solves_without_plans} of {summary.solves} solves found no plan in time")
    return Day(run, summary, wall_s, watch.seconds[JobSubmitted], watch.seconds[SolveFinished])
