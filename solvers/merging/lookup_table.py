"""Seconds per optimizer step: the lookup table S(a, cfgs) of the time estimator (Ymir, section 4.3).

The table is seeded with offline measurements and updated by reports of executors: every row is a running
mean. Of the micro-batches that fit into memory, the fastest is taken (`step_times`).

Cells use it, so it is plain arithmetic in a fixed order.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from schemas.merging.reports import MeasuredStep
from solvers.merging.step_times import Step, StepTimes, is_possible

MOST_CONFIGURATIONS: Final = 256


class Configuration(NamedTuple):
    """Settings of a job's training, except its batch, that change the duration of its steps."""

    frozen_layers: int = 0
    gradient_checkpointing: bool = False
    pipeline: bool = False


class LookupTable:
    """Table S(a, cfgs) of one base model on one type of GPU."""

    def __init__(self) -> None:
        self._by_configuration: dict[Configuration, StepTimes] = {}

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
            rows = self._by_configuration[configuration] = StepTimes()
        rows.add(measured)

    def step(
        self,
        configuration: Configuration,
        gpus: int,
        nodes: int,
        batch_size: int,
        most_micro_batch: int,
        scale: float = 1.0,
    ) -> Step:
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
        """Restore the table from a state."""
        self._by_configuration = {Configuration(*fields): StepTimes(rows) for *fields, rows in state}

    def _rows(self, configuration: Configuration) -> tuple[StepTimes, bool]:
        rows = self._by_configuration.get(configuration)
        if rows is not None:
            return rows, True
        for first in self._by_configuration.values():
            return first, False
        raise LookupError("the lookup table is empty: give it offline profiles, or profile a job")
