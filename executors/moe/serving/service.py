"""Path of a batch through the MoE layers of a service, on one rank (thesis, section 4.5.2, 4.6.2).

At each layer, once the gating network has chosen:

1. All ranks exchange their numbers of rows for each expert, with their forecasts for the next layer.
2. Phase two: each decides in the same way whether the layer's placement is kept, and if not, makes a new one.
3. Phase one of the next layer runs on a thread of its own: the layer is placed, and its weights are loaded
while this layer and the attention after it are computed. 4. Rows go to the replicas of their experts by an
all-to-all with uneven splits, and come back by another.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from executors.moe.serving.exchange import RankExchange
from executors.moe.serving.phases import LayerLayout, StandingPlacement
from executors.moe.serving.profiling import (
    History,
    Profiled,
    ProfileStage,
    forecast_of,
    is_as_forecast,
    without_forecast,
)
from executors.moe.serving.slots import ExpertSlots, route_of, spread_evenly
from executors.moe.serving.statistics import LayerPassage
from schemas.experts.commands import LayerPlacement
from solvers.compiled import Ints
from solvers.experts.paths import PathProfile
from solvers.experts.placement import DeviceGroup, ExpertDemand, ExpertPlacement
from solvers.experts.schemes import PlacementScheme, Settled
from solvers.experts.splitting import sends


@dataclass(frozen=True)
class ServiceTerms:
    """Parameters of the placement of experts; the same on all ranks."""

    scheme: PlacementScheme
    most_experts_per_device: int
    path_length: int
    profile_batches: int


@dataclass(frozen=True, eq=False)
class _Planned:
    """Phase one of a layer, which may still run."""

    demand: ExpertDemand
    placement: Future[ExpertPlacement | None]
    loads: Future[int]
    """Number of experts that were loaded; weights are there once it has ended."""


class ExpertService:
    """The MoE layers of one rank, from batch to batch. All ranks must process the same batches.

    Every method that exchanges with other ranks raises CollectiveLostError if one is lost or late, and
    DisagreementError if one has decided differently; then the service is over.

    Attributes:
        passages: measurements of each layer in the last batch.
        profiled: sample paths of the present forecasts: of the model's training at first, and of the profile
            stage once that is over; None without either.
    """

    def __init__(
        self,
        exchange: RankExchange,
        layers: Sequence[ExpertSlots],
        terms: ServiceTerms,
        trained: PathProfile | None = None,
    ) -> None:
        """Place one expert on each device, or nearly so.

        Args:
            layers: in the order of a batch's pass, all with the same number of experts.
            trained: sample paths of the model's training, which count until the profile stage is over
                (erratum I4).

        Raises:
            ValueError: the experts of a layer do not fit on the devices, or the paths are too long.
        """
        counts = {layer.count for layer in layers}
        if len(counts) != 1:
            raise ValueError(f"the layers have {sorted(counts)} experts: all must have as many")
        (self._experts,) = counts
        self._exchange = exchange
        self._layers = list(layers)
        self._scheme = terms.scheme
        self._cluster = DeviceGroup(exchange.world, terms.most_experts_per_device)
        self._history = History(len(layers), self._experts)
        self._forecast = without_forecast(self._experts)
        profile = PathProfile(self._experts, len(layers), terms.path_length)
        self._stage = ProfileStage(terms.profile_batches, profile, terms.scheme.top)
        first = StandingPlacement.first(self._experts, self._cluster)
        self._standing = [first] * len(layers)
        self._loaded = [first.placement] * len(layers)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="experts")
        self._planned: _Planned | None = None
        self._selections: list[Ints] = []
        self.passages: list[LayerPassage] = []
        self.profiled: Profiled | None = None
        for layer in range(len(layers)):
            self._hold(layer, first.placement)
        if trained is not None:
            self._forecast_from(Profiled(trained, None))
        elif self._stage.is_over:
            self._forecast_from(self._stage.conclude())

    @property
    def layer_count(self) -> int:
        return len(self._layers)

    @property
    def expert_count(self) -> int:
        """Number of experts of each layer."""
        return self._experts

    def check(self, placements: Sequence[LayerPlacement]) -> None:
        """Check that a placement is possible.

        Raises:
            ValueError: there is no such layer, or it is placed on other devices or with other experts.
        """
        for each in placements:
            self._checked(each)

    def stand(self, placements: Sequence[LayerPlacement]) -> None:
        """Set the standing placement of some layers from the next batch on, on all ranks at the same batch.

        Raises:
            ValueError: see `check`.
        """
        checked = [(each.layer, self._checked(each)) for each in placements]
        for layer, placement in checked:
            self._standing[layer] = StandingPlacement(placement, is_commanded=True)
            self._hold(layer, placement)
            self._loaded[layer] = placement
            self._exchange.note(_bytes_of(placement))

    def begin(self, tokens: int) -> None:
        """Begin a batch with `tokens` tokens of this rank."""
        self._selections = []
        self.passages = []
        forecast = self._forecast(0, np.empty((tokens, 0), np.int64))
        gathered = self._exchange.gather("the beginning of a batch", _numbers(forecast))
        self._plan(0, _demand_of(gathered))

    def apply(self, layer: int, rows: Tensor, counts: Tensor, first: Tensor) -> Tensor:
        """Apply to each row the network of its expert, on any rank.

        Args:
            layer: number of layers that have been passed before.
            rows: `(pairs, hidden)` on the device, sorted by expert.
            counts: `(experts,)` int64, rows of each expert.
            first: `(tokens,)` int64, the expert of each token, or the first of two.

        Returns:
            `(pairs, hidden)`.
        """
        began_s = time.monotonic()
        exchange, slots = self._exchange, self._layers[layer]
        self._selections.append(first.cpu().numpy())
        own = counts.cpu().numpy()
        planned = self._pop_plan()
        placement = planned.placement.result()
        exchange.note(_bytes_of(placement))
        numbers = np.concatenate([[len(rows) - len(first)], own, _numbers(self._forecast_load(layer + 1))])
        gathered = exchange.gather(f"the choices at MoE layer {layer}", numbers)
        tokens = gathered[:, 1 : 1 + self._experts]
        counted = tokens.sum(axis=0)
        if self._scheme.balances_gating:
            tokens = spread_evenly(tokens)
        settled = self._layout(layer).settle(placement, planned.demand, tokens.sum(axis=0))
        exchange.note(_bytes_of(settled.placement))
        self._plan(layer + 1, _demand_of(gathered[:, 1 + self._experts :]))
        scheduled_s = time.monotonic()
        loads = planned.loads.result() + self._hold(layer, settled.placement)
        self._loaded[layer] = settled.placement
        self._history.add(layer, own)
        loaded_s = time.monotonic()
        outputs, experts_s = self._send_and_compute(layer, slots, rows, settled, tokens)
        ended_s = time.monotonic()
        self.passages.append(
            LayerPassage(
                tokens=counted,
                doubles=int(gathered[:, 0].sum()),
                is_as_forecast=is_as_forecast(planned.demand, counted) if planned.demand.known else None,
                is_revised=settled.is_revised,
                loads=loads,
                busiest_tokens=int(settled.split.sum(axis=1).max()),
                scheduling_s=scheduled_s - began_s,
                swap_wait_s=loaded_s - scheduled_s,
                all_to_all_s=ended_s - loaded_s - experts_s,
                experts_s=experts_s,
            )
        )
        return outputs

    def pass_idle(self, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        """Pass all layers without a token: tokens of other ranks may need experts of this one."""
        for layer in range(self.layer_count):
            self.apply(
                layer,
                torch.empty(0, hidden, dtype=dtype, device=device),
                torch.zeros(self._experts, dtype=torch.int64),
                torch.empty(0, dtype=torch.int64),
            )

    def end(self) -> None:
        """End a batch that has passed all layers."""
        if not self._stage.is_over:
            self._stage.add(self._everyones_selections())
            if self._stage.is_over:
                self._forecast_from(self._stage.conclude())

    def close(self) -> None:
        self._background.shutdown(cancel_futures=True)

    def _send_and_compute(
        self, layer: int, slots: ExpertSlots, rows: Tensor, settled: Settled, tokens: Ints
    ) -> tuple[Tensor, float]:
        exchange, rank = self._exchange, self._exchange.rank
        sent = sends(settled.placement, settled.split, tokens)
        held = slots.slots_of(settled.placement.lists()[rank])
        route = route_of(settled.placement, sent, rank, held, slots.size)
        order = torch.from_numpy(route.order).to(rows.device)
        arrangement = torch.from_numpy(route.arrangement).to(rows.device)
        where = f"tokens to the experts of MoE layer {layer}"
        arrived = exchange.send_rows(where, rows.index_select(0, order), route.sent, route.received)
        began_s = time.monotonic()
        outputs = slots.compute(
            arrived.index_select(0, arrangement), torch.from_numpy(route.counts).to(rows.device)
        )
        computed = torch.empty_like(outputs).index_copy_(0, arrangement, outputs)
        experts_s = time.monotonic() - began_s
        where = f"tokens back from the experts of MoE layer {layer}"
        returned = exchange.send_rows(where, computed, route.received, route.sent)
        return torch.empty_like(returned).index_copy_(0, order, returned), experts_s

    def _plan(self, layer: int, demand: ExpertDemand) -> None:
        """Begin phase one of a layer, if there is one more."""
        if layer == self.layer_count:
            return
        layout = self._layout(layer)
        placement = self._background.submit(layout.plan, demand)
        loads = self._background.submit(lambda: self._hold(layer, placement.result()))
        self._planned = _Planned(demand, placement, loads)

    def _pop_plan(self) -> _Planned:
        planned, self._planned = self._planned, None
        assert planned is not None, "a batch begins, and comes to its layers in their order"
        return planned

    def _hold(self, layer: int, placement: ExpertPlacement | None) -> int:
        if placement is None:
            return 0
        return self._layers[layer].hold(placement.lists()[self._exchange.rank])

    def _layout(self, layer: int) -> LayerLayout:
        return LayerLayout(self._scheme, self._cluster, self._standing[layer], self._loaded[layer])

    def _forecast_load(self, layer: int) -> ExpertDemand:
        if layer == self.layer_count:
            return without_forecast(self._experts)(layer, np.empty((0, 0), np.int64))
        return self._forecast(layer, np.stack(self._selections, axis=1))

    def _forecast_from(self, profiled: Profiled) -> None:
        self.profiled = profiled
        self._forecast = forecast_of(profiled.profile, self._history, self._scheme)

    def _everyones_selections(self) -> Ints:
        """Return the selections (tokens, layers) of all ranks, in their order."""
        own = np.stack(self._selections, axis=1)
        where = "the selections of a batch that is profiled"
        sizes = self._exchange.gather(where, np.array([len(own)]))[:, 0]
        padded = np.zeros((int(sizes.max()), self.layer_count), np.int64)
        padded[: len(own)] = own
        gathered = self._exchange.gather(where, padded.ravel()).reshape(len(sizes), *padded.shape)
        return np.concatenate([each[:size] for each, size in zip(gathered, sizes, strict=True)])

    def _checked(self, placed: LayerPlacement) -> ExpertPlacement:
        if placed.layer >= self.layer_count or len(placed.devices) != self._cluster.devices:
            raise ValueError(
                f"layer {placed.layer} is placed on {len(placed.devices)} devices: the service has "
                f"{self.layer_count} MoE layers on {self._cluster.devices}"
            )
        try:
            lists = [list(device) for device in placed.devices]
            return ExpertPlacement.of_lists(lists, self._experts, self._cluster.most_per_device)
        except ValueError as error:
            raise ValueError(f"layer {placed.layer} cannot be placed so: {error}") from error


def warm_up(terms: ServiceTerms, ranks: int, experts: int) -> None:
    """Compile functions that are compiled on their first call, before other ranks wait for this one.

    Raises:
        ValueError: the experts of a layer do not fit on the devices.
    """
    cluster = DeviceGroup(ranks, terms.most_experts_per_device)
    first = StandingPlacement.first(experts, cluster)
    layout = LayerLayout(terms.scheme, cluster, first, first.placement)
    tokens = np.arange(1, experts + 1)
    forecast = ExpertDemand.of_counts(tokens[::-1].copy())
    everyones = np.zeros((ranks, experts), np.int64)
    everyones[0] = tokens
    if terms.scheme.balances_gating:
        everyones = spread_evenly(everyones)
    settled = layout.settle(layout.plan(forecast), forecast, tokens)
    sends(settled.placement, settled.split, everyones)
    profile = PathProfile(experts, 2, 1)
    profile.add(np.zeros((8, 2), np.int64))
    forecast_of(profile, History(2, experts), terms.scheme)(1, np.zeros((1, 1), np.int64))


def _numbers(demand: ExpertDemand) -> Ints:
    return np.concatenate([[demand.total], demand.loads])


def _demand_of(rows: Ints) -> ExpertDemand:
    """Return the combined demand of all ranks.

    Args:
        rows: (ranks, 1 + experts), made by `_numbers`.
    """
    return ExpertDemand(rows[:, 1:].sum(axis=0), int(rows[:, 0].sum()))


def _bytes_of(placement: ExpertPlacement | None) -> bytes:
    return b"" if placement is None else placement.experts.tobytes() + placement.shares.tobytes()
