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
from schemas.merging.settings import (
    MAX_CONFIGURATIONS,
    MAX_SPEEDS,
    OWN_SPEEDS,
    STAGES_PER_PIPELINE,
)

MOST_ROWS: Final = MAX_SPEEDS
"""Most rows of the reference; beyond it, the row with the oldest measurement is dropped."""
ROWS_PER_CONFIGURATION: Final = OWN_SPEEDS
"""Most rows of a configuration besides the reference."""
LEAST_PASS_S: Final = 1e-6
"""Least duration of a pass: the launch of a single kernel takes longer."""
WINDOW: Final = 32
"""Number of latest measurements that a running mean follows, approximately."""

_MOST_PASS_S: Final = 1e6
_MOST_SCALE: Final = 1_000.0
"""Largest scale of a job: beyond it, one of both measurements is wrong."""
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

    def __init__(
        self, state: Mapping[str, list[list[Any]]] | None = None, most_rows: int | None = None
    ) -> None:
        state = state or {}
        most = MOST_ROWS if most_rows is None else most_rows
        self._passes = RunningMeans[tuple[int, int, int]](state.get("passes", ()), most)
        """Measured time of a pass without its exchange, by GPUs, nodes and micro-batch."""
        self._pass_by_size = RunningMeans[tuple[int]](state.get("pass_by_size", ()), most)
        """Measured time of a pass without its exchange, by micro-batch only."""
        self._exchanges = RunningMeans[tuple[int, int]](state.get("exchanges", ()), most)
        """Measured time of an exchange, by GPUs and nodes."""
        self._sizes: list[int] = []
        self._lines: dict[int, list[tuple[int, float]]] = {}
        self._index()

    def add(self, measured: MeasuredStep, scale: float = 1.0) -> None:
        """Add a measurement for which `is_possible` holds.

        Args:
            scale: passes of the measured job over those of the table.
        """
        pass_s = min(max(_pass_s(measured) / scale, LEAST_PASS_S), _MOST_PASS_S)
        place = (measured.gpus, measured.nodes)
        self._passes.add((*place, measured.micro_batch_size), pass_s)
        self._pass_by_size.add((measured.micro_batch_size,), pass_s)
        self._exchanges.add(place, measured.exchange_s)
        self._sizes = []

    def step(
        self,
        gpus: int,
        nodes: int,
        batch_size: int,
        most_micro_batch: int,
        scale: float = 1.0,
        reference: "StepTimeTable | None" = None,
    ) -> AccumulatedStep:
        """Return the fastest way to do an optimizer step, see `LookupTable.step`.

        Args:
            reference: table of another configuration, whose curves are used where this one has no row.
        """
        for table in (self,) if reference is None else (self, reference):
            table._index()
        exchange_s = self._exchange_s(gpus, nodes, reference)
        share = -(-batch_size // gpus)
        size, best = min(share, most_micro_batch), None
        while True:
            steps = -(-share // size)
            # The smallest micro-batch with this number of steps wastes least.
            size = -(-share // steps)
            step_s = steps * scale * self._pass_s(gpus, nodes, size, reference) + exchange_s
            if best is None or step_s < best.step_s:
                best = AccumulatedStep(step_s, size, steps)
            if size == 1:
                return best
            size -= 1

    def scale_of(self, measured: Sequence[MeasuredStep]) -> float:
        """Return the passes of a job over those of the table: the median over the micro-batches that both
        have, or 1 without any. Other micro-batches would mix the curve of passes with the level."""
        ratios = [
            _pass_s(one) / self._pass_by_size[one.micro_batch_size,]
            for one in measured
            if is_possible(one) and self._pass_by_size.get((one.micro_batch_size,)) is not None
        ]
        return min(max(statistics.median(ratios), 1 / _MOST_SCALE), _MOST_SCALE) if ratios else 1.0

    def state(self) -> dict[str, list[list[Any]]]:
        return {
            "passes": self._passes.state(),
            "pass_by_size": self._pass_by_size.state(),
            "exchanges": self._exchanges.state(),
        }

    def _pass_s(self, gpus: int, nodes: int, size: int, reference: "StepTimeTable | None" = None) -> float:
        measured = self._passes.get((gpus, nodes, size))
        if measured is None:
            measured = self._pass_by_size.get((size,))
        if measured is not None:
            return measured
        if reference is None:
            return self._pass_between(size)
        # The nearest measured micro-batch shows how much longer a pass is than in the reference.
        at = bisect_left(self._sizes, size)
        near = min(self._sizes[max(at - 1, 0) : at + 1], key=lambda one: abs(one - size))
        return (
            reference._pass_s(gpus, nodes, size) * self._pass_by_size[near,] / reference._pass_s(1, 1, near)
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

    def _exchange_s(self, gpus: int, nodes: int, reference: "StepTimeTable | None" = None) -> float:
        if gpus == 1:
            return 0.0
        measured = self._exchanges.get((gpus, nodes))
        if measured is not None:
            return measured
        if reference is not None:
            # Adapters of one base model have gradients of similar sizes, whatever the passes take.
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


class RunningMeans(Generic[K]):
    """Running means by key, the last updated at the end."""

    def __init__(self, state: Iterable[Sequence[Any]], most_rows: int) -> None:
        self._most_rows = most_rows
        self._means: dict[K, tuple[float, int]] = {tuple(key): (mean, n) for *key, mean, n in state}  # type: ignore[misc]

    def add(self, key: K, value: float) -> None:
        mean, count = self._means.pop(key, (0.0, 0))
        count = min(count + 1, WINDOW)
        self._means[key] = (mean + (value - mean) / count, count)
        if len(self._means) > self._most_rows:
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


MOST_CONFIGURATIONS: Final = MAX_CONFIGURATIONS


class Configuration(NamedTuple):
    """Shape of a job's training, except its batch, that changes the duration of its steps."""

    frozen_layers: int = 0
    gradient_checkpointing: bool = False
    pipeline: bool = False
    sequence_class: int = 0
    """Length of its sequences, see `sequence_class`; 0 for rows of unknown length."""


def sequence_class(tokens: int) -> int:
    """Return the class of a sequence length: its binary logarithm, rounded up."""
    return (tokens - 1).bit_length()


class LookupTable:
    """Table S(a, cfgs) of one base model on one type of GPU.

    Each configuration has rows of its own. Where a configuration without pipelines has none, the curves of
    the first one are used, the *reference*: its passes times the ratio of both at the nearest measured
    micro-batch, and its exchanges. Pipelines have other curves, by the number of pipelines instead of GPUs.
    """

    def __init__(self) -> None:
        self._by_configuration: dict[Configuration, StepTimeTable] = {}
        self._reference: Configuration | None = None

    def has(self, configuration: Configuration) -> bool:
        """Return whether there is a row to forecast a configuration from."""
        return self._reference is not None or configuration in self._by_configuration

    def observe(self, configuration: Configuration, measured: MeasuredStep, scale: float = 1.0) -> None:
        """Add a measurement, offline rows first, then reports. An impossible one is ignored.

        Args:
            scale: factor of the job, see `scale_of`.
        """
        row = _of_pipelines(measured) if configuration.pipeline else measured
        if row is None or not is_possible(row):
            return
        rows = self._by_configuration.get(configuration)
        if rows is None:
            if self._reference is None and not configuration.pipeline:
                self._reference = configuration
            rows = self._by_configuration[configuration] = StepTimeTable(
                most_rows=self._most_rows(configuration)
            )
            if len(self._by_configuration) > MOST_CONFIGURATIONS:
                del self._by_configuration[next(c for c in self._by_configuration if c != self._reference)]
        rows.add(row, scale)

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
            configuration: configuration of the job.
            gpus: a, over all nodes, at least as many as `nodes`.
            nodes: number of nodes with these GPUs.
            batch_size: M, sequences per optimizer step.
            most_micro_batch: the largest m that fits into the memory of a GPU.
            scale: factor of this job, see `scale_of`.

        Raises:
            LookupError: there is no row to forecast it from.
            ValueError: a number is below 1, or there are more nodes than GPUs.
        """
        if not 1 <= nodes <= gpus or batch_size < 1 or most_micro_batch < 1:
            raise ValueError(
                f"{gpus} GPUs on {nodes} nodes, batch {batch_size}, micro-batch {most_micro_batch}: all must "
                "be at least 1, with a GPU on each node"
            )
        own = self._by_configuration.get(configuration)
        reference = None if self._reference is None else self._by_configuration[self._reference]
        if own is None:
            if reference is None:
                raise LookupError("the lookup table is empty: give it offline profiles, or profile a job")
            return reference.step(gpus, nodes, batch_size, most_micro_batch, scale)
        if configuration.pipeline:
            pipelines = max(gpus // STAGES_PER_PIPELINE, 1)
            return own.step(pipelines, min(nodes, pipelines), batch_size, most_micro_batch, scale)
        like = None if own is reference else reference
        return own.step(gpus, nodes, batch_size, most_micro_batch, scale, like)

    def scale_of(self, configuration: Configuration, measured: Sequence[MeasuredStep]) -> float:
        """Return the passes of a job over those of its configuration, see `StepTimeTable.scale_of`: jobs of
        one configuration differ in their data. It is 1 for the first job of a configuration."""
        own = self._by_configuration.get(configuration)
        rows = map(_of_pipelines, measured) if configuration.pipeline else measured
        return 1.0 if own is None else own.scale_of([row for row in rows if row is not None])

    def state(self) -> list[Any]:
        """Return the state as lists of plain values."""
        return [[*configuration, rows.state()] for configuration, rows in self._by_configuration.items()]

    def restore(self, state: Iterable[Sequence[Any]]) -> None:
        self._by_configuration, self._reference = {}, None
        for *fields, rows in state:
            configuration = Configuration(*fields)
            if self._reference is None and not configuration.pipeline:
                self._reference = configuration
            self._by_configuration[configuration] = StepTimeTable(rows, self._most_rows(configuration))

    def _most_rows(self, configuration: Configuration) -> int:
        return MOST_ROWS if configuration == self._reference else ROWS_PER_CONFIGURATION


def _of_pipelines(measured: MeasuredStep) -> MeasuredStep | None:
    """Return a measurement by pipelines instead of GPUs; None if it is not of whole pipelines. A single
    pipeline exchanges no gradients."""
    pipelines, rest = divmod(measured.gpus, STAGES_PER_PIPELINE)
    if rest or not pipelines:
        return None
    exchange_s = measured.exchange_s if pipelines > 1 else 0.0
    nodes = min(measured.nodes, pipelines)
    return measured.model_copy(update={"gpus": pipelines, "nodes": nodes, "exchange_s": exchange_s})
