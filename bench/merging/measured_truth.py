"""Simulated jobs that learn by measured curves, steps and merges of a folder of profiles."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

from bench.merging.curves import Curve
from bench.merging.measured import Profiles, WorkloadJob
from infra.simulation.merging.truth import AccuracyAfter, ProfileTruth
from schemas.lora import Dataset
from schemas.merging.estimates import MAX_OUTCOMES, MergeMode, PastMerge
from schemas.merging.reports import MeasuredStep
from schemas.merging.workload import TrainingTarget, TuningHyperparameters, TuningWorkload
from streams.policies.merging.kind_of_jobs import task_key

EPOCHS = 10
"""Epochs after which jobs end, even without their targets."""
ROUNDING = 1e-6
"""Precision of curves; targets are not rounded."""
_EMBEDDING = (1.0,)
"""Constant, because there are no measurements: all tasks look alike, and gains are forecast from outcomes of
other pairs."""


Placement = tuple[int, ...]
"""GPUs per node, ascending, on the nodes that have any."""

_Rows = Mapping[int, tuple[float, float]]
"""Seconds of a step, and those of synchronisation in it, by batch per GPU."""


class GpuCluster(NamedTuple):
    """A cluster of equal nodes."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    def compact(self, gpus: int) -> Placement:
        """Place GPUs on as few empty nodes as possible."""
        whole, rest = divmod(gpus, self.gpus_per_node)
        return ((rest,) if rest else ()) + (self.gpus_per_node,) * whole


class PlacementStepTimes:
    """The fastest step of a batch on each placement."""

    def __init__(self, profiles: Profiles, cluster: GpuCluster) -> None:
        self._exact: dict[Placement, dict[int, tuple[float, float]]] = defaultdict(dict)
        for row in profiles.placements:
            self._exact[tuple(sorted(row.gpus_per_node))][row.micro_batch_size] = row.step_s, row.exchange_s
        self._by_shape: dict[tuple[int, int], dict[int, tuple[float, float]]] = defaultdict(dict)
        for row in profiles.large_placements:
            shape = sum(row.gpus_per_node), len(row.gpus_per_node)
            self._by_shape[shape][row.micro_batch_size] = row.step_s, row.exchange_s
        self._cluster = cluster

    def fastest(self, batch: int, placement: Placement) -> MeasuredStep:
        """Return the fastest step of a batch, over all numbers of accumulated parts. GPUs among which the
        batch cannot be split are idle."""
        gpus = sum(placement)
        while (way := _fastest_accumulation(self._measured(placement), batch, gpus)) is None:
            gpus -= 1
            placement = self._cluster.compact(gpus)
        step_s, exchange_s, micro_batch_size, accumulated = way
        return MeasuredStep(
            gpus=gpus,
            nodes=len(placement),
            micro_batch_size=micro_batch_size,
            accumulation_steps=accumulated,
            step_s=step_s,
            exchange_s=min(exchange_s, step_s),
        )

    def _measured(self, placement: Placement) -> _Rows:
        """Return the steps measured on a placement, or else on the most similar number of nodes:
        synchronisation between nodes was found to depend on the number of GPUs alone."""
        if placement in self._exact:
            return self._exact[placement]
        gpus, nodes = sum(placement), len(placement)
        shapes = [shape for shape in self._by_shape if shape[0] == gpus]
        if not shapes:
            return {}
        return self._by_shape[min(shapes, key=lambda shape: (abs(shape[1] - nodes), shape[1]))]


def _fastest_accumulation(rows: _Rows, batch: int, gpus: int) -> tuple[float, float, int, int] | None:
    """Return the fastest way to accumulate a batch: seconds of a step, seconds of synchronisation, batch per
    GPU, and number of parts. None if the batch cannot be split into measured parts."""
    ways = []
    for local, (step_s, sync_s) in rows.items():
        accumulated, rest = divmod(batch, local * gpus)
        if accumulated > 0 and rest == 0:
            ways.append(((accumulated - 1) * (step_s - sync_s) + step_s, sync_s, local, accumulated))
    return min(ways, default=None)


@dataclass(frozen=True)
class Switching:
    """Times to start a task."""

    cold_s: float
    warm_s: float


