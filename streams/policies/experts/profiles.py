"""The profiles of an experts zone: step and dispatch times of trainings by their number of ranks."""

from collections.abc import Mapping
from typing import get_args

from schemas.experts.outcomes import QueuedRanks
from schemas.experts.workload import MoeTrainWorkload
from schemas.profiles import MeasuredSteps, Precision, ProfileKey, sequence_class
from solvers.common.step_curve import StepPoint, fit_curve
from streams.cell.readings import Reading
from streams.policies.gang.measured_steps import setting_of
from streams.policies.policy import ZoneContext

_PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class ExpertsProfiles:
    """The profile store of one zone, for trainings of models with experts."""

    def __init__(self, context: ZoneContext) -> None:
        self._profiles = context.profiles
        self._type_of = {node.id: node.gpu_type for node in context.zone.nodes}

    def add(
        self, workload: MoeTrainWorkload, user: str, members: Mapping[str, int], steps: MeasuredSteps
    ) -> None:
        """Add measured steps of a user's training, if they count, see `setting_of`.

        Args:
            members: ranks by node.
        """
        setting = setting_of(steps, members, self._type_of, workload.hyperparameters.sequence_length)
        if setting is not None:
            self._profiles.measure(_key(workload, steps.precision), user, setting, Reading.of(steps))

    def queued(self, workload: MoeTrainWorkload, user: str, jobs_waiting: int) -> QueuedRanks:
        """Return the evidence of the admission of a user's training, with the times that are expected of it
        if steps of its kind were measured, on the slowest GPU type among these."""
        keys = [_key(workload, precision) for precision in _PRECISIONS]
        readings = self._profiles.counting(keys, user)
        by_type: dict[str, list[StepPoint]] = {}
        for at in sorted(readings):
            each = readings[at]
            pass_s = max(each.step_s - each.exchange_s, 0.0) + (each.loader_s or 0.0)
            point = StepPoint(at.gpus, at.micro_batch_size, pass_s, each.exchange_s)
            by_type.setdefault(at.gpu_type, []).append(point)
        ranks, batch = workload.ranks, workload.hyperparameters.global_batch_size
        curves = [fit_curve(points) for points in by_type.values()]
        if not curves:
            return QueuedRanks(jobs_waiting=jobs_waiting, ranks=ranks)
        micro_batch = -(-batch // ranks)
        slowest = max(curves, key=lambda curve: curve.step_s(ranks, batch, micro_batch))
        step_s = slowest.step_s(ranks, batch, micro_batch)
        return QueuedRanks(
            jobs_waiting=jobs_waiting,
            ranks=ranks,
            step_s=step_s,
            dispatch_s=slowest.exchange_at(ranks),
            running_s=step_s * workload.work_samples / batch,
            duration_error_pct=100 * slowest.relative_error,
        )


def _key(workload: MoeTrainWorkload, precision: Precision) -> ProfileKey:
    adapter, converted, gating = workload.adapter, workload.conversion, workload.gating
    parts: list[str] = [gating.mode]
    if gating.threshold is not None:
        parts.append(f"{gating.threshold:g}")
    if gating.threshold_on is not None:
        parts.append(f"on-{gating.threshold_on}")
    if converted is not None:
        parts.append(f"{converted.experts}-experts-every-{converted.every}")
    if workload.experts_per_device is not None:
        parts.append(f"{workload.experts_per_device}-per-device")
    return ProfileKey(
        base_model=workload.model,
        sequence_tokens=sequence_class(workload.hyperparameters.sequence_length),
        rank=0 if adapter is None else adapter.rank,
        target_modules=() if adapter is None else adapter.target_modules,
        precision=precision,
        dataset=workload.dataset.path,
        variant="-".join(parts),
    )
