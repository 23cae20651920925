"""Parameters of a simulated run of the elastic cell."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from bench.elastic.goodput import family_at, tuned_speedup
from infra.workloads.elastic.abilities import Abilities, ScalingRange, linear
from infra.workloads.elastic.calibrated import generate_requests
from infra.workloads.elastic.cluster import TRAINING_GPU, ElasticCluster
from infra.workloads.elastic.requests import JobRequest, window
from schemas.elastic.settings import (
    ElasticPolicy,
    ReclaimingName,
    Scenario,
    SchemeName,
)

ScalingName = Literal["linear", "tuned"]


def tuned(workers: ScalingRange) -> tuple[float, ...]:
    """Return the speedup of a job whose batch is tuned for each number of workers, as Pollux does (thesis,
    section 3.7.1). Its model is drawn from Pollux's list."""
    family = family_at(workers.family_draw)
    return tuned_speedup(family, workers.max_workers, workers.gpus_per_worker)[1:]


_SCALING = {"linear": linear, "tuned": tuned}


@dataclass(frozen=True)
class ElasticSetting:
    """The clusters and the users' requests: the common part of all schemes of a comparison."""

    seed: int = 0
    factor: float = 1.0
    """Size of the clusters relative to the thesis' 3,544 and 4,160 GPUs."""
    first_day: float = 0.0
    """First day of submissions; earlier jobs that would still run are submitted first of all."""
    days: float = 15.0

    def requests(self) -> list[JobRequest]:
        """Return the requests to the training cluster; they do not depend on scheme and abilities."""
        last_day = self.first_day + self.days
        drawn = generate_requests(self.seed, self.cluster.training_gpus, last_day)
        return window(drawn, self.first_day, self.days)

    @property
    def cluster(self) -> ElasticCluster:
        """Servers of both clusters."""
        return ElasticCluster().scaled(self.factor)

    def __str__(self) -> str:
        part = f"day {self.first_day:g} to {self.first_day + self.days:g} of seed {self.seed}"
        cluster = self.cluster
        return f"{cluster.training_gpus:,} + {cluster.inference_gpus:,} GPUs, {part}"


@dataclass(frozen=True)
class ElasticTrial:
    """One simulation to run."""

    setting: ElasticSetting
    scheme: SchemeName = "lyra"
    loans: bool = True
    """Whether inference servers are lent."""
    scenario: Scenario = "basic"
    reclaiming: ReclaimingName = "preemption_cost"
    elastic_share: float | None = None
    """Share of elastic jobs, see `Abilities`; with 0 no job scales."""
    scaling: ScalingName = "linear"
    alone: bool = False
    """Whether no other run may be parallel, because its times and memory are measured."""

    @property
    def policy(self) -> ElasticPolicy:
        """Policy of the training zone."""
        return ElasticPolicy(
            reference_gpu_type=TRAINING_GPU.name,
            scheme=self.scheme,
            reclaiming=self.reclaiming,
            scenario=self.scenario,
            seed=self.setting.seed,
        )

    @property
    def abilities(self) -> Abilities:
        """Abilities of its jobs."""
        return Abilities(
            scenario=self.scenario,
            elastic_share=self.elastic_share,
            scaling=_SCALING[self.scaling],
        )

    def identity(self) -> dict[str, Any]:
        """Return JSON values that, with the sources, determine the outcome."""
        fields = asdict(self)
        del fields["alone"]
        return fields

    def __str__(self) -> str:
        words = [self.scheme, self.scenario, "loans" if self.loans else "no loans"]
        if self.loans and self.reclaiming != "preemption_cost":
            words.append(self.reclaiming)
        if self.elastic_share is not None:
            words.append(f"{self.elastic_share:.0%} elastic")
        if self.scaling != "linear":
            words.append(self.scaling)
        return f"{', '.join(words)}: {self.setting}"
