"""The conditions of a simulated run of the merging zone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from bench.merging.drawn import Half, draw, in_half
from bench.merging.fluid import Cluster
from bench.merging.measured import Profiles, WorkloadJob, read_profiles, read_workload
from bench.merging.noise import NO_NOISE, Noise
from schemas.merging.estimates import MergeMode
from schemas.merging.settings import SchemeName

BOTH: tuple[MergeMode, ...] = ("temporal", "spatial")

Knowledge = Literal["nothing", "half"]
"""Knowledge of merges before a zone's first: nothing at all, as a newcomer meets it, or what came of half
of the pairs (`known.is_known`), the other half never seen."""
Decides = Literal["interval", "eager"]
"""When a scheme decides: at its published interval, or also whenever jobs have come or gone."""


@dataclass(frozen=True)
class Setting:
    """The cluster, and the jobs that users ask for: what all runs of a comparison have in common."""

    profiles: str
    """The folder of measurements."""
    model: str
    workload: str
    """The file of jobs."""
    nodes: int = 8
    gpus_per_node: int = 4
    first: int | None = None
    """Number of the file's jobs, those that come first; None for all."""
    drawn: int | None = None
    """Jobs that are drawn from the mix of the workload; None for the jobs of the file as they are."""
    load: float = 1.0
    """Load by drawn jobs: arrivals per GPU and time, over those of the file on 32 GPUs."""
    tasks: int | None = None
    """Jobs of so many tasks alone, the most frequent ones; None for all."""
    seed: int = 0
    """Seed of drawn jobs."""
    half: Half | None = None
    """Jobs of half of the tasks alone, see `drawn.in_half`."""

    @property
    def cluster(self) -> Cluster:
        """Its nodes."""
        return Cluster(self.nodes, self.gpus_per_node)

    def read(self) -> tuple[Profiles, tuple[WorkloadJob, ...]]:
        """The measurements and the jobs.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is not of its form.
        """
        profiles = read_profiles(Path(self.profiles), self.model)
        return profiles, self.jobs(read_workload(Path(self.workload)))

    def jobs(self, measured: Sequence[WorkloadJob]) -> tuple[WorkloadJob, ...]:
        """Those of this setting, of a file that has these."""
        if self.half is not None:
            measured = in_half(measured, self.half)
        if self.tasks is None and self.drawn is None:
            return tuple(measured[: self.first])
        return draw(measured, self.cluster.gpus, self.drawn, self.load, self.tasks, self.seed)

    def __str__(self) -> str:
        words = [f"{Path(self.workload).stem} on {self.nodes} x {self.gpus_per_node} V100"]
        if self.first is not None:
            words.append(f"the first {self.first} jobs")
        if self.drawn is not None:
            words.append(f"{self.drawn:,} jobs drawn at {self.load:g}x load, seed {self.seed}")
        if self.tasks is not None:
            words.append(f"{self.tasks} tasks")
        if self.half is not None:
            words.append(f"the {self.half} half of the tasks")
        return ", ".join(words)


@dataclass(frozen=True)
class Trial:
    """One simulation to make."""

    setting: Setting
    scheme: SchemeName = "ymir"
    decides: Decides = "eager"
    warm_switches: bool = True
    """Whether a node that has run a task before starts the next one in a tenth of the time, as the tuner
    does. Rivals start each one cold."""
    modes: tuple[MergeMode, ...] = BOTH
    """Modes in which jobs may be merged; of schemes that merge."""
    knowledge: Knowledge = "nothing"
    noise: Noise = NO_NOISE
    """On what the task merger is told."""
    linear_steps: bool = False
    """Whether the task merger takes steps to scale linearly from one GPU on, in place of the lookup table."""

    def as_json(self) -> dict[str, Any]:
        """Plain values: they identify its result."""
        return asdict(self)

    def __str__(self) -> str:
        default = Trial(self.setting)
        words: list[str] = [self.scheme]
        if self.scheme != "ymir" or self.decides != default.decides:
            words.append(self.decides)
        if self.warm_switches != (self.scheme == "ymir"):
            words.append("warm switches" if self.warm_switches else "cold switches")
        if self.scheme == "ymir" and self.modes != BOTH:
            words.append(f"{self.modes[0]} alone" if self.modes else "no merging")
        if self.knowledge != "nothing":
            words.append("half of the pairs known")
        words += [
            f"{getattr(self.noise, field.name):.0%} noise on {field.name}"
            for field in fields(Noise)
            if field.name != "seed" and getattr(self.noise, field.name)
        ]
        if self.linear_steps:
            words.append("linear steps")
        return f"{', '.join(words)}: {self.setting}"


def rival(setting: Setting, scheme: SchemeName, decides: Decides, warm_switches: bool = False) -> Trial:
    """A scheme that merges nothing."""
    return Trial(setting, scheme, decides, warm_switches, modes=())
