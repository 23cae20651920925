"""How well the lookup table foretells steps that it was not shown, on the measured placements.

Rows are hidden in four ways: each fifth of them by a hash; each allocation (GPUs on nodes) in turn; each
micro-batch in turn, on all allocations; and all at once but for a short profile, of five allocations and
three micro-batches.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.figures import Measurement, Result, Table
from bench.merging.measured import read_profiles
from schemas.merging.reports import MeasuredStep
from solvers.merging.step_times import StepTimes

BACKBONES = (("roberta-base", "V100"), ("roberta-base", "A100"), ("vit", "V100"), ("vit", "A100"))
_PARTS = 5
_SHORT_PROFILE = {(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)}
"""GPUs and nodes."""

Group = Callable[[MeasuredStep], object]
"""Rows of one group are hidden together."""


def interpolation(folder: Path, backbones: Sequence[tuple[str, str]] = BACKBONES) -> Result:
    """Errors of hidden rows, over all these base models and types of GPU together; the table has them
    apart."""
    rows: list[tuple[float | str | None, ...]] = []
    measurements = []
    for way, grouped in _WAYS.items():
        every: list[float] = []
        for model, gpu in backbones:
            steps = list(read_profiles(folder, model, gpu).steps)
            errors = list(_hidden(steps, grouped(steps)))
            every += errors
            rows.append((model, gpu, way, len(errors), sum(errors) / len(errors), max(errors)))
        note = f"mean error of a step's time, hidden: {way}; the largest is {max(every):.1f} %"
        name = f"step_time_error_{way.replace(' ', '_')}_pct"
        measurements.append(Measurement(name, sum(every) / len(every), note, len(every)))
    columns = ("model", "gpu", "hidden", "rows", "mean_error_pct", "max_error_pct")
    return Result(tuple(measurements), (Table("interpolation", columns, rows),))


def _hidden(steps: Sequence[MeasuredStep], group: Group) -> Iterator[float]:
    """The error of each row in percent, when its whole group is hidden. Rows of the group None never are."""
    groups = [group(step) for step in steps]
    for hidden in dict.fromkeys(of for of in groups if of is not None):
        table = StepTimes()
        for step, of in zip(steps, groups, strict=True):
            if of != hidden:
                table.add(step)
        for step, of in zip(steps, groups, strict=True):
            if of == hidden:
                yield 100.0 * abs(table.measured_step_s(step) - step.step_s) / step.step_s


def _by_part(_: Sequence[MeasuredStep]) -> Group:
    def group(step: MeasuredStep) -> int:
        key = f"{step.gpus}/{step.nodes}/{step.micro_batch_size}"
        return hashlib.blake2b(key.encode(), digest_size=8).digest()[0] % _PARTS

    return group


def _but_a_short_profile(steps: Sequence[MeasuredStep]) -> Group:
    sizes = sorted({step.micro_batch_size for step in steps})
    kept = {sizes[0], sizes[len(sizes) // 2], sizes[-1]}

    def group(step: MeasuredStep) -> str | None:
        in_profile = (step.gpus, step.nodes) in _SHORT_PROFILE and step.micro_batch_size in kept
        return None if in_profile else "all others"

    return group


_WAYS: dict[str, Callable[[Sequence[MeasuredStep]], Group]] = {
    "rows": _by_part,
    "allocations": lambda _: lambda step: (step.gpus, step.nodes),
    "micro batches": lambda _: lambda step: step.micro_batch_size,
    "all but a short profile": _but_a_short_profile,
}
