"""The conditions of a simulated run of the merging zone."""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from bench.merging.measured import Profiles, WorkloadJob, read_profiles, read_workload
from bench.merging.measured_truth import GpuCluster
from schemas.merging.estimates import MergeMode
from schemas.merging.settings import SchemeName

MEASURED_GPUS = 32
"""GPUs for which the measured workloads were made."""


Half = Literal["chosen", "held"]
HALVES: tuple[Half, ...] = ("chosen", "held")
"""Halves of the tasks of each base model. The constants of the estimator's evidence and of trials were chosen
on `chosen`. Only reports use `held`."""

_DIGEST_BYTES = 12
BOTH: tuple[MergeMode, ...] = ("temporal", "spatial")

Knowledge = Literal["nothing", "half"]
"""Knowledge of merges before a zone's first: none, or the outcomes of half of the pairs, by `is_known`."""
Decides = Literal["interval", "eager"]
"""Times of a scheme's decisions: at its published interval, or also whenever jobs have arrived or ended."""


@dataclass(frozen=True)
class MergingSetting:
    """The cluster and the users' jobs: the common part of all runs of a comparison."""

    profiles: str
    """Folder of measurements."""
    model: str
    workload: str
    """File of jobs."""
    nodes: int = 8
    gpus_per_node: int = 4
    first: int | None = None
    """Number of jobs from the beginning of the file; None for all."""
    drawn: int | None = None
    """Number of jobs that are drawn from the mix of the workload; None for the jobs of the file."""
    load: float = 1.0
    """Load of drawn jobs: arrivals per GPU and time, divided by those of the file on 32 GPUs."""
    seed: int = 0
    """Seed of drawn jobs."""
    half: Half | None = None
    """Half of the tasks; only its jobs are used. See `in_half`."""

    @property
    def cluster(self) -> GpuCluster:
        """Cluster of its nodes."""
        return GpuCluster(self.nodes, self.gpus_per_node)

    def read(self) -> tuple[Profiles, tuple[WorkloadJob, ...]]:
        """Read the measurements and the jobs.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is not of its form.
        """
        profiles = read_profiles(Path(self.profiles), self.model)
        return profiles, self.jobs(read_workload(Path(self.workload)))

    def jobs(self, measured: Sequence[WorkloadJob]) -> tuple[WorkloadJob, ...]:
        """Return the jobs of this setting from those of a file."""
        if self.half is not None:
            measured = in_half(measured, self.half)
        if self.drawn is None:
            return tuple(measured[: self.first])
        return draw(measured, self.cluster.gpus, self.drawn, self.load, self.seed)

    def __str__(self) -> str:
        words = [f"{Path(self.workload).stem} on {self.nodes} x {self.gpus_per_node} V100"]
        if self.first is not None:
            words.append(f"the first {self.first} jobs")
        if self.drawn is not None:
            words.append(f"{self.drawn:,} jobs drawn at {self.load:g}x load, seed {self.seed}")
        if self.half is not None:
            words.append(f"the {self.half} half of the tasks")
        return ", ".join(words)


@dataclass(frozen=True)
class MergingTrial:
    """One simulation to run."""

    setting: MergingSetting
    scheme: SchemeName = "ymir"
    decides: Decides = "eager"
    warm_switches: bool = True
    """Whether a node that has run a task before starts the next one in a tenth of the time, as the tuner
    does. Rivals start each one cold."""
    modes: tuple[MergeMode, ...] = BOTH
    """Modes in which jobs may be merged, for schemes that merge."""
    knowledge: Knowledge = "nothing"
    alone: bool = False
    """Whether no other run may be parallel; its times are not measured."""

    def identity(self) -> dict[str, Any]:
        """Return JSON values that, with the sources, determine the outcome."""
        return {
            **asdict(self),
            "measured": _digest(self.setting.profiles, self.setting.model, self.setting.workload),
        }

    def __str__(self) -> str:
        default = MergingTrial(self.setting)
        words: list[str] = [self.scheme]
        if self.scheme != "ymir" or self.decides != default.decides:
            words.append(self.decides)
        if self.warm_switches != (self.scheme == "ymir"):
            words.append("warm switches" if self.warm_switches else "cold switches")
        if self.scheme == "ymir" and self.modes != BOTH:
            words.append(f"{self.modes[0]} alone" if self.modes else "no merging")
        if self.knowledge != "nothing":
            words.append("half of the pairs known")
        return f"{', '.join(words)}: {self.setting}"


def rival(
    setting: MergingSetting, scheme: SchemeName, decides: Decides, warm_switches: bool = False
) -> MergingTrial:
    """Return a trial of a scheme without merging."""
    return MergingTrial(setting, scheme, decides, warm_switches, modes=())


@cache
def _digest(profiles: str, model: str, workload: str) -> str:
    """Return the digest of a model's measurements and of a workload."""
    folder = Path(profiles)
    paths = [path for path in sorted(folder.glob(f"*{model}*")) if path.is_file()]
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in (*paths, folder / "samples.csv", Path(workload)):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


def in_half(measured: Sequence[WorkloadJob], half: Half) -> list[WorkloadJob]:
    """Return the jobs of a half of the tasks. Sorted from the most frequent task on, the first, third, fifth
    and so on are `chosen`, and the others are `held`."""
    by_task = Counter(job.task for job in measured)
    ranked = sorted(by_task, key=lambda task: (-by_task[task], task))
    kept = set(ranked[HALVES.index(half) :: 2])
    return [job for job in measured if job.task in kept]


def draw(
    measured: Sequence[WorkloadJob], gpus: int, count: int, load: float, seed: int
) -> tuple[WorkloadJob, ...]:
    """Draw jobs uniformly from those of a measured workload.

    Their arrival times follow the distribution of the measured times. The time scale is such that a GPU gets
    `load` times the arrivals of a GPU of the measured cluster.

    Args:
        measured: jobs with increasing times of submission.
        gpus: number of GPUs of their cluster.

    Raises:
        ValueError: there are too few jobs to draw from.
    """
    times_s = sorted(job.submitted_s for job in measured)
    if len(times_s) < 2:
        raise ValueError("a mix needs at least two measured jobs to draw from")
    stretch = count / len(measured) * MEASURED_GPUS / gpus / load
    rng = random.Random(f"workload/{seed}")
    submitted_s = sorted(stretch * _at(times_s, rng.random()) for _ in range(count))
    return tuple(
        replace(rng.choice(measured), name=f"drawn-{number}", submitted_s=time_s)
        for number, time_s in enumerate(submitted_s)
    )


def _at(times_s: Sequence[float], part: float) -> float:
    """Return the quantile of times, with linear interpolation."""
    place = part * (len(times_s) - 1)
    index = min(int(place), len(times_s) - 2)
    return times_s[index] + (place - index) * (times_s[index + 1] - times_s[index])
