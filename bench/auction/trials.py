"""The trials of the suite `auction`: a setting, a seed, and the measurement of that day under a contender.

Contenders are policies derived from the declared one, or learned from the day before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from bench.auction.clearing import clearing_prices
from bench.auction.day import hindsight_of, second_day_micros, simulate_day
from bench.workloads.arrivals import JobsBefore, TraceArrivals
from bench.workloads.paper import SLOT_S, PaperSetting, draw, with_policy
from bench.workloads.tasks import FASTEST, UNIT_MICROS
from infra.figures.auction.figures import AuctionFigures
from schemas.auction.batches import BatchProblem
from schemas.auction.settings import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    OpeningPrices,
    PdftspPolicy,
    TitanPolicy,
)
from schemas.kind import PolicySettings
from schemas.solves import SolveRequested
from solvers.auction.baselines.titan import MAX_VARIABLES, instance_of, pruned
from solvers.auction.forecast import forecast_opening_prices
from solvers.auction.market.fleet import Calendar
from solvers.auction.offline.instance import Instance
from solvers.auction.offline.schedule_free import offline_optimum, solve_schedule_free
from streams.worker.kernels import warm_up as warm_up_cells

APART = 1_000_000
"""Far beyond the seeds of measured days."""


def day_before(setting: PaperSetting, seed: int) -> tuple[PaperSetting, int]:
    """Return the setting and the seed of the day before that of `seed`.

    All of it has a seed of its own, except that real arrivals are the jobs directly before the measured ones.
    """
    if isinstance(setting.trace, TraceArrivals):
        setting = replace(setting, trace=JobsBefore(setting.trace, seed, setting.trace.jobs))
    return setting, APART + seed


def forecast(setting: PaperSetting, seed: int) -> tuple[OpeningPrices, ...]:
    """Compute opening prices for a day of a setting, from the day before it."""
    return forecast_opening_prices(hindsight_of(*draw(*day_before(setting, seed))), Calendar(0.0, SLOT_S))


QUANTILES = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9)
"""Quantiles of the declared value density at which prices are tried: from almost free, to a price that one
user in ten pays."""
SHRUNK = 4
"""Factor by which a large fleet is reduced for the trials: the best price hardly depends on the size."""
LEAST_NODES = 10


def tuned_price_micros(setting: PaperSetting, seed: int) -> int:
    """Return the price per thousand samples with the most welfare on the day before; the lower one of a
    tie."""
    thousands_per_node_slot = setting.throughput.node_samples_per_s(FASTEST) * SLOT_S / 1_000
    prices = [
        round(UNIT_MICROS * setting.density.quantile(part) / thousands_per_node_slot) for part in QUANTILES
    ]
    before, seed_before = day_before(setting, seed)
    tried = _smaller(before) if setting.nodes >= SHRUNK * LEAST_NODES else before
    return max(prices, key=lambda price: (_welfare_micros(tried, seed_before, price), -price))


def _smaller(setting: PaperSetting) -> PaperSetting:
    """Return a setting with fewer nodes, and tasks in proportion."""
    trace = setting.trace and replace(setting.trace, jobs=max(setting.trace.jobs // SHRUNK, 1))
    return replace(
        setting,
        nodes=setting.nodes // SHRUNK,
        arrivals_per_slot=setting.arrivals_per_slot / SHRUNK,
        trace=trace,
    )


def _welfare_micros(setting: PaperSetting, seed: int, price_micros: int) -> int:
    day = simulate_day(setting, seed, lambda _: _at_price(price_micros))
    return day.summary.part(AuctionFigures).realised_welfare_micros


def _at_price(price_micros: int) -> FixedPricePolicy:
    return FixedPricePolicy(kind="fixed_price", price_per_thousand_samples_micros=price_micros)


Contender = Callable[[PdftspPolicy, PaperSetting, int], PolicySettings]
"""Function of (declared policy, setting, seed) that returns a policy."""

TITAN_TIME_LIMIT_S = 60.0
"""Time per slot, after which the best plans found count; a solve ends sooner if plans are proven within 1 %
of the best."""

PUBLISHED = MappingProxyType({"payment": "published", "order": "published", "search": "published"})
"""The auction as published; all its other options have their defaults already."""
IMPROVEMENTS = MappingProxyType(
    {"payment": "critical", "order": "room_first", "search": "exact", "steepness": "learned"}
)
"""Options in which the auction at its best differs from its published form, besides opening prices from a
forecast."""


def _at_best(declared: PdftspPolicy, setting: PaperSetting, seed: int) -> PolicySettings:
    return declared.model_copy(update={**IMPROVEMENTS, "opening_prices": forecast(setting, seed)})


def _fixed_price(declared: PdftspPolicy, setting: PaperSetting, seed: int) -> PolicySettings:  # noqa: ARG001
    return _at_price(tuned_price_micros(setting, seed))


def _forecast_alone(_declared: PdftspPolicy, setting: PaperSetting, seed: int) -> PolicySettings:
    return PdftspPolicy(kind="pdftsp", opening_prices=forecast(setting, seed))


DEFAULT, DECLARED, LEARNED, FORECAST = "default", "declared", "learned", "forecast"

CONTENDERS: Mapping[str, Contender] = MappingProxyType(
    {
        DEFAULT: lambda *_: AuctionPolicy(),
        "pdftsp": _at_best,
        DECLARED: lambda declared, *_: declared,
        LEARNED: lambda *_: PdftspPolicy(kind="pdftsp"),
        FORECAST: _forecast_alone,
        "published": lambda declared, *_: declared.model_copy(update=PUBLISHED),
        "titan": lambda *_: TitanPolicy(kind="titan", time_limit_s=TITAN_TIME_LIMIT_S),
        "eft": lambda *_: EarliestFinishPolicy(kind="eft"),
        "ntm": lambda *_: NoMergingPolicy(kind="ntm"),
        "fixed_price": _fixed_price,
    }
)


_OPTIMUM_LIMIT_S = 600.0
_OPTIMUM_GAP = 0.01
ROUNDS = 20
"""Enough for the value of the dual to be within some per cent of its least."""


def measure_optimum(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Return the welfare of the best plans found, its upper bound, and the gap between them, for the auction
    with nothing declared."""
    instance = _undeclared(setting, seed)
    solution = offline_optimum(instance, _OPTIMUM_LIMIT_S, _OPTIMUM_GAP)
    return {
        "welfare_micros": solution.welfare_micros,
        "bound_micros": solution.bound_micros,
        # Infinite if no plan was found, which JSON cannot express.
        "gap": min(solution.gap, 1e9),
        "wall_s": solution.seconds,
        "bids": len(instance.tasks),
    }