def workload_of(job: WorkloadJob, profiles: Profiles) -> TuningWorkload:
    """Return the workload that a user submits."""
    samples = profiles.samples[job.task]
    hyperparameters = TuningHyperparameters(
        batch_size=job.batch_size, learning_rate=float(job.setting.learning_rate)
    )
    steps = -(-samples // job.batch_size)
    return TuningWorkload(
        model=profiles.model,
        dataset=Dataset(path=f"{job.task}.jsonl", samples=samples),
        validation_path=f"{job.task}.validation.jsonl",
        hyperparameters=hyperparameters,
        target=TrainingTarget(accuracy=min(job.target, 1.0) - ROUNDING, most_iterations=EPOCHS * steps),
        gpus=job.gpus,
    )


class MeasuredTruth:
    """Measured jobs, see `Truth`. Unmeasured pairs have no gain: the receiver learns as if it were alone."""

    def __init__(
        self,
        profiles: Profiles,
        jobs: Sequence[WorkloadJob],
        step_times: PlacementStepTimes,
        switching: Switching,
    ) -> None:
        self._profiles = profiles
        self._settings = {
            (job.task, float(job.setting.learning_rate), job.batch_size): job.setting for job in jobs
        }
        self._step_times = step_times
        self._switching = switching

    def profile(self, workload: TuningWorkload, iterations: int) -> ProfileTruth:
        """Return the beginning of the job's own curve, as a loss."""
        curve = self._single(workload)
        first = curve.values[0]
        per_epoch = workload.iterations_per_epoch
        losses = tuple(1.0 - first * min(step / per_epoch, 1.0) for step in range(1, iterations + 1))
        return ProfileTruth(losses, _EMBEDDING, None, loader_s=0.0, memory_gib=0.0)

    def alone(self, workload: TuningWorkload) -> AccuracyAfter:
        """See `Truth`."""
        return _after(self._single(workload))

    def merged(self, mode: MergeMode, workload: TuningWorkload, partner: TuningWorkload) -> AccuracyAfter:
        """See `Truth`."""
        curve = self._profiles.curves.merged(task_of(partner), task_of(workload), mode)
        return self.alone(workload) if curve is None else _after(curve)

    def as_receiver(self, workload: TuningWorkload, donor: TuningWorkload) -> None:
        """Return None, because there are no measurements."""

    def step(self, workload: TuningWorkload, placement: tuple[int, ...]) -> MeasuredStep:
        """See `Truth`."""
        return self._step_times.fastest(workload.hyperparameters.batch_size, tuple(sorted(placement)))

    def start_s(self, workload: TuningWorkload, is_warm: bool, is_prewarmed: bool) -> float:
        """See `Truth`."""
        del workload, is_prewarmed  # loaders were not measured
        return self._switching.warm_s if is_warm else self._switching.cold_s

    def _single(self, workload: TuningWorkload) -> Curve:
        hyperparameters = workload.hyperparameters
        key = (task_of(workload), hyperparameters.learning_rate, hyperparameters.batch_size)
        return self._profiles.single(key[0], self._settings[key])


def task_of(workload: TuningWorkload) -> str:
    """Return the task's name in the measurements."""
    return workload.dataset.path.removesuffix(".jsonl")


def _after(curve: Curve) -> AccuracyAfter:
    """Return the latest value that was measured by then; epochs such as 0.97 count as whole ones."""
    values = {round(epoch): value for epoch, value in zip(curve.epochs, curve.values, strict=True)}

    @lru_cache(maxsize=64)
    def accuracy(epochs: float) -> float:
        seen = [epoch for epoch in values if epoch <= epochs + 1e-6]
        return values[max(seen)] if seen else 0.0

    return accuracy


MODES: tuple[MergeMode, ...] = ("temporal", "spatial")


def is_known(one: str, other: str) -> bool:
    """Return whether the pair is in the known half, by a hash of both names: in either order and both modes,
    or never."""
    names = "/".join(sorted((one, other)))
    return hashlib.blake2b(f"known/{names}".encode(), digest_size=8).digest()[0] % 2 == 0


def past_merges(profiles: Profiles, jobs: Sequence[WorkloadJob]) -> tuple[PastMerge, ...]:
    """Return the outcomes of all measured merges of the known half, with each receiver in the setting of its
    workload: the initial knowledge of a zone."""
    by_task = {job.task: job for job in reversed(jobs)}
    found = (
        _past(profiles, mode, by_task[donor], by_task[receiver])
        for mode in MODES
        for donor, receiver in permutations(sorted(by_task), 2)
        if is_known(donor, receiver)
    )
    return tuple(past for past in found if past is not None)[:MAX_OUTCOMES]


def _past(profiles: Profiles, mode: MergeMode, donor: WorkloadJob, receiver: WorkloadJob) -> PastMerge | None:
    curve = profiles.curves.merged(donor.task, receiver.task, mode)
    if curve is None:
        return None
    donor_workload, receiver_workload = workload_of(donor, profiles), workload_of(receiver, profiles)
    alone = profiles.single(receiver.task, receiver.setting)
    own, epochs = alone.first_reaching(alone.best), curve.first_reaching(alone.best)
    assert own is not None
    return PastMerge(
        mode=mode,
        donor=task_key(donor_workload),
        donor_samples=donor_workload.dataset.samples,
        receiver=task_key(receiver_workload),
        receiver_samples=receiver_workload.dataset.samples,
        score=None,
        gain=(curve.best - alone.best) / alone.best,
        target=min(alone.best, 1.0),
        best=min(max(curve.best, 0.0), 1.0),
        epochs=None if epochs is None else float(epochs),
        own_epochs=float(own),
    )
