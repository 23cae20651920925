"""Model of a service: decisions of the serving code, with times calculated from measured costs.

For sizes that do not fit on one machine. Its results are marked as those of a model. A layer is its gating
network, phase two of scheduling, an all-to-all to the experts, their computation, and an all-to-all back
(thesis, sections 4.2.1 and 4.7.3.1). Phase one and the weights that it swaps in are hidden behind the
computation of the previous layer, as far as that lasts (section 4.6.2).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from bench.moe.inference_rank import HIDDEN
from executors.moe.serving.phases import LayerLayout, StandingPlacement
from executors.moe.serving.profiling import History, forecast_of, is_as_forecast, without_forecast
from executors.moe.serving.slots import spread_evenly
from schemas.experts.workload import PUBLISHED_PATH_LENGTH, PUBLISHED_PER_DEVICE
from solvers.compiled import Ints
from solvers.experts.paths import PathProfile
from solvers.experts.placement import DeviceGroup, ExpertDemand
from solvers.experts.schemes import NEVER, SCHEMES
from solvers.experts.splitting import device_loads, sends

_BYTES_PER_NUMBER = 4
_DECISIONS = 9


@dataclass(frozen=True)
class LayerCosts:
    """Costs measured on the modelled devices, in seconds where not stated otherwise.

    Attributes:
        token_bytes: size of a token in an all-to-all.
        link_bytes_per_s: rate at which each device sends, and receives at the same time.
        all_to_all_s: fixed time of an all-to-all.
        expert_s: fixed time of each expert with tokens on a device: experts run one after another.
        token_s: time of an expert for each token.
        swap_s: time to load an expert's weights on a device; loads follow one another.
        gate_s: time of the gating network.
        check_s: time of phase two if the placement is kept.
        plan_s: time to make a placement.
    """

    token_bytes: float
    link_bytes_per_s: float
    all_to_all_s: float
    expert_s: float
    token_s: float
    swap_s: float
    gate_s: float
    check_s: float
    plan_s: float


@dataclass(frozen=True)
class LayerStep:
    """Passage of a batch through a layer."""

    total_s: float
    scheduling_s: float
    """Part for scheduling, as far as it is not hidden."""
    as_forecast: bool | None
    """Whether the two most popular experts were as forecast; None without a forecast."""
    is_revised: bool
    load: float
    """Load of the busiest device relative to the mean."""


class ModelledService:
    """One scheme on as many devices as a batch has rows, from batch to batch."""

    def __init__(self, scheme: str, experts: int, devices: int, layers: int, costs: LayerCosts) -> None:
        self._scheme = SCHEMES[scheme]
        self._experts = experts
        self._cluster = DeviceGroup(devices, PUBLISHED_PER_DEVICE)
        self._costs = costs
        self._standing = StandingPlacement.first(experts, self._cluster)
        self._loaded = [self._standing.placement] * layers
        self._history = History(layers, experts)
        self._profile = PathProfile(experts, layers, PUBLISHED_PATH_LENGTH)
        self._forecast = without_forecast(experts)

    def profile(self, batches: Sequence[Ints]) -> None:
        """Run the profile stage.

        Args:
            batches: each (devices, tokens, layers).
        """
        for batch in batches:
            self._profile.add(batch.reshape(-1, batch.shape[2]))
            for layer in range(batch.shape[2]):
                self._history.add(layer, np.bincount(batch[:, :, layer].ravel(), minlength=self._experts))
        self._forecast = forecast_of(self._profile, self._history, self._scheme)

    def serve(self, batch: Ints) -> list[LayerStep]:
        """Serve a batch through all layers.

        Args:
            batch: (devices, tokens, layers) the expert of each token at each layer.
        """
        steps: list[LayerStep] = []
        for layer in range(batch.shape[2]):
            forecast = self._forecast(layer, batch.reshape(-1, batch.shape[2])[:, :layer])
            tokens = np.stack([np.bincount(row, minlength=self._experts) for row in batch[:, :, layer]])
            hidden_s = steps[-1].total_s - steps[-1].scheduling_s if steps else 0.0
            steps.append(self._pass(layer, forecast, tokens, hidden_s))
        return steps

    def _pass(self, layer: int, forecast: ExpertDemand, tokens: Ints, hidden_s: float) -> LayerStep:
        layout = LayerLayout(self._scheme, self._cluster, self._standing, self._loaded[layer])
        planned = layout.plan(forecast)
        counted = tokens.sum(axis=0)
        if self._scheme.balances_gating:
            tokens = spread_evenly(tokens)
        settled = layout.settle(planned, forecast, tokens.sum(axis=0))
        before = self._loaded[layer] if planned is None or not settled.is_revised else planned
        swaps = int((settled.placement.held() & ~before.held()).sum(axis=1).max())
        self._loaded[layer] = settled.placement
        self._history.add(layer, counted)
        is_checked = self._scheme.check is not NEVER
        scheduling_s, swap_s = waits_s(self._costs, settled.is_revised, is_checked, swaps, hidden_s)
        sent = sends(settled.placement, settled.split, tokens)
        busiest = device_loads(settled.split).max() * self._cluster.devices
        return LayerStep(
            total_s=self._costs.gate_s + scheduling_s + swap_s + passing_s(self._costs, settled.split, sent),
            scheduling_s=scheduling_s,
            as_forecast=is_as_forecast(forecast, counted) if forecast.known else None,
            is_revised=settled.is_revised,
            load=float(busiest / max(int(counted.sum()), 1)),
        )


def waits_s(
    costs: LayerCosts, is_revised: bool, is_checked: bool, swaps: int, hidden_s: float
) -> tuple[float, float]:
    """Return the times of scheduling and of swaps that are not hidden.

    Args:
        is_revised: whether the placement was made after the gating network.
        is_checked: whether phase two compares the counts with the forecast.
        swaps: most experts that a device loads.
        hidden_s: computation of the previous layer.
    """
    scheduling_s = costs.check_s if is_checked else 0.0
    swap_s = swaps * costs.swap_s
    if is_revised:
        return scheduling_s + costs.plan_s, swap_s
    late_s = max(0.0, costs.plan_s + swap_s - hidden_s)
    return scheduling_s + max(0.0, late_s - swap_s), min(swap_s, late_s)


def passing_s(costs: LayerCosts, split: Ints, sent: Ints) -> float:
    """Return the time of the experts and of both all-to-alls: the device that sends or receives the most
    decides, and tokens that stay cost nothing.

    Args:
        split: (devices, slots) tokens of each slot.
        sent: (devices, devices, slots) tokens that each device sends to each slot.
    """
    experts_s = (split > 0).sum(axis=1) * costs.expert_s + split.sum(axis=1) * costs.token_s
    pairs = sent.sum(axis=2)
    pairs = pairs - np.diag(np.diag(pairs))
    most = max(int(pairs.sum(axis=0).max()), int(pairs.sum(axis=1).max()))
    all_to_all_s = costs.all_to_all_s + most * costs.token_bytes / costs.link_bytes_per_s
    return float(experts_s.max()) + 2 * all_to_all_s


def batch_s(steps: Sequence[LayerStep]) -> float:
    """Return the time of a batch in all layers."""
    return sum(step.total_s for step in steps)


def layer_costs(measured: Mapping[str, float], experts: int, devices: int) -> LayerCosts:
    """Return the costs of a layer with a number of experts.

    Under every scheme, all ranks exchange their numbers of rows per expert, which an uneven all-to-all needs,
    so that is part of the gate. Decisions are timed here, with the default scheme.

    Args:
        measured: costs of `inference_rank.serve`.
    """
    cluster = DeviceGroup(devices)
    first = StandingPlacement.first(experts, cluster)
    layout = LayerLayout(SCHEMES["balanced"], cluster, first, first.placement)
    tokens = np.arange(1, experts + 1) * devices
    demand = ExpertDemand.of_counts(tokens)
    planned = layout.plan(demand)
    token_bytes = HIDDEN * _BYTES_PER_NUMBER
    return LayerCosts(
        token_bytes=token_bytes,
        link_bytes_per_s=token_bytes / measured["row_s"],
        all_to_all_s=measured["all_to_all_s"],
        expert_s=measured["expert_s"],
        token_s=measured["token_s"],
        swap_s=measured["swap_s"],
        gate_s=measured["dense_s"] + measured["exchange_s"],
        check_s=_median_s(lambda: layout.settle(planned, demand, tokens)),
        plan_s=_median_s(lambda: layout.plan(demand)),
    )


def _median_s(decide: Callable[[], object]) -> float:
    times_s = []
    for _ in range(_DECISIONS):
        began_s = time.perf_counter()
        decide()
        times_s.append(time.perf_counter() - began_s)
    return median(times_s)