def measure_clearing_bound(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Return an upper bound on the welfare of the auction with nothing declared, by the prices that clear the
    day's market: the value of a point of the dual."""
    return {"bound_micros": clearing_prices(_undeclared(setting, seed), ROUNDS).bound_micros}


def _undeclared(setting: PaperSetting, seed: int) -> Instance:
    cell, workload = draw(setting, seed)
    return hindsight_of(with_policy(cell, AuctionPolicy()), workload)


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
SECOND_DAY = f"{DEFAULT}, second day"
"""The auction with nothing declared, with the day before in its ledger."""


def _day(contender: str, setting: PaperSetting, seed: int) -> dict[str, float]:
    policy_of = CONTENDERS[contender]
    return simulate_day(setting, seed, lambda declared: policy_of(declared, setting, seed)).values()


def measure_second_day(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Return the welfare of a day under the auction whose ledger has the day before."""
    return {
        "welfare_micros": second_day_micros(
            day_before(setting, seed), (setting, seed), lambda _: AuctionPolicy()
        )
    }


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        **{name: partial(_day, name) for name in CONTENDERS},
        OPTIMUM: measure_optimum,
        CLEARING_BOUND: measure_clearing_bound,
        TITANS_PROGRAM: measure_titan_program,
        SECOND_DAY: measure_second_day,
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
