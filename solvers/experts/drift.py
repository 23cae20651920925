"""Drift of a layer's popularity, and the rule by which its standing placement follows.

The decisions per batch are made by a serving job. This module decides between batches: which devices have
which experts to begin with, and the replicas of each. The thesis states nothing about it beyond the profile
stage. A change costs swaps on many devices, so the placement follows only lasting shifts.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np

from schemas.experts.outcomes import PlacementReason
from solvers.compiled import Floats, Ints
from solvers.experts.balanced import place_balanced
from solvers.experts.moves import near
from solvers.experts.placement import DeviceGroup, ExpertDemand, ExpertPlacement
from solvers.experts.splitting import device_loads, even_split

KeptReason = Literal["too_few_tokens", "small_gain", "not_lasting_yet", "cooling_down", "postponed"]
"""Reason for keeping a placement. `too_few_tokens`: the reports so far are counted together with the next.
`small_gain`: the gain of the busiest device is below the least gain. `postponed`: more layers are to change
than may at a time."""


@dataclass(frozen=True)
class DriftRule:
    """Rule by which a placement follows popularity.

    Suppose a shift lasts, and another placement would then bring a gain G >= `least_gain` = g. It is followed
    with report number r + `lasting_reports` - 1 at the latest, unless the layer is cooling down. Here r is
    the least number, 1 or more, with (1 - `newest_weight`) ** r <= (G - g) / (1 - g).

    Proof: the largest load of a placement never falls where loads rise, and the new popularity is (1 - b) of
    the average, where b is that power. So the standing placement is off by 1 - b of its final deviation. This
    holds where the new placement is perfectly balanced: as many devices as experts, with room for two on
    each.
    """

    newest_weight: float = 0.3
    """Weight of the newest report in the exponential average of all."""
    least_gain: float = 0.1
    """Share of its tokens by which the busiest device must be relieved."""
    lasting_reports: int = 3
    """Number of reports in a row that must agree."""
    cool_down_s: float = 60.0
    """Time since the last change in which the placement stays."""
    least_tokens_per_device: int = 256
    """Tokens of a report below which popularity is noise; a report with fewer is added to the next."""

    def __post_init__(self) -> None:
        if not 0 < self.newest_weight <= 1:
            raise ValueError(f"newest_weight is {self.newest_weight}, expected above 0 and 1 at most")
        if not 0 < self.least_gain < 1:
            raise ValueError(f"least_gain is {self.least_gain}, expected between 0 and 1")
        if self.lasting_reports < 1 or self.least_tokens_per_device < 1:
            raise ValueError("lasting_reports and least_tokens_per_device are 1 at least")
        if not 0 <= self.cool_down_s < float("inf"):
            raise ValueError(f"cool_down_s is {self.cool_down_s}, expected 0 or more seconds")


class DriftDecision(NamedTuple):
    """Decision on a report, with the numbers behind it."""

    reason: PlacementReason | KeptReason
    placement: ExpertPlacement
    """Placement that is valid from now on."""
    load_before: float
    """Load of the busiest device over the mean, with the former placement and tokens split as evenly as
    possible; 1 is balanced."""
    load: float
    """Load of the busiest device over the mean, with the best placement found."""
    gain: float
    """1 - load / load_before."""
    reports_in_a_row: int
    """Number of consecutive reports with a sufficient gain."""
    tokens: int
    """Tokens counted in the newest report, with those of deferred reports."""

    @property
    def is_change(self) -> bool:
        """Whether the placement changes."""
        return self.reason in get_args(PlacementReason)


class LayerDrift:
    """Popularity of one layer's experts, and their placement. Without a clock or random numbers."""

    def __init__(self, rule: DriftRule, cluster: DeviceGroup, experts: int) -> None:
        cluster.check(experts)
        self.rule = rule
        self.cluster = cluster
        self.average: Floats = np.zeros(experts)
        """Parts of the tokens, (experts,); zeros before the first report."""
        self._waiting: Ints = np.zeros(experts, np.int64)
        self._in_a_row = 0
        self._changed_s = 0.0
        self.placement = place_balanced(self._demand(), cluster)

    @property
    def changed_s(self) -> float:
        """Time of the last change of the placement (s)."""
        return self._changed_s

    def begin(self, profiled: Ints, time_s: float, may_change: bool = True) -> DriftDecision:
        """Make the first placement.

        Args:
            profiled: (experts,) tokens that chose each in the profile stage; all 0 without a profile.
            may_change: False if the placement has to stay this time.
        """
        self._average(profiled)
        if not may_change:
            present = self._largest(self.placement)
            return self._kept("postponed", self.placement, int(profiled.sum()), (present, present))
        placement = place_balanced(self._demand(), self.cluster)
        return self._change("initial", placement, time_s, int(profiled.sum()))

    def report(self, tokens: Ints, time_s: float, may_change: bool = True) -> DriftDecision:
        """Add the tokens that were routed since the last report, and decide.

        Args:
            tokens: (experts,) that chose each expert.
            may_change: False if the placement has to stay this time.

        Raises:
            ValueError: the number of experts differs, or a count is negative.
        """
        if tokens.shape != self.average.shape or int(tokens.min()) < 0:
            raise ValueError(f"expected {self.average.size} counts of 0 or more, one per expert")
        self._waiting = self._waiting + tokens
        counted = int(self._waiting.sum())
        if counted < self.rule.least_tokens_per_device * self.cluster.devices:
            present = self._largest(self.placement)
            return self._kept("too_few_tokens", self.placement, counted, (present, present))
        self._average(self._waiting)
        self._waiting = np.zeros_like(self._waiting)
        better = near(place_balanced(self._demand(), self.cluster), self.placement)
        largest = self._largest(self.placement), self._largest(better)
        before, after = largest
        if before - after < self.rule.least_gain * before:
            self._in_a_row = 0
            return self._kept("small_gain", better, counted, largest)
        self._in_a_row += 1
        if self._in_a_row < self.rule.lasting_reports:
            return self._kept("not_lasting_yet", better, counted, largest)
        if time_s - self._changed_s < self.rule.cool_down_s:
            return self._kept("cooling_down", better, counted, largest)
        if not may_change:
            return self._kept("postponed", better, counted, largest)
        return self._change("popularity_shifted", better, time_s, counted, largest)

    def resize(self, cluster: DeviceGroup, time_s: float) -> DriftDecision:
        """Make a new placement at once, from the average: the devices have changed.

        Raises:
            ValueError: there is no room for all experts.
        """
        cluster.check(self.average.size)
        self.cluster = cluster
        placement = place_balanced(self._demand(), cluster)
        if placement.devices == self.placement.devices:
            placement = near(placement, self.placement)
        return self._change("devices_changed", placement, time_s, 0)

    @property
    def busiest_load(self) -> float:
        """Load of the busiest device over the mean, for the present placement and the average popularity; 1
        is even."""
        return self._largest(self.placement) * self.placement.devices / self._demand().filled().total

    def to_json(self) -> dict[str, Any]:
        """Return the state as values of JSON, for `from_json`.

        Shares are left out, since no decision depends on them: tokens are split again for each batch.
        """
        return {
            "average": self.average.tolist(),
            "waiting": self._waiting.tolist(),
            "in_a_row": self._in_a_row,
            "changed_s": self._changed_s,
            "experts": self.placement.lists(),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any], rule: DriftRule, cluster: DeviceGroup) -> Self:
        drift = cls(rule, cluster, len(values["average"]))
        drift.average = np.array(values["average"], np.float64)
        drift._waiting = np.array(values["waiting"], np.int64)
        drift._in_a_row = values["in_a_row"]
        drift._changed_s = values["changed_s"]
        count = drift.average.size
        drift.placement = ExpertPlacement.of_lists(values["experts"], count, cluster.most_per_device)
        return drift

    def _demand(self) -> ExpertDemand:
        return ExpertDemand.of_popularity(self.average)

    def _average(self, tokens: Ints) -> None:
        counted = int(tokens.sum())
        if not counted:
            return
        newest = tokens / counted
        if self.average.any():
            self.average = self.average + self.rule.newest_weight * (newest - self.average)
        else:
            self.average = newest

    def _largest(self, placement: ExpertPlacement) -> int:
        return int(device_loads(even_split(placement, self._demand().filled().loads)).max())

    def _change(
        self,
        reason: PlacementReason,
        placement: ExpertPlacement,
        time_s: float,
        counted: int,
        largest: tuple[int, int] | None = None,
    ) -> DriftDecision:
        """Change to another placement.

        Args:
            largest: tokens of the busiest device with the former placement, and with the new one; None: they
                are counted here.
        """
        before, in_a_row = self.placement, self._in_a_row
        self.placement = placement
        self._in_a_row = 0
        self._changed_s = time_s
        if largest is None:
            largest = self._largest(before), self._largest(placement)
        return self._decision(reason, (before, placement), in_a_row, counted, largest)

    def _kept(
        self, reason: KeptReason, better: ExpertPlacement, counted: int, largest: tuple[int, int]
    ) -> DriftDecision:
        return self._decision(reason, (self.placement, better), self._in_a_row, counted, largest)

    def _decision(
        self,
        reason: PlacementReason | KeptReason,
        placements: tuple[ExpertPlacement, ExpertPlacement],
        in_a_row: int,
        counted: int,
        largest: tuple[int, int],
    ) -> DriftDecision:
        """Describe a decision by the former placement and the best one found."""
        total = self._demand().filled().total
        before, best = (most * each.devices / total for most, each in zip(largest, placements, strict=True))
        return DriftDecision(
            reason=reason,
            placement=self.placement,
            load_before=before,
            load=best,
            gain=1 - largest[1] / largest[0],
            reports_in_a_row=in_a_row,
            tokens=counted,
        )
