"""Results of a service: its newest answers, and measurements of routing and durations."""

import json
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from executors.gang.batches import share
from schemas.base import Record
from schemas.experts.reports import LayerRouting
from solvers.compiled import Ints

_MOST_LATENCIES = 65_536
"""Number of the newest latencies that are kept."""

MOST_KEPT = 1_000


@dataclass(frozen=True, eq=False)
class LayerPassage:
    """Measurements of one batch in one layer. Times are by this rank's clock, and on CUDA devices exclude the
    device's parallel work.

    Attributes:
        tokens: (experts,) tokens of all ranks that chose each.
        doubles: tokens of all ranks with two experts.
        is_as_forecast: whether the two most popular experts were as estimated; None without an estimate.
        is_revised: whether the layer was placed, or placed again, after the gating network had chosen.
        loads: experts that this rank's device has loaded for it.
        busiest_tokens: tokens of the busiest device.
        scheduling_s: exchange of counts, and phase two.
        swap_wait_s: wait for the weights.
        all_to_all_s: both all-to-alls, including waits for other ranks.
        experts_s: computation of experts on this rank.
    """

    tokens: Ints
    doubles: int
    is_as_forecast: bool | None
    is_revised: bool
    loads: int
    busiest_tokens: int
    scheduling_s: float
    swap_wait_s: float
    all_to_all_s: float
    experts_s: float


class RoutingCounts:
    """Routing since the last report."""

    def __init__(self, layers: int, experts: int) -> None:
        self._tokens = np.zeros((layers, experts), np.int64)
        self._doubles = np.zeros(layers, np.int64)
        self.batches = 0
        self.revised = 0
        """Number of times that a layer was placed again after the choice."""

    def add(self, passages: Sequence[LayerPassage]) -> None:
        for layer, passage in enumerate(passages):
            self._tokens[layer] += passage.tokens
            self._doubles[layer] += passage.doubles
            self.revised += passage.is_revised
        self.batches += 1

    def drain(self) -> tuple[LayerRouting, ...]:
        """Remove and return the counts by layer."""
        drained = tuple(
            LayerRouting(tokens=tuple(tokens), doubles=doubles)
            for tokens, doubles in zip(self._tokens.tolist(), self._doubles.tolist(), strict=True)
        )
        self._tokens[:], self._doubles[:] = 0, 0
        self.batches = self.revised = 0
        return drained


class Percentiles(Record):
    """Percentiles of times (s)."""

    median_s: float
    p95_s: float

    @classmethod
    def of(cls, times_s: Sequence[float]) -> "Percentiles":
        """Return the percentiles of one or more times."""
        return cls(median_s=statistics.median(times_s), p95_s=float(np.percentile(times_s, 95)))


class ServiceSummary(Record):
    """Summary of a service, in the file of its result."""

    requests: int
    """Requests served in this generation."""
    batches: int
    revised: int
    """Number of times that a layer was placed again after its gating network had chosen."""
    revision: int
    """Revision of the last standing placement."""
    batch: Percentiles | None
    """From the start of a batch to its end on the slowest rank; None without any."""
    request: Percentiles | None
    """From the arrival of a request to the end of its batch; None for requests without a rate."""


class Latencies:
    """Latencies of the newest batches and requests."""

    def __init__(self) -> None:
        self._batches_s: deque[float] = deque(maxlen=_MOST_LATENCIES)
        self._requests_s: deque[float] = deque(maxlen=_MOST_LATENCIES)

    def add(self, batch_s: float, requests_s: Sequence[float]) -> None:
        """Add a batch that has ended.

        Args:
            requests_s: times since the arrival of each of its requests; empty without a rate.
        """
        self._batches_s.append(batch_s)
        self._requests_s.extend(requests_s)

    @property
    def batch(self) -> Percentiles | None:
        """Return the latencies of batches; None before the first."""
        return Percentiles.of(list(self._batches_s)) if self._batches_s else None

    @property
    def request(self) -> Percentiles | None:
        """Return the latencies of requests; None without a rate."""
        return Percentiles.of(list(self._requests_s)) if self._requests_s else None


class NewestAnswers:
    """Last `MOST_KEPT` answers, since a service may run forever."""

    def __init__(self, word_of: Callable[[int], str]) -> None:
        """
        Args:
            word_of: returns the word or class with a number.
        """
        self._word_of = word_of
        self._kept: deque[tuple[int, int]] = deque(maxlen=MOST_KEPT)

    def add(self, requests: range, numbers: Sequence[Sequence[int]]) -> None:
        """Add the answers of one batch.

        Args:
            numbers: by rank, answers to its share in order; padding after them is ignored.
        """
        for rank, row in enumerate(numbers):
            for place, number in zip(share(len(requests), rank, len(numbers)), row, strict=False):
                self._kept.append((requests[place], number))

    def lines(self) -> bytes:
        """Return JSONL, in the order of the requests."""
        lines = (
            json.dumps({"request": request, "answer": number, "text": self._word_of(number)}) + "\n"
            for request, number in self._kept
        )
        return "".join(lines).encode()
