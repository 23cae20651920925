"""The cell of the evaluation: its nodes, tariff and declared bounds."""

from dataclasses import dataclass
from typing import Literal

from bench.workloads.tasks import ValueDensity, mean_compute_over_memory
from bench.workloads.throughput import BASE_MEMORY_GIB, MEMORY_GIB, POWER_KW, node_samples_per_s
from bench.workloads.vendors import UNIT_MICROS, vendor_name
from schemas.auction.settings import AuctionPolicy
from schemas.base import HOURS_PER_DAY
from schemas.cells import (
    MAX_REMEMBERED_IDS,
    CellConfigured,
    GpuType,
    Node,
    Tariff,
    Zone,
)
from schemas.kind import PolicySettings

CELL = "paper"
ZONE = "gpt2"
SLOT_S = 600.0
NODE_TIMEOUT_S = 86_400.0
"""No node fails here; heartbeats of a day would only fill the ledger."""

NIGHT_UNITS_PER_KWH = 10.0
DAY_UNITS_PER_KWH = 20.0
DAY_HOURS = range(8, 20)
"""Ordinary prices of energy, if a unit is a cent. A full A100 then costs 1.0 units per node-slot on average,
a tenth of the median user's value."""

Gpus = Literal["A100", "A40", "mixed"]


def types_of_nodes(gpus: Gpus, nodes: int) -> tuple[str, ...]:
    """Return the GPU type of each node; a mixed fleet alternates its types."""
    types = types_of(gpus)
    return tuple(types[number % len(types)] for number in range(nodes))


def types_of(gpus: Gpus) -> tuple[str, ...]:
    """Return the GPU types of a fleet."""
    return ("A100", "A40") if gpus == "mixed" else (gpus,)


@dataclass(frozen=True)
class PolicyBounds:
    """Quantiles of the declared value density that the operator uses as bounds (erratum P4).

    Lemma 2, by the letter, needs a money unit below nearly all bids and a bound above nearly all. Prices then
    rise so fast that a tenth of the bids is admitted and most of the fleet idles. With the median for both, a
    node-slot filled by winners of b-bar 1 ends at 1.7 times the bound, and one filled by better winners at
    more: docs/results/auction.md has the alternatives that were tried.
    """

    money_unit_quantile: float = 0.5
    """Quantile for the money unit, in which Lemma 2 assumes b-bar >= 1: here not all bids satisfy it."""
    value_quantile: float = 0.5
    """Quantile for the bound on value per resource, which over the money unit yields alpha and beta."""
    density_quantile: float = 0.99
    """Quantile for the density beyond which a bid raises prices no further."""


def configuration(
    nodes: int, gpus: Gpus, slots: int, vendors: int, density: ValueDensity, bounds: PolicyBounds
) -> CellConfigured:
    """Return a cell of one zone. Its epoch is midnight of 1970-01-01."""
    tariff = tuple(
        round(UNIT_MICROS * (DAY_UNITS_PER_KWH if hour in DAY_HOURS else NIGHT_UNITS_PER_KWH))
        for hour in range(HOURS_PER_DAY)
    )
    return CellConfigured(
        cell=CELL,
        epoch_s=0.0,
        slot_s=SLOT_S,
        node_timeout_s=NODE_TIMEOUT_S,
        # The most that a cell of one zone can hold: no report of the day is removed.
        duplicate_window_events=MAX_REMEMBERED_IDS // 2,
        tariffs=(Tariff(name="site", micros_per_kwh=tariff),),
        zones=(
            Zone(
                id=ZONE,
                base_model="gpt2",
                base_model_memory_gib=BASE_MEMORY_GIB,
                horizon_slots=slots,
                gpu_types=tuple(
                    GpuType(
                        name=name,
                        samples_per_s=node_samples_per_s(name),
                        memory_gib=MEMORY_GIB[name],
                        power_kw=POWER_KW[name],
                    )
                    for name in types_of(gpus)
                ),
                nodes=tuple(
                    Node(id=f"node-{number:04d}", gpu_type=gpu_type, tariff="site")
                    for number, gpu_type in enumerate(types_of_nodes(gpus, nodes))
                ),
                policy=_policy(density, bounds),
            ),
        ),
        vendors=tuple(vendor_name(number) for number in range(vendors)),
    )


def _policy(density: ValueDensity, bounds: PolicyBounds) -> AuctionPolicy:
    """Compute the bounds from the declared distribution, never from the drawn bids (erratum P4)."""
    per_compute = density.quantile(bounds.value_quantile)
    unit = density.quantile(bounds.money_unit_quantile)
    return AuctionPolicy(
        money_unit_micros=round(UNIT_MICROS * unit),
        max_value_per_compute_micros=round(UNIT_MICROS * per_compute),
        max_value_per_memory_micros=round(UNIT_MICROS * per_compute * mean_compute_over_memory()),
        max_density_units=density.quantile(bounds.density_quantile) / unit,
    )


def with_policy(cell: CellConfigured, policy: PolicySettings) -> CellConfigured:
    """Return a cell of one zone with another policy."""
    (zone,) = cell.zones
    return cell.model_copy(update={"zones": (zone.model_copy(update={"policy": policy}),)})
