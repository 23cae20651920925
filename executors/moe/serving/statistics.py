"""How a service has gone: what was routed, and how long it took."""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.base import Record
from schemas.experts.reports import LayerRouting
from solvers.compiled import Ints

_MOST_LATENCIES = 65_536
"""The newest count."""


@dataclass(frozen=True, eq=False)
class LayerPassage:
    """How one batch passed one layer. Times are by this rank's clock, and on CUDA devices without what the
    device computes meanwhile.

    Attributes:
        tokens: (experts,) of all ranks that chose each.
        doubles: tokens of all ranks with two experts.
        is_foretold: whether the two most popular experts were as estimated; None where nothing was.
        is_revised: whether the layer was placed, or placed anew, after the gating network had chosen.
        loads: experts that this rank's device has loaded for it.
        busiest_tokens: of the device with most.
        scheduling_s: counts exchanged, phase two.
        swap_wait_s: until the weights were there.
        all_to_all_s: of both, waiting for other ranks included.
        experts_s: their computation here.
    """

    tokens: Ints
    doubles: int
    is_foretold: bool | None
    is_revised: bool
    loads: int
    busiest_tokens: int
    scheduling_s: float
    swap_wait_s: float
    all_to_all_s: float
    experts_s: float


class RoutedTokens:
    """What was routed since the last report."""

    def __init__(self, layers: int, experts: int) -> None:
        self._tokens = np.zeros((layers, experts), np.int64)
        self._doubles = np.zeros(layers, np.int64)
        self.batches = 0
        self.revised = 0
        """How often a layer was placed anew after the choice."""

    def add(self, passages: Sequence[LayerPassage]) -> None:
        """Count a batch."""
        for layer, passage in enumerate(passages):
            self._tokens[layer] += passage.tokens
            self._doubles[layer] += passage.doubles
            self.revised += passage.is_revised
        self.batches += 1

    def take(self) -> tuple[LayerRouting, ...]:
        """The counts by layer, which begin anew."""
        taken = tuple(
            LayerRouting(tokens=tuple(tokens), doubles=doubles)
            for tokens, doubles in zip(self._tokens.tolist(), self._doubles.tolist(), strict=True)
        )
        self._tokens[:], self._doubles[:] = 0, 0
        self.batches = self.revised = 0
        return taken


class Percentiles(Record):
    """Of times in seconds."""

    median_s: float
    p95_s: float

    @classmethod
    def of(cls, times_s: Sequence[float]) -> "Percentiles":
        """Of one time at least."""
        return cls(median_s=statistics.median(times_s), p95_s=float(np.percentile(times_s, 95)))


class ServiceSummary(Record):
    """How a service has gone, in the file that it leaves."""

    requests: int
    """Served in this generation."""
    batches: int
    revised: int
    """How often a layer was placed anew after its gating network had chosen."""
    revision: int
    """Of the standing placement as it ended."""
    batch: Percentiles | None
    """From the beginning of a batch to its end on the rank that takes longest; None without any."""
    request: Percentiles | None
    """From the arrival of a request to the end of its batch; None where requests do not arrive by a rate."""


class Latencies:
    """Of the newest batches and requests."""

    def __init__(self) -> None:
        self._batches_s: deque[float] = deque(maxlen=_MOST_LATENCIES)
        self._requests_s: deque[float] = deque(maxlen=_MOST_LATENCIES)

    def add(self, batch_s: float, requests_s: Sequence[float]) -> None:
        """A batch has ended.

        Args:
            requests_s: since the arrival of each of its requests; empty where they do not arrive by a rate.
        """
        self._batches_s.append(batch_s)
        self._requests_s.extend(requests_s)

    @property
    def batch(self) -> Percentiles | None:
        """None before the first."""
        return Percentiles.of(list(self._batches_s)) if self._batches_s else None

    @property
    def request(self) -> Percentiles | None:
        """None where requests do not arrive by a rate."""
        return Percentiles.of(list(self._requests_s)) if self._requests_s else None
