"""The trials of the suite `auction`: a setting, a seed, and the measurement of that day."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType
from typing import Any

from bench.auction.runs.contenders import CONTENDERS, TITAN_TIME_LIMIT_S
from bench.auction.runs.day import simulate_day
from bench.auction.runs.hindsight import measure_clearing_bound, measure_optimum
from bench.auction.runs.later_days import FOURTH_DAY, KINDS_BEFORE, default_fourth_day, default_second_day
from bench.workloads.arrivals import TraceArrivals
from bench.workloads.paper import PaperSetting
from schemas.auction.batches import BatchProblem
from schemas.auction.settings import TitanPolicy
from schemas.solves import SolveRequested
from solvers.auction.baselines.titan import MAX_VARIABLES, instance_of, pruned
from solvers.auction.offline.schedule_free import solve_schedule_free
from streams.worker.kernels import warm_up as warm_up_cells

_BASE = PaperSetting()
_SMALL = PaperSetting(nodes=2, slots=6, arrivals_per_slot=4.0, work_scale=0.05)


@dataclass(frozen=True)
class AuctionTrial:
    """One measurement to run."""

    setting: PaperSetting
    seed: int
    contender: str
    """Name in `MEASURES`."""
    alone: bool = False
    """Whether no other run may be parallel, because its times are measured."""

    @property
    def setting_name(self) -> str:
        """Name of the setting."""
        return setting_name(self.setting)

    def identity(self) -> dict[str, Any]:
        """Return JSON values that, with the sources, determine the outcome."""
        return {"setting": self.setting_name, "seed": self.seed, "contender": self.contender}

    def __str__(self) -> str:
        return f"{self.setting_name}, seed {self.seed}, {self.contender}"


def setting_name(setting: PaperSetting) -> str:
    """Return the differences of a setting from the base, in a stable order. They identify outcomes."""
    differing = (
        f"{field.name}={_text(getattr(setting, field.name))}"
        for field in fields(setting)
        if getattr(setting, field.name) != getattr(_BASE, field.name)
    )
    return " ".join(differing) or "base"


def _text(value: Any) -> str:
    # A trace is identified by its file's name and content, wherever the file is.
    if isinstance(value, TraceArrivals):
        return f"{value.path.name}/{value.jobs}/{value.digest}"
    return str(value).replace(" ", "")


EVERY = 12
"""Interval of the batches that Titan's program solves again, beginning with the first."""
RELATIVE_GAP = 1e-4
"""HiGHS's default."""


def measure_titan_program(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Measure a day under `titan`, and the seconds per bid of the paper's program on some of its batches.

    The contender `titan` ends a solve as soon as its plans are proven good enough, which needs no program if
    there is room for all bids. The paper solves every batch by the program, to the end or its limit.

    Raises:
        CommandError: the day's plans violate problem P.
    """
    day = simulate_day(setting, seed, lambda declared: CONTENDERS["titan"](declared, setting, seed))
    outcomes = (decision.outcome for decision in day.run.decisions)
    problems = [outcome.problem for outcome in outcomes if isinstance(outcome, SolveRequested)]
    batches = [problem for problem in problems if isinstance(problem, BatchProblem)][::EVERY]
    solutions = [
        solve_schedule_free(pruned(instance_of(batch), MAX_VARIABLES), TITAN_TIME_LIMIT_S, RELATIVE_GAP)
        for batch in batches
    ]
    bids = sum(len(batch.bids) for batch in batches)
    return {
        **day.values(),
        "program_solves": len(solutions),
        "program_proven": sum(solution.status == "optimal" for solution in solutions),
        "program_bids": bids,
        "program_s_per_bid": sum(solution.seconds for solution in solutions) / max(bids, 1),
    }


Measure = Callable[[PaperSetting, int], dict[str, float]]
"""Function of (setting, seed) that returns values by name."""

OPTIMUM = "offline optimum"
CLEARING_BOUND = "clearing bound"
TITANS_PROGRAM = "titan's program"


def _day(contender: str, setting: PaperSetting, seed: int) -> dict[str, float]:
    policy_of = CONTENDERS[contender]
    return simulate_day(setting, seed, lambda declared: policy_of(declared, setting, seed)).values()


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        **{name: partial(_day, name) for name in CONTENDERS},
        **{name: partial(default_second_day, kind) for name, kind in KINDS_BEFORE.items()},
        FOURTH_DAY: default_fourth_day,
        OPTIMUM: measure_optimum,
        CLEARING_BOUND: measure_clearing_bound,
        TITANS_PROGRAM: measure_titan_program,
    }
)


def run_trial(trial: AuctionTrial) -> Mapping[str, float]:
    """Run a trial's measurement.

    Raises:
        CommandError: admitted plans violate problem P.
    """
    return MEASURES[trial.contender](trial.setting, trial.seed)


def warm_up() -> None:
    """Run the smallest trial of each kind, so that no trial waits for a compiler."""
    warm_up_cells()
    simulate_day(_SMALL, 0, lambda _declared: TitanPolicy(kind="titan"))
    measure_clearing_bound(_SMALL, 0)
