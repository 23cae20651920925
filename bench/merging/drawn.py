"""Workloads of any size with the mix of a measured one."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from bench.merging.measured import WorkloadJob

MEASURED_GPUS = 32
"""For which the measured workloads were made."""


Half = Literal["chosen", "held"]
HALVES: tuple[Half, ...] = ("chosen", "held")
"""The constants of the estimator's evidence and of trials were chosen on the first half of each base model;
the other was run for the report alone."""


def in_half(measured: Sequence[WorkloadJob], half: Half) -> list[WorkloadJob]:
    """Jobs of every other task, from the most frequent one on, or of those between."""
    by_task = Counter(job.task for job in measured)
    ranked = sorted(by_task, key=lambda task: (-by_task[task], task))
    kept = set(ranked[HALVES.index(half) :: 2])
    return [job for job in measured if job.task in kept]


def draw(
    measured: Sequence[WorkloadJob], gpus: int, count: int | None, load: float, tasks: int | None, seed: int
) -> tuple[WorkloadJob, ...]:
    """Jobs drawn from those of a measured workload, each as likely as any other.

    They come over a span in which each GPU gets `load` times as many as one of the measured cluster, denser
    and sparser in the same places of it.

    Args:
        measured: with increasing times of submission.
        gpus: of the cluster that they are for.
        count: how many; None for as many as were measured.
        tasks: drawn are only jobs of so many tasks, those with the most jobs; None for all.

    Raises:
        ValueError: there are too few jobs to draw from, or fewer tasks.
    """
    times_s = sorted(job.submitted_s for job in measured)
    if len(times_s) < 2:
        raise ValueError("a mix is drawn from two jobs at least")
    by_task = Counter(job.task for job in measured)
    if tasks is not None and not 1 <= tasks <= len(by_task):
        raise ValueError(f"the workload has {len(by_task)} tasks, not {tasks}")
    kept = {task for task, _ in sorted(by_task.items(), key=lambda pair: (-pair[1], pair[0]))[:tasks]}
    mix = [job for job in measured if job.task in kept]
    wanted = len(measured) if count is None else count
    stretch = wanted / len(measured) * MEASURED_GPUS / gpus / load
    rng = random.Random(f"workload/{seed}")
    submitted_s = sorted(stretch * _at(times_s, rng.random()) for _ in range(wanted))
    return tuple(
        replace(rng.choice(mix), name=f"drawn-{number}", submitted_s=time_s)
        for number, time_s in enumerate(submitted_s)
    )


def _at(times_s: Sequence[float], part: float) -> float:
    """The time before which this part of the jobs came, on a line between two of them."""
    place = part * (len(times_s) - 1)
    index = min(int(place), len(times_s) - 2)
    return times_s[index] + (place - index) * (times_s[index + 1] - times_s[index])
