"""The profiles of an elastic zone: what its runs measure, and the step times that are known of a job."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, cast

from schemas.elastic.outcomes import SpeedFrom
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import ElasticWorkload
from schemas.profiles import MeasuredSteps, Precision, ProfileKey, sequence_class
from solvers.common.step_curve import StepCurve, StepPoint, fit_curve
from streams.cell.profiles import Source, ZoneProfiles
from streams.cell.readings import Reading, StepSetting
from streams.policies.elastic.sizes import ServerSizes
from streams.policies.gang.measured_steps import setting_of
from streams.policies.policy import ZoneContext

_PRECISIONS: tuple[Precision, ...] = ("bfloat16", "float32")
"""Precisions of the runner: the first on CUDA, the second on a CPU."""


@dataclass(frozen=True)
class KnownSteps:
    """Step times of a job's kind, on the reference GPU."""

    curve: StepCurve
    speed_from: SpeedFrom
    """`measured` or `offline`."""

    @classmethod
    def of_speed(cls, workload: ElasticWorkload, workers: int, samples_per_s: float) -> Self:
        """Return the curve that follows from the speed of a number of workers alone, where measured steps do
        not count."""
        gpus, batch = workers * workload.gpus_per_worker, workload.hyperparameters.global_batch_size
        point = StepPoint(gpus, batch / gpus, batch / samples_per_s, 0.0)
        return cls(fit_curve([point]), "measured")


class ElasticProfiles:
    """The profile store of one zone, for data-parallel jobs, under one configuration of the zone."""

    def __init__(self, context: ZoneContext, sizes: ServerSizes) -> None:
        self._profiles: ZoneProfiles = context.profiles
        self._type_of = {node.id: node.gpu_type for node in context.zone.nodes}
        self._reference = cast(ElasticPolicy, context.zone.policy).reference_gpu_type
        self._slowness = {name: workers for name, (_, workers) in sizes.by_gpu_type.items()}
        """Number of GPUs that are as fast as one reference GPU, by type."""

    def add(
        self, workload: ElasticWorkload, user: str, members: Mapping[str, int], steps: MeasuredSteps
    ) -> bool:
        """Add measured steps of a user's job, for its dataset and for any; return whether they count, see
        `setting_of`.

        Args:
            members: workers by node.
        """
        length = workload.hyperparameters.sequence_length
        setting = setting_of(steps, members, self._type_of, length, workload.gpus_per_worker)
        if setting is None:
            return False
        for key in _keys(workload, (steps.precision,)):
            self._profiles.measure(key, user, setting, Reading.of(steps))
        return True

    def known(self, workload: ElasticWorkload, user: str) -> KnownSteps | None:
        """Return what is known of a user's job; None without anything.

        Measured steps count first: steps with its dataset, or, without any, steps with any dataset. In each
        configuration, the user's own runs count before those of others. Without any, offline profiles count
        in the same order, unless the job declares its speed: whoever may publish profiles cannot correct a
        user. Steps on other GPUs than the reference one count only if it has none.
        """
        for readings, source in self._readings(workload, user):
            of_reference = {at: each for at, each in readings.items() if at.gpu_type == self._reference}
            counting = of_reference or readings
            points = [
                self._point(at, counting[at]) for at in sorted(counting) if at.gpu_type in self._slowness
            ]
            if points:
                return KnownSteps(fit_curve(points), source)
        return None

    def _readings(
        self, workload: ElasticWorkload, user: str
    ) -> Iterator[tuple[dict[StepSetting, Reading], Source]]:
        """Yield the readings of a job's kinds by configuration, with their source; those that count first."""
        profiles, keys = self._profiles, _keys(workload, _PRECISIONS)
        with_its_dataset, with_any = keys[::2], keys[1::2]
        for kinds in with_its_dataset, with_any:
            measured = dict[StepSetting, Reading]()
            for key in kinds:
                measured |= profiles.others(key, user) | profiles.own(key, user)
            yield measured, "measured"
        if workload.samples_per_s is None:
            for kinds in with_its_dataset, with_any:
                yield {at: each for key in kinds for at, each in profiles.offline(key).items()}, "offline"

    def _point(self, at: StepSetting, reading: Reading) -> StepPoint:
        """Return a reading in reference GPUs: three GPUs with a third of the speed count as one (erratum
        L4)."""
        slowness = self._slowness[at.gpu_type]
        pass_s = reading.step_s - reading.exchange_s + (reading.loader_s or 0.0)
        return StepPoint(
            at.gpus / slowness, at.micro_batch_size, max(pass_s, 0.0) / slowness, reading.exchange_s
        )


def kind_of(workload: ElasticWorkload) -> Hashable:
    """Return what jobs have in common whose measured steps count for each other first."""
    shape = workload.hyperparameters
    return workload.model, workload.dataset.path, sequence_class(shape.sequence_length), workload.adapter


def _keys(workload: ElasticWorkload, precisions: Sequence[Precision]) -> list[ProfileKey]:
    """Return the kinds of a job's steps: for each precision, those with its dataset and those with any."""
    adapter, shape = workload.adapter, workload.hyperparameters
    return [
        ProfileKey(
            base_model=workload.model,
            sequence_tokens=sequence_class(shape.sequence_length),
            rank=0 if adapter is None else adapter.rank,
            target_modules=() if adapter is None else adapter.target_modules,
            precision=precision,
            dataset=dataset,
        )
        for precision in precisions
        for dataset in (workload.dataset.path, None)
    ]
