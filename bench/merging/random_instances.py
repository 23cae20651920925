"""Seeded instances of the task merger's problem, of the size of a large cluster."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.merging.measured import Profiles, WorkloadJob
from schemas.merging.problems import MAX_TRANSFERS, JobKind, MergeProblem, StepTime, TransferPair, Unit
from schemas.merging.settings import MAX_SPEEDS
from solvers.merging.lookup_table import StepTimeTable, faster_only
from streams.policies.merging.speeds import allowed_sizes

INTERVAL_S = 120.0
_EPOCHS = 10


class TimedKind(NamedTuple):
    """A kind of jobs with step times of its own; see `JobKind`."""

    steps: tuple[StepTime, ...]
    samples_per_step: int
    dataset_samples: int


def listed(kinds: Iterable[TimedKind]) -> Mapping[str, Any]:
    """Return the fields of a problem about some kinds, with shared tables."""
    places: dict[tuple[StepTime, ...], int] = {}
    fields = tuple(
        JobKind(
            step_table=places.setdefault(kind.steps, len(places)),
            samples_per_step=kind.samples_per_step,
            dataset_samples=kind.dataset_samples,
        )
        for kind in kinds
    )
    return {"step_tables": tuple(places), "kinds": fields}


@dataclass(frozen=True)
class InstanceShape:
    """Parameters of a synthetic instance."""

    units: int = 3_000
    gpus: int = 240
    kinds: int = 9
    step_spread: float = 1.0
    """Standard deviation of the logarithm of step times, over the kinds."""
    scaling: float = 0.85
    """Exponent of the speedup: a GPUs are about a ** scaling times as fast as one."""
    most_gpus: int = 240
    """Most GPUs of a job."""
    every_size: bool = False
    """Whether jobs may have any number of GPUs, not only those that a zone assigns."""
    iteration_spread: float = 2.0
    """Standard deviation of the logarithm of the remaining iterations."""
    density: float = 1.0
    """Part of all pairs of kinds that has transfers."""
    least_ratio: float = 0.05
    most_ratio: float = 1.2
    spatial: bool = True
    running: float = 1.0
    """Part of the GPUs that is held."""
    fresh: float = 0.7
    """Part of the units without progress."""
    leading: float = 0.3
    """Part of the running units with a follower."""
    waited_s: float = 3_600.0
    """Mean time for which units have waited."""
    equal_waits: bool = False
    """Whether all have waited equally long."""
    switch_s: float = 6.0
    seed: int = 0

    @property
    def text(self) -> str:
        """Description in words."""
        return (
            f"{self.units} units, {self.gpus} GPUs, {self.kinds} kinds, {self.density:.0%} of pairs at "
            f"ratios {self.least_ratio:.2f} to {self.most_ratio:.2f}, up to {self.most_gpus} GPUs a job"
            f"{', any number' if self.every_size else ''}, {self.fresh:.0%} of units without progress"
        )


def synthetic(shape: InstanceShape) -> MergeProblem:
    """Draw an instance with given parameters."""
    rng = random.Random(f"merge/{shape.seed}")
    kinds = tuple(_kind(rng, shape) for _ in range(shape.kinds))
    pairs = [
        (mode, donor, receiver)
        for mode in (("temporal", "spatial") if shape.spatial else ("temporal",))
        for donor in range(shape.kinds)
        for receiver in range(shape.kinds)
        if mode == "temporal" or donor <= receiver
    ]
    low, high = sorted((shape.least_ratio, shape.most_ratio))
    transfers = tuple(
        TransferPair.model_validate(
            {
                "mode": mode,
                "donor": donor,
                "receiver": receiver,
                "receiver_ratio": rng.uniform(low, high),
                "donor_ratio": rng.uniform(low, high) if mode == "spatial" else 1.0,
            }
        )
        for mode, donor, receiver in pairs
        if rng.random() < shape.density
    )[:MAX_TRANSFERS]
    iterations = [max(1.0, 1_000.0 * rng.lognormvariate(0.0, shape.iteration_spread)) for _ in kinds]
    return MergeProblem(
        gpus=shape.gpus,
        interval_s=INTERVAL_S,
        switch_s=shape.switch_s,
        **listed(kinds),
        units=_units(rng, shape, kinds, iterations, [rng.randrange(shape.kinds) for _ in range(shape.units)]),
        transfers=transfers,
    )


def measured_mix(
    profiles: Profiles, jobs: Sequence[WorkloadJob], units: int, gpus: int, seed: int
) -> MergeProblem:
    """Draw an instance with the measured steps, tasks and transfers: each of its jobs is drawn uniformly from
    the workload."""
    rng = random.Random(f"mix/{seed}")
    by_task = {job.task: job for job in reversed(jobs)}
    tasks = list(by_task)
    kinds = tuple(_measured_kind(profiles, by_task[task], gpus) for task in tasks)
    transfers = []
    for mode in ("temporal", "spatial"):
        for donor in tasks:
            for receiver in tasks:
                ratio = _ratio(profiles, by_task[receiver], donor, mode)
                back = _ratio(profiles, by_task[donor], receiver, mode)
                a, b = tasks.index(donor), tasks.index(receiver)
                if mode == "temporal" or a <= b:
                    fields = {"mode": mode, "donor": a, "receiver": b, "receiver_ratio": ratio}
                    transfers.append(
                        TransferPair.model_validate(
                            fields | ({"donor_ratio": back} if mode == "spatial" else {})
                        )
                    )
    iterations = []
    for task, kind in zip(tasks, kinds, strict=True):
        curve = profiles.single(task, by_task[task].setting)
        epochs = curve.first_reaching(by_task[task].target) or _EPOCHS
        iterations.append(float(epochs * -(-kind.dataset_samples // kind.samples_per_step)))
    shape = InstanceShape(units=units, gpus=gpus, kinds=len(kinds))
    chosen = [tasks.index(rng.choice(list(jobs)).task) for _ in range(units)]
    return MergeProblem(
        gpus=gpus,
        interval_s=INTERVAL_S,
        switch_s=shape.switch_s,
        **listed(kinds),
        units=_units(rng, shape, kinds, iterations, chosen),
        transfers=tuple(transfers),
    )


def _kind(rng: random.Random, shape: InstanceShape) -> TimedKind:
    one_s = 0.2 * rng.lognormvariate(0.0, shape.step_spread)
    most = min(shape.gpus, shape.most_gpus)
    sizes = range(1, most + 1) if shape.every_size else allowed_sizes(most, pipeline=False)
    return TimedKind(
        steps=faster_only((size, one_s / size**shape.scaling * rng.uniform(0.98, 1.02)) for size in sizes),
        samples_per_step=rng.choice((16, 64, 128)),
        dataset_samples=rng.randint(200, 100_000),
    )


def _units(
    rng: random.Random,
    shape: InstanceShape,
    kinds: Sequence[TimedKind],
    iterations: Sequence[float],
    chosen: Sequence[int],
) -> tuple[Unit, ...]:
    """Draw units: some run, some lead a merge, and the others wait."""
    left = int(shape.running * shape.gpus)
    found: list[dict[str, object]] = []
    followers: dict[int, list[int]] = {}
    for number, kind in enumerate(chosen):
        is_fresh = rng.random() < shape.fresh
        waited_s = shape.waited_s if shape.equal_waits else rng.expovariate(1.0 / max(shape.waited_s, 1e-9))
        fields: dict[str, object] = {
            "job_ids": (f"j{number}",),
            "kind": kind,
            "iterations": iterations[kind] if is_fresh else max(iterations[kind] * rng.random(), 1.0),
            "waited_s": waited_s,
            "part": "any" if is_fresh else "donor",
            "gpus": 0,
        }
        if left > 0 and rng.random() < 0.5:
            sizes = [step.gpus for step in kinds[kind].steps if step.gpus <= min(left, 8)]
            if sizes:
                fields["gpus"], fields["waited_s"] = rng.choice(sizes), 0.0
                left -= int(str(fields["gpus"]))
        elif is_fresh:
            followers.setdefault(kind, []).append(number)
        found.append(fields)
    waiting = [number for numbers in followers.values() for number in numbers]
    rng.shuffle(waiting)
    for fields in found:
        if fields["gpus"] and waiting and rng.random() < shape.leading:
            fields["follower"] = f"j{waiting.pop()}"
    return tuple(Unit.model_validate(fields) for fields in found)


def _measured_kind(profiles: Profiles, job: WorkloadJob, gpus: int) -> TimedKind:
    """Return a kind with the steps of a zone's lookup table."""
    table = StepTimeTable(tuple(profiles.steps)[:MAX_SPEEDS])
    times = (
        (size, table.step(size, -(-size // 4), job.batch_size, job.batch_size).step_s)
        for size in allowed_sizes(gpus, pipeline=False)
    )
    return TimedKind(
        steps=faster_only(times), samples_per_step=job.batch_size, dataset_samples=profiles.samples[job.task]
    )


def _ratio(profiles: Profiles, receiver: WorkloadJob, donor: str, mode: str) -> float:
    """Return the epochs of a receiver, divided by those of the job alone; 2 if it never meets its target."""
    curve = profiles.curves.merged(donor, receiver.task, mode)
    alone = profiles.single(receiver.task, receiver.setting).first_reaching(receiver.target) or _EPOCHS
    if curve is None:
        return 1.0
    return (curve.first_reaching(receiver.target) or 2 * alone) / alone
