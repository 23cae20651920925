"""Seconds per optimizer step: the lookup table S(a, cfgs) of the time estimator (Ymir, section 4.3).

The table is seeded with offline measurements and follows what executors report: every row is a running
mean. Of the micro-batches that fit into memory the fastest is taken (`step_times`).

Cells use it, so it is plain arithmetic in a fixed order.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from schemas.merging.reports import MeasuredStep
from solvers.merging.step_times import Step, StepTimes, is_possible

MOST_CONFIGURATIONS: Final = 256


class Configuration(NamedTuple):
    """What of a job's training, beside its batch, makes its steps faster or slower."""

    frozen_layers: int = 0
    gradient_checkpointing: bool = False
    pipeline: bool = False


class LookupTable:
    """S(a, cfgs) of one base model on one type of GPU."""

    def __init__(self) -> None:
        self._by_configuration: dict[Configuration, StepTimes] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted yet."""
        return not self._by_configuration

    def observe(self, configuration: Configuration, measured: MeasuredStep) -> None:
        """Count a measurement, offline rows first, then what is reported, unless it cannot be."""
        if not is_possible(measured):
            return
        rows = self._by_configuration.get(configuration)
        if rows is None:
            if len(self._by_configuration) >= MOST_CONFIGURATIONS:
                # Never the first, which the others are measured against.
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
        """The fastest way to do an optimizer step.

        Args:
            configuration: of the job. One without any row is taken for the first that the table got, times
                `scale`.
            gpus: a, over all nodes, at least as many as `nodes`.
            nodes: that they are on.
            batch_size: M, sequences of an optimizer step.
            most_micro_batch: the largest m that fits into the memory of a GPU.
            scale: of this job, see `scale_of`.

        Raises:
            LookupError: the table is empty.
            ValueError: a number is below 1, or there are more nodes than GPUs.
        """
        if not 1 <= nodes <= gpus or batch_size < 1 or most_micro_batch < 1:
            raise ValueError(
                f"{gpus} GPUs on {nodes} nodes, batch {batch_size}, micro-batch {most_micro_batch}: all are "
                "at least 1, with a GPU on each node"
            )
        rows, own = self._rows(configuration)
        step = rows.step(gpus, nodes, batch_size, most_micro_batch)
        return step if own or scale == 1.0 else step._replace(step_s=step.step_s * scale)

    def scale_of(self, configuration: Configuration, measured: Sequence[MeasuredStep]) -> float:
        """How much slower the steps of a job are than the table says: the median over its measurements. For
        jobs whose configuration has no row; 1 for all others. Measurements that cannot be are passed over.

        Raises:
            LookupError: the table is empty.
        """
        rows, own = self._rows(configuration)
        possible = [one for one in measured if is_possible(one)]
        if own or not possible:
            return 1.0
        return statistics.median(one.step_s / rows.measured_step_s(one) for one in possible)

    def state(self) -> list[Any]:
        """Lists of plain values."""
        return [[*configuration, rows.state()] for configuration, rows in self._by_configuration.items()]

    def restore(self, state: Iterable[Sequence[Any]]) -> None:
        """Become what `state` was taken of."""
        self._by_configuration = {Configuration(*fields): StepTimes(rows) for *fields, rows in state}

    def _rows(self, configuration: Configuration) -> tuple[StepTimes, bool]:
        rows = self._by_configuration.get(configuration)
        if rows is not None:
            return rows, True
        for first in self._by_configuration.values():
            return first, False
        raise LookupError("the lookup table is empty: give it offline profiles, or profile a job")
