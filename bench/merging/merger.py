"""Time of the task merger at 3,000 jobs and 240 GPUs on one core, with building the model, on the measured
mix of jobs."""

import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.figures import Measurement, Result, Table, Value
from bench.merging.measured import Profiles, WorkloadJob
from bench.merging.trial import MergingSetting
from bench.runs import on_one_core
from schemas.merging.problems import JobKind, MergeProblem, StepTime, TransferPair, Unit
from schemas.merging.reports import MeasuredStep
from schemas.merging.settings import MAX_SPEEDS, MergingPolicy
from solvers.merging.lookup_table import Configuration, LookupTable, faster_only
from solvers.merging.merger import merge
from streams.policies.merging.speeds import allowed_sizes

UNITS = 3_000
GPUS = 240
LIMIT_S = MergingPolicy().solve_limit_s
INTERVAL_S = 120.0
_SWITCH_S = 6.0
_EPOCHS = 10
_FRESH = 0.7
"""Part of the units without progress."""
_LEADING = 0.3
"""Part of the running units with a follower."""
_WAITED_S = 3_600.0
"""Mean time for which units have waited."""


def measure_merger(quick: bool, seed: int, settings: Sequence[MergingSetting]) -> Result:
    """Measure `merger_median_s`, the median time of a plan over instances of each measured mix."""
    count = 3 if quick else 20
    rows: list[dict[str, Value]] = []
    times_s: list[float] = []
    with on_one_core():
        for setting in settings:
            profiles, jobs = setting.read()
            merge(measured_mix(profiles, jobs, 50, 8, seed), LIMIT_S)  # loads the libraries
            for number in range(count):
                problem = measured_mix(profiles, jobs, UNITS, GPUS, seed * count + number)
                timed = _timed(problem)
                times_s.append(timed["s"])
                rows.append({"model": setting.model, "instance": number, **timed})
    note = (
        f"{len(rows)} instances of measured mixes; {UNITS:,} jobs, {GPUS} GPUs, one core, limit {LIMIT_S:g} s"
    )
    return Result(
        (Measurement("merger_median_s", statistics.median(times_s), note, len(rows)),),
        (Table("merger", rows),),
    )


def _timed(problem: MergeProblem) -> dict[str, float]:
    """Return the gap of a plan to its proven bound (%), its merges, whether its search was limited, and its
    time (s)."""
    start_s = time.perf_counter()
    solution = merge(problem, LIMIT_S)
    took_s = time.perf_counter() - start_s
    assert solution.objective is not None
    assert solution.bound is not None
    gap_pct = 100.0 * (solution.objective - solution.bound) / max(abs(solution.objective), 1e-9)
    merged = sum(share.mode != "normal" for share in solution.shares)
    limited = solution.search == "limited"
    return {"gap_pct": gap_pct, "merges": merged, "limited": limited, "s": took_s}


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
    chosen = [tasks.index(rng.choice(list(jobs)).task) for _ in range(units)]
    return MergeProblem(
        gpus=gpus,
        interval_s=INTERVAL_S,
        switch_s=_SWITCH_S,
        **listed(kinds),
        units=_units(rng, gpus, kinds, iterations, chosen),
        transfers=tuple(transfers),
    )


def _units(
    rng: random.Random,
    gpus: int,
    kinds: Sequence[TimedKind],
    iterations: Sequence[float],
    chosen: Sequence[int],
) -> tuple[Unit, ...]:
    """Draw units: some run, some lead a merge, and the others wait."""
    left = gpus
    found: list[dict[str, object]] = []
    followers: dict[int, list[int]] = {}
    for number, kind in enumerate(chosen):
        is_fresh = rng.random() < _FRESH
        fields: dict[str, object] = {
            "job_ids": (f"j{number}",),
            "kind": kind,
            "iterations": iterations[kind] if is_fresh else max(iterations[kind] * rng.random(), 1.0),
            "waited_s": rng.expovariate(1.0 / _WAITED_S),
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
        if fields["gpus"] and waiting and rng.random() < _LEADING:
            fields["follower"] = f"j{waiting.pop()}"
    return tuple(Unit.model_validate(fields) for fields in found)


def _measured_kind(profiles: Profiles, job: WorkloadJob, gpus: int) -> TimedKind:
    """Return a kind with the steps of a zone's lookup table."""
    table, usual = LookupTable(), Configuration()
    rows: Sequence[MeasuredStep] = tuple(profiles.steps)[:MAX_SPEEDS]
    for row in rows:
        table.observe(usual, row)
    times = (
        (size, table.step(usual, size, -(-size // 4), job.batch_size, job.batch_size).step_s)
        for size in allowed_sizes(gpus, pipeline=False)
    )
    return TimedKind(
        steps=faster_only(times), samples_per_step=job.batch_size, dataset_samples=profiles.samples[job.task]
    )


def _ratio(profiles: Profiles, receiver: WorkloadJob, donor: str, mode: str) -> float:
    """Return the epochs of a receiver relative to those alone: twice as many for one that never meets its
    target."""
    curve = profiles.curves.merged(donor, receiver.task, mode)
    alone = profiles.single(receiver.task, receiver.setting).first_reaching(receiver.target) or _EPOCHS
    if curve is None:
        return 1.0
    return (curve.first_reaching(receiver.target) or 2 * alone) / alone
