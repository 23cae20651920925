"""Popularity of the experts of one service, and their placement, layer by layer."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from schemas.experts.commands import LayerPlacement
from schemas.experts.outcomes import LayerPlaced
from schemas.experts.reports import LayerRouting, RoutingReport
from schemas.experts.settings import ExpertsPolicy
from schemas.facts import Facts
from solvers.compiled import Ints
from solvers.experts.drift import DriftDecision, DriftRule, LayerDrift
from solvers.experts.placement import DeviceGroup, ExpertPlacement

MAX_SLOTS = 16_384
"""Most layers x devices x experts per device of one service: a placement of all of them fits a command."""
MOST_COMMANDED_SLOTS = 1_500_000
"""Most slots of the layers that change at a time, times the number of nodes, since each node gets a command
with all of these slots: about 4 MB of decisions. Other layers follow with the next report. No placement on up
to 91 nodes has more."""
MAX_TOKENS = 2**63 - 1
"""Largest count that a snapshot can write: counts that false reports increase stay there."""
_PLACES = 6
"""Decimal places of the numbers in a decision."""
_BYTES, _BYTES_PER_LAYER = 64, 96
_BYTES_PER_EXPERT = 18
"""Packed bytes of the average and of the counts before the next report."""
_BYTES_PER_DEVICE, _BYTES_PER_SLOT = 3, 2


def rule_of(policy: ExpertsPolicy) -> DriftRule:
    """Return the rule by which placements follow popularity."""
    return DriftRule(
        newest_weight=policy.newest_weight,
        least_gain=policy.least_gain,
        lasting_reports=policy.lasting_reports,
        cool_down_s=policy.cool_down_s,
        least_tokens_per_device=policy.least_tokens_per_device,
    )


class Popularity:
    """Popularity of the experts of one service that has reported routed tokens. It is deterministic: time is
    an argument."""

    def __init__(self, layers: Sequence[LayerDrift]) -> None:
        self._layers = list(layers)
        self.revision = 0
        """Revision of the present placement; the next one's is higher."""
        self.tokens = 0
        """Reported tokens over all layers, at most `MAX_TOKENS`."""

    @classmethod
    def unknown(cls, layers: int, experts: int, rule: DriftRule, cluster: DeviceGroup) -> Self:
        """Return the popularity before the first report."""
        return cls([LayerDrift(rule, cluster, experts) for _ in range(layers)])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of layers, and of experts per layer."""
        return len(self._layers), self._layers[0].average.size

    @property
    def placement(self) -> tuple[LayerPlacement, ...]:
        """Present placement of all layers."""
        return tuple(_placement(number, layer.placement) for number, layer in enumerate(self._layers))

    @property
    def busiest_load(self) -> float:
        """Load of the busiest device over the mean load, averaged over layers."""
        return sum(layer.busiest_load for layer in self._layers) / len(self._layers)

    @property
    def replicas(self) -> int:
        """Number of experts on all devices, over all layers."""
        return sum(len(row) for layer in self._layers for row in layer.placement.lists())

    @property
    def state_bytes(self) -> int:
        """Most bytes of it in a snapshot."""
        layers, experts = self.shape
        return state_bytes(layers, experts, self._layers[0].cluster)

    def begin(self, routed: Sequence[LayerRouting], time_s: float, nodes: int) -> list[LayerPlaced]:
        """Count the tokens of the profile stage, and place all layers by them, within `MOST_COMMANDED_SLOTS`.

        Args:
            nodes: number of nodes that get a placement.

        Returns:
            the placed layers.
        """
        return self._followed(LayerDrift.begin, routed, time_s, nodes)

    def report(self, routed: Sequence[LayerRouting], time_s: float, nodes: int) -> list[LayerPlaced]:
        """Count the tokens since the report before, and place layers again by them, within
        `MOST_COMMANDED_SLOTS`; layers with older placements come first.

        Args:
            nodes: number of nodes that get a placement.

        Returns:
            the placed layers.
        """
        return self._followed(LayerDrift.report, routed, time_s, nodes)

    def resize(self, cluster: DeviceGroup, time_s: float) -> list[LayerPlaced]:
        """Place the layers on other ranks, and return those whose placement changes."""
        changed: list[LayerPlaced] = []
        for number, layer in enumerate(self._layers):
            before = layer.placement.lists()
            decision = layer.resize(cluster, time_s)
            if layer.placement.lists() != before:
                changed.append(self._placed(number, decision))
        return self._revised(changed)

    def follow(self, rule: DriftRule) -> None:
        """Set the rule by which placements follow popularity."""
        for layer in self._layers:
            layer.rule = rule

    def describe(self) -> dict[str, Any]:
        """Describe it for an operator, in values that JSON has."""
        layers, experts = self.shape
        return {
            "layers": layers,
            "experts": experts,
            "revision": self.revision,
            "replicas": self.replicas,
            "busiest_load": self.busiest_load,
            "tokens": self.tokens,
        }

    def state(self) -> list[Any]:
        """Return the state, in types that msgpack writes."""
        return [self.revision, self.tokens, [layer.to_json() for layer in self._layers]]

    @classmethod
    def from_state(cls, state: Sequence[Any], rule: DriftRule, cluster: DeviceGroup) -> Self:
        """Return the popularity with a state."""
        revision, tokens, layers = state
        popularity = cls([LayerDrift.from_json(layer, rule, cluster) for layer in layers])
        popularity.revision, popularity.tokens = revision, tokens
        return popularity

    def _counted(self, routed: Sequence[LayerRouting]) -> list[Ints]:
        self.tokens = min(self.tokens + sum(sum(layer.tokens) for layer in routed), MAX_TOKENS)
        return [np.array(layer.tokens, np.int64) for layer in routed]

    def _followed(
        self,
        count: Callable[[LayerDrift, Ints, float, bool], DriftDecision],
        routed: Sequence[LayerRouting],
        time_s: float,
        nodes: int,
    ) -> list[LayerPlaced]:
        """Count the tokens of each layer, and return the layers that change, in their order."""
        counts = self._counted(routed)
        cluster = self._layers[0].cluster
        slots = nodes * cluster.devices * cluster.most_per_device
        changes = max(MOST_COMMANDED_SLOTS // slots, 1)
        changed: dict[int, LayerPlaced] = {}
        for number in sorted(range(len(counts)), key=lambda number: (self._layers[number].changed_s, number)):
            decision = count(self._layers[number], counts[number], time_s, len(changed) < changes)
            if decision.is_change:
                changed[number] = self._placed(number, decision)
        return self._revised([changed[number] for number in sorted(changed)])

    def _revised(self, changed: list[LayerPlaced]) -> list[LayerPlaced]:
        self.revision += bool(changed)
        return changed

    def _placed(self, number: int, decision: DriftDecision) -> LayerPlaced:
        return LayerPlaced(
            placement=_placement(number, decision.placement),
            replicas=tuple(decision.placement.replicas().tolist()),
            popularity=tuple(round(part, _PLACES) for part in self._layers[number].average.tolist()),
            load_before=round(decision.load_before, _PLACES),
            load=round(decision.load, _PLACES),
            gain=round(decision.gain, _PLACES),
            reports_in_a_row=decision.reports_in_a_row,
            reported_tokens=decision.tokens,
        )


def unusable(report: RoutingReport, known: Popularity | None, cluster: DeviceGroup) -> Facts | None:
    """Return why a report's counts allow no placement; None if they do.

    Args:
        known: popularity of the service by earlier reports; None with the first.
        cluster: devices of the service.
    """
    layers, experts = len(report.layers), len(report.layers[0].tokens)
    if known is not None and (layers, experts) != known.shape:
        return {
            "case": "other_shape",
            "layers": layers,
            "experts": experts,
            "known_layers": known.shape[0],
            "known_experts": known.shape[1],
        }
    if experts > cluster.devices * cluster.most_per_device:
        return {
            "case": "too_many_experts",
            "experts": experts,
            "devices": cluster.devices,
            "most_experts_per_device": cluster.most_per_device,
        }
    slots = layers * cluster.devices * cluster.most_per_device
    if slots > MAX_SLOTS:
        return {
            "case": "too_many_slots",
            "layers": layers,
            "devices": cluster.devices,
            "most_experts_per_device": cluster.most_per_device,
            "slots": slots,
            "most_slots": MAX_SLOTS,
        }
    return None


def state_bytes(layers: int, experts: int, cluster: DeviceGroup) -> int:
    """Return the most bytes of popularity in a snapshot."""
    per_device = _BYTES_PER_DEVICE + _BYTES_PER_SLOT * cluster.most_per_device
    return _BYTES + layers * (_BYTES_PER_LAYER + _BYTES_PER_EXPERT * experts + per_device * cluster.devices)


def _placement(layer: int, placement: ExpertPlacement) -> LayerPlacement:
    return LayerPlacement(layer=layer, devices=tuple(map(tuple, placement.lists())))
