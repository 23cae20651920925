"""What the best schedule of a setting's day brings in hindsight: exactly for small days, else a bound."""

from bench.auction.runs.hindsight import hindsight_of
from bench.workloads.paper import PaperSetting
from solvers.auction.clearing import clearing_prices
from solvers.auction.offline import offline_optimum

TIME_LIMIT_S = 600.0
RELATIVE_GAP = 0.01
ROUNDS = 20
"""Enough for the value of the dual to come within some percent of its least."""


def measure_optimum(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Welfare of the best plans found, the bound that none exceeds, and the gap between them."""
    instance = hindsight_of(setting, seed)
    solution = offline_optimum(instance, TIME_LIMIT_S, RELATIVE_GAP)
    return {
        "welfare_micros": solution.welfare_micros,
        "bound_micros": solution.bound_micros,
        # Infinite where no plan was found, which JSON cannot say.
        "gap": min(solution.gap, 1e9),
        "wall_s": solution.seconds,
        "bids": len(instance.tasks),
    }


def measure_clearing_bound(setting: PaperSetting, seed: int) -> dict[str, float]:
    """What no plans exceed, by the prices that clear the day's market: the value of a point of the dual."""
    return {"bound_micros": clearing_prices(hindsight_of(setting, seed), ROUNDS).bound_micros}
