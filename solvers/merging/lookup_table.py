"""Seconds per optimizer step: the lookup table S(a, cfgs) of the time estimator (Ymir, section 4.3).

A table begins with offline measurements and has what reports of executors measured besides. Of the
micro-batches that fit into memory, the fastest is taken. Cells use it, so it is plain arithmetic in a fixed
order.

A step of a global batch M on a GPUs is s passes of m sequences on each of them, m s a >= M. The last pass
exchanges gradients:

    step = (s - 1) (one - exchange) + one

where `one` is a step without accumulation. Unmeasured steps are composed from two curves: the time of a pass
by micro-batch, which hardly depends on the GPUs; and the time of an exchange by GPUs, which hardly depends on
the micro-batch, but on whether it leaves the node. (On the measured profiles, exchanges are straight lines in
the number of GPUs, one within a node and one across nodes.)
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Self, TypeVar

from schemas.merging.problems import StepTime
from schemas.merging.reports import MeasuredStep
from schemas.merging.settings import STAGES_PER_PIPELINE

LEAST_PASS_S: Final = 1e-6
"""Least duration of a pass: the launch of a single kernel takes longer."""
WINDOW: Final = 32
"""Most reports that offline rows count as together, so that later reports replace them."""

_MOST_PASS_S: Final = 1e6
_MOST_SCALE: Final = 1_000.0
"""Largest scale of a job. Beyond it, one of the two measurements is wrong."""
_ACROSS: Final = 0
"""Key of the line of all allocations on more than one node."""

K = TypeVar("K", bound=tuple[int, ...])


class AccumulatedStep(NamedTuple):
    step_s: float
    micro_batch_size: int
    accumulation_steps: int


def faster_only(times: Iterable[tuple[int, float]]) -> tuple[StepTime, ...]:
    """Return the useful step times of a job: without those that are no faster than with fewer GPUs.

    Args:
        times: numbers of GPUs, ascending, and seconds per step.
    """
    kept: list[StepTime] = []
    for gpus, step_s in times:
        if not kept or step_s < kept[-1].step_s:
            kept.append(StepTime(gpus=gpus, step_s=step_s))
    return tuple(kept)


def is_possible(measured: MeasuredStep) -> bool:
    """Return whether a measurement is possible: the exchange of gradients must leave time for the passes."""
    return _pass_s(measured) >= LEAST_PASS_S


class PassTimes(NamedTuple):
    """Times of one pass per GPU and of the exchange after it, where they were measured."""

    gpus: int
    nodes: int
    micro_batch_size: int
    pass_s: float
    exchange_s: float

    @classmethod
    def of(cls, measured: MeasuredStep, scale: float = 1.0) -> Self:
        """Return the times of a measurement for which `is_possible` holds.

        Args:
            scale: passes of the measured job over those of the table.
        """
        pass_s = min(max(_pass_s(measured) / scale, LEAST_PASS_S), _MOST_PASS_S)
        return cls(measured.gpus, measured.nodes, measured.micro_batch_size, pass_s, measured.exchange_s)


class StepTimeTable:
    """Rows of one shape of jobs, and interpolation between them.

    What it has no row for is composed from the curves of other tables, its *references*: their passes times
    the ratio of both at the nearest measured micro-batch, and their exchanges.
    """

    def __init__(self, rows: Iterable[MeasuredStep] = ()) -> None:
        """Begin with offline rows. Impossible ones are ignored."""
        self._passes = _Means[tuple[int, int, int]]()
        """Measured time of a pass without its exchange, by GPUs, nodes and micro-batch."""
        self._pass_by_size = _Means[tuple[int]]()
        """Measured time of a pass without its exchange, by micro-batch only."""
        self._exchanges = _Means[tuple[int, int]]()
        """Measured time of an exchange, by GPUs and nodes."""
        self._sizes: list[int] = []
        self._lines: dict[int, list[tuple[int, float]]] = {}
        for row in rows:
            if is_possible(row):
                self.add(PassTimes.of(row))
        for means in (self._passes, self._pass_by_size, self._exchanges):
            means.limit(WINDOW)

    def __bool__(self) -> bool:
        """Return whether there is a row."""
        return len(self._pass_by_size) > 0

    def add(self, times: PassTimes, reports: float = 1.0) -> None:
        """Add the mean times of some reports."""
        place = (times.gpus, times.nodes)
        self._passes.add((*place, times.micro_batch_size), times.pass_s, reports)
        self._pass_by_size.add((times.micro_batch_size,), times.pass_s, reports)
        self._exchanges.add(place, times.exchange_s, reports)
        self._sizes = []

    def step(
        self,
        gpus: int,
        nodes: int,
        batch_size: int,
        most_micro_batch: int,
        scale: float = 1.0,
        references: Sequence["StepTimeTable"] = (),
    ) -> AccumulatedStep:
        """Return the fastest way to do an optimizer step.

        Args:
            gpus: a, over all nodes, at least as many as `nodes`.
            nodes: number of nodes with these GPUs.
            batch_size: M, sequences per optimizer step.
            most_micro_batch: the largest m that fits into the memory of a GPU.
            scale: factor of this job, see `scale_of`.
            references: tables of other shapes, none of them empty. Where this table has no row, the curve of
                the first that has one is used.

        Raises:
            LookupError: there is no row to forecast it from.
            ValueError: a number is below 1, or there are more nodes than GPUs.
        """
        if not 1 <= nodes <= gpus or batch_size < 1 or most_micro_batch < 1:
            raise ValueError(
                f"{gpus} GPUs on {nodes} nodes, batch {batch_size}, micro-batch {most_micro_batch}: all must "
                "be at least 1, with a GPU on each node"
            )
        if not self:
            raise LookupError("the lookup table is empty: give it offline profiles, or profile a job")
        for table in (self, *references):
            table._index()
        exchange_s = self._exchange_s(gpus, nodes, references)
        share = -(-batch_size // gpus)
        size, best = min(share, most_micro_batch), None
        while True:
            steps = -(-share // size)
            # The smallest micro-batch with this number of steps wastes least.
            size = -(-share // steps)
            step_s = steps * scale * self._pass_s(gpus, nodes, size, references) + exchange_s
            if best is None or step_s < best.step_s:
                best = AccumulatedStep(step_s, size, steps)
            if size == 1:
                return best
            size -= 1

    def scale_of(self, measured: Sequence[MeasuredStep]) -> float:
        """Return the passes of a job over those of the table, since jobs of one shape differ in their data:
        the median over the micro-batches that both have, or 1 without any. Other micro-batches would mix the
        curve of passes with the level."""
        ratios = [
            _pass_s(one) / self._pass_by_size[one.micro_batch_size,]
            for one in measured
            if is_possible(one) and self._pass_by_size.get((one.micro_batch_size,)) is not None
        ]
        return min(max(statistics.median(ratios), 1 / _MOST_SCALE), _MOST_SCALE) if ratios else 1.0

    def _pass_s(self, gpus: int, nodes: int, size: int, references: Sequence["StepTimeTable"] = ()) -> float:
        measured = self._passes.get((gpus, nodes, size))
        if measured is None:
            measured = self._pass_by_size.get((size,))
        if measured is not None:
            return measured
        if not references:
            return self._pass_between(size)
        # The nearest measured micro-batch shows how much longer a pass is than in the reference.
        at = bisect_left(self._sizes, size)
        near = min(self._sizes[max(at - 1, 0) : at + 1], key=lambda one: abs(one - size))
        first, others = references[0], references[1:]
        return (
            first._pass_s(gpus, nodes, size, others)
            * self._pass_by_size[near,]
            / first._pass_s(1, 1, near, others)
        )

    def _pass_between(self, size: int) -> float:
        """Return the time of a pass of a micro-batch without any measurement."""
        sizes, times = self._sizes, self._pass_by_size
        first, last = sizes[0], sizes[-1]
        at = bisect_left(sizes, size)
        if 0 < at < len(sizes):
            left, right = sizes[at - 1], sizes[at]
            return _line(size, left, times[left,], right, times[right,])
        if len(sizes) == 1:
            return times[first,] * max(size / first, 1.0)
        if at == 0:
            # Not less than its part of the smallest, even by two noisy points.
            below = _line(size, first, times[first,], sizes[1], times[sizes[1],])
            return max(below, times[first,] * size / first)
        # The largest two may be close to each other: the slope of all is less noisy.
        return max(_line(size, first, times[first,], last, times[last,]), times[last,])

    def _exchange_s(self, gpus: int, nodes: int, references: Sequence["StepTimeTable"] = ()) -> float:
        if gpus == 1:
            return 0.0
        measured = self._exchanges.get((gpus, nodes))
        if measured is not None:
            return measured
        # Adapters of one base model have gradients of similar sizes, whatever the passes take.
        reference = next((table for table in references if table._lines), None)
        if reference is not None:
            return reference._exchange_s(gpus, nodes)
        for line in (nodes, _ACROSS if nodes > 1 else 1, 1, _ACROSS):
            points = self._lines.get(line, [])
            if len(points) > 1 or (line != nodes and points):
                return _exchange_between(gpus, points)
        return 0.0

    def _index(self) -> None:
        """Sort the sizes, and the exchanges by GPUs for each number of nodes, after a measurement."""
        if self._sizes or not len(self._pass_by_size):
            return
        self._sizes = sorted(size for (size,) in self._pass_by_size)
        lines: dict[int, dict[int, list[float]]] = {}
        for gpus, nodes in sorted(self._exchanges):
            if gpus > 1:
                for line in (nodes, _ACROSS) if nodes > 1 else (nodes,):
                    lines.setdefault(line, {}).setdefault(gpus, []).append(self._exchanges[gpus, nodes])
        self._lines = {
            line: [(gpus, math.fsum(times) / len(times)) for gpus, times in sorted(points.items())]
            for line, points in lines.items()
        }


class _Means(Generic[K]):
    """Means by key."""

    def __init__(self) -> None:
        self._means: dict[K, tuple[float, float]] = {}
        """Mean and number of reports by key."""

    def add(self, key: K, value: float, reports: float) -> None:
        mean, count = self._means.get(key, (0.0, 0.0))
        count += reports
        self._means[key] = (mean + (value - mean) * (reports / count), count)

    def limit(self, most: float) -> None:
        """Count each mean as of `most` reports at most."""
        self._means = {key: (mean, min(count, most)) for key, (mean, count) in self._means.items()}

    def get(self, key: K) -> float | None:
        found = self._means.get(key)
        return None if found is None else found[0]

    def __getitem__(self, key: K) -> float:
        return self._means[key][0]

    def __iter__(self) -> Iterator[K]:
        return iter(self._means)

    def __len__(self) -> int:
        return len(self._means)


def _pass_s(measured: MeasuredStep) -> float:
    """Return the time of a pass, from step = s pass + exchange."""
    return (measured.step_s - measured.exchange_s) / measured.accumulation_steps


def _exchange_between(gpus: int, points: Sequence[tuple[int, float]]) -> float:
    """Interpolate on the line through the nearest two numbers of GPUs; never below zero."""
    if len(points) == 1:
        return points[0][1]
    at = min(max(bisect_left(points, (gpus, 0.0)), 1), len(points) - 1)
    (left, low), (right, high) = points[at - 1], points[at]
    return max(_line(gpus, left, low, right, high), 0.0)


def _line(at: float, left: float, low: float, right: float, high: float) -> float:
    return low + (high - low) * (at - left) / (right - left)


def sequence_class(tokens: int) -> int:
    """Return the class of a sequence length: its binary logarithm, rounded up."""
    return (tokens - 1).bit_length()


def of_pipelines(measured: MeasuredStep) -> MeasuredStep | None:
    """Return a measurement by pipelines instead of GPUs; None if it is not of whole pipelines. A single
    pipeline exchanges no gradients."""
    pipelines, rest = divmod(measured.gpus, STAGES_PER_PIPELINE)
    if rest or not pipelines:
        return None
    exchange_s = measured.exchange_s if pipelines > 1 else 0.0
    nodes = min(measured.nodes, pipelines)
    return measured.model_copy(update={"gpus": pipelines, "nodes": nodes, "exchange_s": exchange_s})
