"""Seconds per optimizer step: the lookup table S(a, cfgs) of the time estimator (Ymir, section 4.3).

The table is seeded with offline measurements and updated by reports of executors: every row is a running
mean. Of the micro-batches that fit into memory, the fastest is taken. Cells use it, so it is plain arithmetic
in a fixed order.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from schemas.merging.problems import StepTime
from schemas.merging.reports import MeasuredStep
from schemas.merging.settings import MAX_SPEEDS

MOST_ROWS: Final = MAX_SPEEDS
"""Most rows; beyond it, the row with the oldest measurement is dropped."""
MOST_CACHED: Final = 65_536
LEAST_PASS_S: Final = 1e-6
"""Least duration of a pass: the launch of a single kernel takes longer."""
WINDOW: Final = 32
"""Number of latest measurements that a running mean follows, approximately."""

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


class StepTimeTable:
    """Rows of one configuration, and interpolation between them."""

    def __init__(self, state: Mapping[str, list[list[Any]]] | None = None) -> None:
        state = state or {}
        self._passes = RunningMeans[tuple[int, int, int]](state.get("passes", ()))
        """Measured time of a pass without its exchange, by GPUs, nodes and micro-batch."""
        self._pass_by_size = RunningMeans[tuple[int]](state.get("pass_by_size", ()))
        """Measured time of a pass without its exchange, by micro-batch only."""
        self._exchanges = RunningMeans[tuple[int, int]](state.get("exchanges", ()))
        """Measured time of an exchange, by GPUs and nodes."""
        self._sizes: list[int] = []
        self._lines: dict[int, list[tuple[int, float]]] = {}
        self._cache: dict[tuple[int, int, int, int], AccumulatedStep] = {}
        self._index()

    def add(self, measured: MeasuredStep) -> None:
        """Add a measurement for which `is_possible` holds."""
        pass_s = _pass_s(measured)
        place = (measured.gpus, measured.nodes)
        self._passes.add((*place, measured.micro_batch_size), pass_s)
        self._pass_by_size.add((measured.micro_batch_size,), pass_s)
        self._exchanges.add(place, measured.exchange_s)
        self._sizes = []
        self._cache = {}

    def step(self, gpus: int, nodes: int, batch_size: int, most_micro_batch: int) -> AccumulatedStep:
        key = (gpus, nodes, batch_size, most_micro_batch)
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= MOST_CACHED:
                self._cache = {}
            found = self._cache[key] = self._fastest(*key)
        return found

    def measured_step_s(self, like: MeasuredStep) -> float:
        """Return the table's duration of exactly these steps."""
        self._index()
        passes = like.accumulation_steps * self._pass_s(like.gpus, like.nodes, like.micro_batch_size)
        return passes + self._exchange_s(like.gpus, like.nodes)

    def state(self) -> dict[str, list[list[Any]]]:
        return {
            "passes": self._passes.state(),
            "pass_by_size": self._pass_by_size.state(),
            "exchanges": self._exchanges.state(),
        }

    def _fastest(self, gpus: int, nodes: int, batch_size: int, most_micro_batch: int) -> AccumulatedStep:
        self._index()
        exchange_s = self._exchange_s(gpus, nodes)
        share = -(-batch_size // gpus)
        size, best = min(share, most_micro_batch), None
        while True:
            steps = -(-share // size)
            # The smallest micro-batch with this number of steps wastes least.
            size = -(-share // steps)
            step_s = steps * self._pass_s(gpus, nodes, size) + exchange_s
            if best is None or step_s < best.step_s:
                best = AccumulatedStep(step_s, size, steps)
            if size == 1:
                return best
            size -= 1

    def _pass_s(self, gpus: int, nodes: int, size: int) -> float:
        measured = self._passes.get((gpus, nodes, size))
        if measured is None:
            measured = self._pass_by_size.get((size,))
        return self._pass_between(size) if measured is None else measured

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

    def _exchange_s(self, gpus: int, nodes: int) -> float:
        if gpus == 1:
            return 0.0
        measured = self._exchanges.get((gpus, nodes))
        if measured is not None:
            return measured
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


class RunningMeans(Generic[K]):
    """Running means by key, the last updated at the end."""

    def __init__(self, state: Iterable[Sequence[Any]]) -> None:
        self._means: dict[K, tuple[float, int]] = {tuple(key): (mean, n) for *key, mean, n in state}  # type: ignore[misc]

    def add(self, key: K, value: float) -> None:
        mean, count = self._means.pop(key, (0.0, 0))
        count = min(count + 1, WINDOW)
        self._means[key] = (mean + (value - mean) / count, count)
        if len(self._means) > MOST_ROWS:
            del self._means[next(iter(self._means))]

    def get(self, key: K) -> float | None:
        found = self._means.get(key)
        return None if found is None else found[0]

    def __getitem__(self, key: K) -> float:
        return self._means[key][0]

    def __iter__(self) -> Iterator[K]:
        return iter(self._means)

    def __len__(self) -> int:
        return len(self._means)

    def state(self) -> list[list[Any]]:
        return [[*key, mean, count] for key, (mean, count) in self._means.items()]


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


MOST_CONFIGURATIONS: Final = 256


class Configuration(NamedTuple):
    """Settings of a job's training, except its batch, that change the duration of its steps."""

    frozen_layers: int = 0
    gradient_checkpointing: bool = False
    pipeline: bool = False


class LookupTable:
    """Table S(a, cfgs) of one base model on one type of GPU."""

    def __init__(self) -> None:
        self._by_configuration: dict[Configuration, StepTimeTable] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the table has no measurement."""
        return not self._by_configuration

    def observe(self, configuration: Configuration, measured: MeasuredStep) -> None:
        """Add a measurement, offline rows first, then reports. An impossible one is ignored."""
        if not is_possible(measured):
            return
        rows = self._by_configuration.get(configuration)
        if rows is None:
            if len(self._by_configuration) >= MOST_CONFIGURATIONS:
                # Never the first, to which the others are compared.
                del self._by_configuration[list(self._by_configuration)[1]]
            rows = self._by_configuration[configuration] = StepTimeTable()
        rows.add(measured)

    def step(
        self,
        configuration: Configuration,
        gpus: int,
        nodes: int,
        batch_size: int,
        most_micro_batch: int,
        scale: float = 1.0,
    ) -> AccumulatedStep:
        """Return the fastest way to do an optimizer step.

        Args:
            configuration: configuration of the job. Without any row for it, the first of the table is used,
                times `scale`.
            gpus: a, over all nodes, at least as many as `nodes`.
            nodes: number of nodes with these GPUs.
            batch_size: M, sequences per optimizer step.
            most_micro_batch: the largest m that fits into the memory of a GPU.
            scale: factor of this job, see `scale_of`.

        Raises:
            LookupError: the table is empty.
            ValueError: a number is below 1, or there are more nodes than GPUs.
        """
        if not 1 <= nodes <= gpus or batch_size < 1 or most_micro_batch < 1:
            raise ValueError(
                f"{gpus} GPUs on {nodes} nodes, batch {batch_size}, micro-batch {most_micro_batch}: all must "
                "be at least 1, with a GPU on each node"
            )
        rows, own = self._rows(configuration)
        step = rows.step(gpus, nodes, batch_size, most_micro_batch)
        return step if own or scale == 1.0 else step._replace(step_s=step.step_s * scale)

    def scale_of(self, configuration: Configuration, measured: Sequence[MeasuredStep]) -> float:
        """Return the duration of the steps of a job over that of the table: the median over its measurements.

        It is 1 for a job whose configuration has a row. Impossible measurements are ignored.

        Raises:
            LookupError: the table is empty.
        """
        rows, own = self._rows(configuration)
        possible = [one for one in measured if is_possible(one)]
        if own or not possible:
            return 1.0
        return statistics.median(one.step_s / rows.measured_step_s(one) for one in possible)

    def state(self) -> list[Any]:
        """Return the state as lists of plain values."""
        return [[*configuration, rows.state()] for configuration, rows in self._by_configuration.items()]

    def restore(self, state: Iterable[Sequence[Any]]) -> None:
        self._by_configuration = {Configuration(*fields): StepTimeTable(rows) for *fields, rows in state}

    def _rows(self, configuration: Configuration) -> tuple[StepTimeTable, bool]:
        rows = self._by_configuration.get(configuration)
        if rows is not None:
            return rows, True
        for first in self._by_configuration.values():
            return first, False
        raise LookupError("the lookup table is empty: give it offline profiles, or profile a job")
