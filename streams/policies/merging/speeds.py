"""Times of optimizer steps by the profile store, and the numbers of GPUs that speed a job up."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.cells import Zone
from schemas.merging.problems import StepTime
from schemas.merging.reports import MeasuredStep
from schemas.merging.settings import STAGES_PER_PIPELINE, MergingPolicy
from schemas.merging.workload import MAX_GPUS, TuningWorkload
from schemas.profiles import Precision, ProfileKey, sequence_class
from solvers.merging.lookup_table import (
    LEAST_PASS_S,
    PassTimes,
    StepTimeTable,
    faster_only,
    is_possible,
    of_pipelines,
)
from streams.cell.profiles import ZoneProfiles, precision_of
from streams.cell.readings import Reading, StepSetting
from streams.cell.states import Stateful
from streams.policies.merging.kind_of_jobs import KindOfJobs

_FEW = (1, 2, 3)
_UNKNOWN_STEP_S = 1.0
"""Step time on one GPU before anything was measured."""
_STEPS_PER_REPORT = 31
"""Steps that a report counts for if it has no number: those of a usual profile run but the first. The store
keeps the mean of some 32 such reports."""
_MOST_CACHED = 4_096

_Readings = Mapping[StepSetting, Reading]


@dataclass(eq=False)
class _Shape:
    """Step times of the jobs of one shape."""

    key: ProfileKey
    pipeline: bool
    readings: tuple[_Readings, _Readings] = ({}, {})
    """Measured and published readings that its tables are of."""
    measured: StepTimeTable = field(default_factory=StepTimeTable)
    published: StepTimeTable = field(default_factory=StepTimeTable)
    loaded: int = -1
    """Number of changes of the store when it was compared last."""
    version: int = 0
    """Number of changes of its tables."""
    steps: dict[tuple[int, float], tuple[StepTime, ...]] = field(default_factory=dict)
    """Step times by batch size and scale of a kind."""
    reference_version: int = 0
    """Version of the reference by which `steps` were composed."""

    def load(self, profiles: ZoneProfiles) -> None:
        """Compare with the store, and make the tables again if it has other readings."""
        if self.loaded == profiles.changes:
            return
        self.loaded = profiles.changes
        readings = profiles.measured(self.key), profiles.offline(self.key)
        if readings != self.readings:
            self.readings = readings
            self.measured, self.published = (_table(each, self.pipeline) for each in readings)
            self.version += 1
            self.steps.clear()


@dataclass(init=False, eq=False)
class Speeds(Stateful):
    """Step times of one zone.

    Those that runs measured on the zone's nodes count first, then the step times of its settings, then
    published ones, then those of the first shape that was measured in the zone.
    """

    _reference: ProfileKey | None
    """Shape that others are composed from where the settings have no step times: the first measured one, no
    pipeline."""
    _precision: Precision | None
    """Precision of the zone's nodes, as they reported it last."""

    def __init__(self, profiles: ZoneProfiles) -> None:
        self._profiles = profiles
        self._shapes: dict[str, _Shape] = {}
        """Shapes by kind of jobs: those of equal keys are one."""
        self._by_key: dict[ProfileKey, _Shape] = {}
        self._reference, self._precision = None, None
        self._offline = StepTimeTable()

    def configure(self, zone: Zone, gpus: int, per_node: int, policy: MergingPolicy) -> None:
        """Set the number of GPUs of the zone, the most on one node, and the settings."""
        (self._gpu,) = zone.gpu_types
        self._zone, self._gpus, self._per_node = zone, gpus, per_node
        self._memory_gib = (self._gpu.memory_gib - zone.base_model_memory_gib) / self._gpu.gpus
        self._fitting = sorted((row.memory_gib, row.micro_batch_size) for row in policy.memory)
        self._offline = StepTimeTable(policy.speeds)
        self._forget_shapes()

    def profiled(
        self,
        kind: KindOfJobs,
        workload: TuningWorkload,
        user: str,
        steps: Sequence[MeasuredStep],
        memory_gib: float,
    ) -> None:
        """Keep the steps of the profile run of a user's job of a kind. Impossible steps are ignored.

        Args:
            memory_gib: memory of the first of them.
        """
        self._note_precision(steps[0])
        shape = self._shape_of(kind, workload)
        rows = map(of_pipelines, steps) if shape.pipeline else steps
        kind.scale = shape.measured.scale_of([row for row in rows if row is not None])
        for number, step in enumerate(steps):
            self.observe(kind, workload, user, step, None if number else memory_gib)

    def observe(
        self,
        kind: KindOfJobs,
        workload: TuningWorkload,
        user: str,
        step: MeasuredStep,
        memory_gib: float | None = None,
    ) -> None:
        """Keep a measured step of a user's job of a kind. An impossible step is ignored."""
        self._note_precision(step)
        shape = self._shape_of(kind, workload)
        row = of_pipelines(step) if shape.pipeline else step
        if row is None or not is_possible(row):
            return
        if self._reference is None and not shape.pipeline:
            self._reference = shape.key
        times = PassTimes.of(row, kind.scale)
        reading = Reading(
            times.pass_s + times.exchange_s,
            step.steps or _STEPS_PER_REPORT,
            step.tokens_per_sample,
            times.exchange_s,
            memory_gib,
        )
        setting = StepSetting(self._gpu.name, step.micro_batch_size, step.gpus, step.nodes)
        self._profiles.measure(shape.key, user, setting, reading)

    def steps(self, kind: KindOfJobs, workload: TuningWorkload) -> tuple[StepTime, ...]:
        """Return the step time of a kind by number of GPUs, without numbers that are no faster than a smaller
        one."""
        shape, reference = self._shape_of(kind, workload), self._reference_of()
        version = 0 if reference is None else reference.version
        if shape.reference_version != version:
            shape.reference_version = version
            shape.steps.clear()
        key = kind.batch_size, kind.scale
        if key not in shape.steps:
            if len(shape.steps) >= _MOST_CACHED:
                shape.steps.clear()
            tables = self._tables(shape, reference)
            sizes = allowed_sizes(self._gpus, shape.pipeline)
            shape.steps[key] = faster_only((size, self._step_s(kind, tables, size)) for size in sizes)
        return shape.steps[key]

    def restore(self, state: Sequence[Any]) -> None:
        super().restore(state)
        self._forget_shapes()

    def _forget_shapes(self) -> None:
        self._shapes.clear()
        self._by_key.clear()

    def _note_precision(self, step: MeasuredStep) -> None:
        if step.precision is not None and step.precision != self._precision:
            self._precision = step.precision
            self._forget_shapes()

    def _shape_of(self, kind: KindOfJobs, workload: TuningWorkload) -> _Shape:
        shape = self._shapes.get(kind.key)
        if shape is None:
            if len(self._shapes) >= _MOST_CACHED:
                self._forget_shapes()
            key = profile_key(workload, self._precision or precision_of(self._zone))
            shape = self._shapes[kind.key] = self._by_key.setdefault(key, _Shape(key, kind.pipeline))
        shape.load(self._profiles)
        return shape

    def _reference_of(self) -> _Shape | None:
        """Return the reference, if the settings have no step times."""
        if self._offline or self._reference is None:
            return None
        found = self._by_key.setdefault(self._reference, _Shape(self._reference, pipeline=False))
        found.load(self._profiles)
        return found

    def _tables(self, shape: _Shape, reference: _Shape | None) -> list[StepTimeTable]:
        """Return the tables that show a shape's steps, those that count first."""
        others = [shape.published]
        if not shape.pipeline:
            if self._offline:
                others = [self._offline]
            elif reference is not None and reference is not shape:
                others += [reference.measured, reference.published]
        return [table for table in (shape.measured, *others) if table]

    def _step_s(self, kind: KindOfJobs, tables: Sequence[StepTimeTable], gpus: int) -> float:
        if not tables:
            return _UNKNOWN_STEP_S / gpus
        nodes, micro_batch = -(-gpus // self._per_node), self._most_micro_batch(kind.batch_size)
        if kind.pipeline:
            gpus = gpus // STAGES_PER_PIPELINE
            nodes = min(nodes, gpus)
        first, *references = tables
        return first.step(gpus, nodes, kind.batch_size, micro_batch, kind.scale, references).step_s

    def _most_micro_batch(self, batch_size: int) -> int:
        """Return the largest micro-batch that fits into a GPU, as measured offline."""
        fitting = [size for needed_gib, size in self._fitting if needed_gib <= self._memory_gib]
        return max(fitting, default=batch_size) if self._fitting else batch_size


def profile_key(workload: TuningWorkload, precision: Precision) -> ProfileKey:
    """Return the shape of a job."""
    shape = workload.hyperparameters
    parts = [f"frozen-{shape.frozen_layers}"] if shape.frozen_layers else []
    if workload.pipeline:
        parts.append("pipeline")
    return ProfileKey(
        base_model=workload.model,
        sequence_tokens=sequence_class(shape.sequence_length),
        rank=shape.rank,
        target_modules=shape.target_modules,
        precision=precision,
        gradient_checkpointing=shape.gradient_checkpointing,
        variant="-".join(parts) or None,
    )


def _table(readings: _Readings, pipeline: bool) -> StepTimeTable:
    """Return the table of a shape's readings; a pipeline counts as a GPU, and a single one exchanges
    nothing."""
    table = StepTimeTable()
    for at in sorted(readings):
        reading, gpus = readings[at], at.gpus
        if pipeline:
            gpus, rest = divmod(gpus, STAGES_PER_PIPELINE)
            if rest or not gpus:
                continue
        exchange_s = reading.exchange_s if gpus > 1 else 0.0
        pass_s = max(reading.step_s - exchange_s, LEAST_PASS_S)
        times = PassTimes(gpus, min(at.nodes, gpus), at.micro_batch_size, pass_s, exchange_s)
        table.add(times, reading.steps / _STEPS_PER_REPORT)
    return table


def allowed_sizes(gpus: int, pipeline: bool) -> Iterator[int]:
    """Yield the numbers of GPUs of a job: {1, 2, 3, 4m}, or {4m} for a pipeline-parallel one (sections 5.1
    and 5.2), up to `MAX_GPUS`."""
    gpus = min(gpus, MAX_GPUS)
    if not pipeline:
        yield from (size for size in _FEW if size <= gpus)
    yield from range(STAGES_PER_PIPELINE, gpus + 1, STAGES_PER_PIPELINE)
