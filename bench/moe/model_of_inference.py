"""A model of a service: decisions of the serving code, with times calculated from measured costs.

For sizes that do not fit on one machine. Its results are marked as those of a model.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from bench.moe.inference_rank import HIDDEN
from bench.moe.routing import counts_of
from bench.moe.timing import LayerCosts, LayerTime, layer_time, loads_to_swap_in
from executors.moe.serving.forecasts import FORECASTS, History, LoadForecast, without_forecast
from executors.moe.serving.phases import LayerLayout, StandingPlacement
from executors.moe.serving.profiling import is_as_forecast
from executors.moe.serving.routes import spread_evenly
from schemas.experts.workload import PUBLISHED_PATH_LENGTH, PUBLISHED_PER_DEVICE
from solvers.compiled import Ints
from solvers.experts.paths import PathProfile
from solvers.experts.placement import DeviceGroup, ExpertDemand
from solvers.experts.schemes import NEVER, SCHEMES
from solvers.experts.splitting import device_loads, sends

_BYTES_PER_NUMBER = 4
_DECISIONS = 9


@dataclass(frozen=True)
class LayerStep:
    """Passage of a batch through a layer."""

    time: LayerTime
    foretold: bool | None
    """Whether the two most popular experts were as estimated; None without an estimate."""
    revised: bool
    load: float
    """Load of the busiest device relative to the mean."""
    loads: int
    """Most experts that a device had to load."""


class ModelledService:
    """One scheme on as many devices as a batch has rows, from batch to batch."""

    def __init__(
        self,
        scheme: str,
        experts: int,
        devices: int,
        layers: int,
        costs: LayerCosts,
        path_length: int = PUBLISHED_PATH_LENGTH,
    ) -> None:
        self._scheme = SCHEMES[scheme]
        self._experts = experts
        self._cluster = DeviceGroup(devices, PUBLISHED_PER_DEVICE)
        self._costs = costs
        first = StandingPlacement.first(experts, self._cluster)
        self._standing = first
        self._loaded = [first.placement] * layers
        self._history = History(layers, experts)
        self._profile = PathProfile(experts, layers, path_length)
        self._forecast: LoadForecast = without_forecast(experts)

    def profile(self, batches: Sequence[Ints]) -> None:
        """Run the profile stage.

        Args:
            batches: each (devices, tokens, layers).
        """
        for batch in batches:
            self._profile.add(batch.reshape(-1, batch.shape[2]))
            for layer in range(batch.shape[2]):
                self._history.add(layer, np.bincount(batch[:, :, layer].ravel(), minlength=self._experts))
        self._forecast = FORECASTS[self._scheme.basis](self._profile, self._history, self._scheme)

    def serve(self, batch: Ints) -> list[LayerStep]:
        """Serve a batch through all layers.

        Args:
            batch: (devices, tokens, layers) the expert of each token at each layer.
        """
        steps: list[LayerStep] = []
        for layer in range(batch.shape[2]):
            selections = batch.reshape(-1, batch.shape[2])[:, :layer]
            foretold = self._forecast(layer, selections)
            hidden_s = steps[-1].time.total_s - steps[-1].time.scheduling_s if steps else 0.0
            steps.append(self._pass(layer, foretold, counts_of(batch[:, :, layer], self._experts), hidden_s))
        return steps

    def _pass(self, layer: int, foretold: ExpertDemand, tokens: Ints, hidden_s: float) -> LayerStep:
        layout = LayerLayout(self._scheme, self._cluster, self._standing, self._loaded[layer])
        planned = layout.plan(foretold)
        counted = tokens.sum(axis=0)
        if self._scheme.balances_gating:
            tokens = spread_evenly(tokens)
        settled = layout.settle(planned, foretold, tokens.sum(axis=0))
        sent = sends(settled.placement, settled.split, tokens)
        before = self._loaded[layer] if planned is None or not settled.is_revised else planned
        swapped_in = loads_to_swap_in(settled.placement, before)
        self._loaded[layer] = settled.placement
        self._history.add(layer, counted)
        time = layer_time(
            self._costs,
            settled,
            sent,
            swapped_in,
            is_checked=self._scheme.check is not NEVER,
            hidden_s=hidden_s,
        )
        busiest = device_loads(settled.split).max() * self._cluster.devices
        return LayerStep(
            time=time,
            foretold=is_as_forecast(foretold, counted) if foretold.known else None,
            revised=settled.is_revised,
            load=float(busiest / max(int(counted.sum()), 1)),
            loads=int(swapped_in.max()),
        )


def batch_s(steps: Sequence[LayerStep]) -> float:
    """Return the time of a batch in all layers."""
    return sum(step.time.total_s for step in steps)


def layer_costs(measured: Mapping[str, float], experts: int, devices: int) -> LayerCosts:
    """Return the costs of a layer with a number of experts.

    Under every scheme, all ranks exchange their numbers of rows per expert, which an uneven all-to-all needs,
    so that is part of the gate. Decisions are timed here, with the default scheme.
    """
    plan_s, check_s = _decisions_s(experts, devices)
    token_bytes = HIDDEN * _BYTES_PER_NUMBER
    return LayerCosts(
        token_bytes=token_bytes,
        link_bytes_per_s=token_bytes / measured["row_s"],
        all_to_all_s=measured["all_to_all_s"],
        expert_s=measured["expert_s"],
        token_s=measured["token_s"],
        swap_s=measured["swap_s"],
        gate_s=measured["dense_s"] + measured["tell_s"],
        check_s=check_s,
        plan_s=plan_s,
    )


def _decisions_s(experts: int, devices: int) -> tuple[float, float]:
    cluster = DeviceGroup(devices)
    first = StandingPlacement.first(experts, cluster)
    layout = LayerLayout(SCHEMES["balanced"], cluster, first, first.placement)
    tokens = np.arange(1, experts + 1) * devices
    demand = ExpertDemand.of_counts(tokens)
    planned = layout.plan(demand)
    return (
        _median_s(lambda: layout.plan(demand)),
        _median_s(lambda: layout.settle(planned, demand, tokens)),
    )


def _median_s(decide: Callable[[], object]) -> float:
    times_s = []
    for _ in range(_DECISIONS):
        began_s = time.perf_counter()
        decide()
        times_s.append(time.perf_counter() - began_s)
    return median(times_s)
