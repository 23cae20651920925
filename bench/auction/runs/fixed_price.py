"""The price of the fixed-price contender: the best of a few, tried on the day before."""

from dataclasses import replace

from bench.auction.runs.day import simulate_day
from bench.auction.runs.day_before import day_before
from bench.workloads.cell import SLOT_S
from bench.workloads.paper import PaperSetting
from bench.workloads.tasks import FASTEST
from bench.workloads.throughput import node_samples_per_s
from bench.workloads.vendors import UNIT_MICROS
from schemas.policies import FixedPricePolicy

QUANTILES = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9)
"""Of the declared density of value, at which prices are tried: from hardly above free, to where one user in
ten buys."""
SHRUNK = 4
"""The best price hardly depends on the size of a fleet, so a large one is tried so many times smaller."""
LEAST_NODES = 10


def tuned_price_micros(setting: PaperSetting, seed: int) -> int:
    """The price per thousand samples that would have brought the most welfare the day before; ties low."""
    thousands_per_node_slot = node_samples_per_s(FASTEST) * SLOT_S / 1_000
    prices = [
        round(UNIT_MICROS * setting.density.quantile(part) / thousands_per_node_slot) for part in QUANTILES
    ]
    before, seed_before = day_before(setting, seed)
    tried = _smaller(before) if setting.nodes >= SHRUNK * LEAST_NODES else before
    return max(prices, key=lambda price: (_welfare_micros(tried, seed_before, price), -price))


def _smaller(setting: PaperSetting) -> PaperSetting:
    """Fewer nodes, and as many fewer tasks."""
    trace = setting.trace and replace(setting.trace, jobs=max(setting.trace.jobs // SHRUNK, 1))
    return replace(
        setting,
        nodes=setting.nodes // SHRUNK,
        arrivals_per_slot=setting.arrivals_per_slot / SHRUNK,
        trace=trace,
    )


def _welfare_micros(setting: PaperSetting, seed: int, price_micros: int) -> int:
    policy = FixedPricePolicy(kind="fixed_price", price_per_thousand_samples_micros=price_micros)
    return simulate_day(setting, seed, lambda _: policy).summary.realised_welfare_micros
