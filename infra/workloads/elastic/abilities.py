"""Abilities of the jobs of a workload: drawn by seed, as no trace records them (thesis, section 3.7.1)."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from infra.workloads.elastic.requests import DAY_S, JobRequest, chosen_by_share
from infra.workloads.timed import WorkloadError
from schemas.elastic.settings import Scenario

FUNGIBLE_SHARE = 0.21
"""Share of the jobs, and of the load (section 3.7.1)."""

ADDED_WORKER_LOSS = 0.20
"""Share of its throughput that each worker beyond the base demand loses where scaling is imperfect
(section 3.7.2)."""


@dataclass(frozen=True, slots=True)
class ScalingRange:
    """Properties of an elastic job that its scaling may depend on."""

    min_workers: int
    max_workers: int
    gpus_per_worker: int
    family_draw: float
    """Uniform draw from 0 to 1 for the job: for curves that differ by the family of its model."""


Scaling = Callable[[ScalingRange], tuple[float, ...]]
"""The throughput of 1, 2, ... `max_workers` workers over that of one; empty where it is linear."""


def linear(workers: ScalingRange) -> tuple[float, ...]:  # noqa: ARG001
    """Return linear scaling, the thesis' assumption (section 3.5)."""
    return ()


def lossy(workers: ScalingRange) -> tuple[float, ...]:
    """Return scaling in which each worker beyond the base demand adds 20 % less (section 3.7.2)."""
    base = workers.min_workers
    return tuple(
        min(count, base) + (1 - ADDED_WORKER_LOSS) * max(count - base, 0)
        for count in range(1, workers.max_workers + 1)
    )


@dataclass(frozen=True)
class Abilities:
    """Shares of the jobs with each ability. The defaults are the thesis' Basic scenario."""

    scenario: Scenario = "basic"
    """`basic`: fungible and elastic jobs. `advanced`: heterogeneous ones too. `heterogeneous`: elastic and
    heterogeneous ones, but no fungible ones. `ideal`: all jobs have all abilities."""
    elastic_share: float | None = None
    """Share of elastic jobs; None for the scalable ones of the workload. A larger share adds other jobs, a
    smaller one leaves out scalable ones (Figures 3.14 and 3.15). `ideal` ignores it."""
    heterogeneous_share: float = 0.10
    """Share of each day's jobs, in the scenarios that have heterogeneous jobs."""
    checkpoint_share: float = 0.0
    """Share of jobs that keep checkpoints; the thesis assumes 0 (section 3.7.3)."""
    wrong_prediction_share: float = 0.0
    """Share of jobs whose declared speed is wrong (Table 3.9)."""
    prediction_error: float = 0.25
    """Largest relative error of a wrong running time, either way."""
    scaling: Scaling = linear
    """Scaling of elastic jobs."""

    def __post_init__(self) -> None:
        """Check the shares.

        Raises:
            WorkloadError: one is not from 0 to 1.
        """
        for name in (
            "elastic_share",
            "heterogeneous_share",
            "checkpoint_share",
            "wrong_prediction_share",
            "prediction_error",
        ):
            share = getattr(self, name)
            most = 0.99 if name == "prediction_error" else 1.0
            if share is not None and not 0 <= share <= most:
                raise WorkloadError(f"{name} is {share}, expected a number from 0 to {most:g}")


@dataclass(frozen=True, slots=True)
class Ability:
    """Abilities of one job."""

    elastic: bool
    fungible: bool
    heterogeneous: bool
    keeps_checkpoints: bool
    predicted_over_true: float
    """Declared running time over the true one."""
    family_draw: float
    """Draw for the family of the job's model, as in `ScalingRange`."""


def draw_abilities(requests: Sequence[JobRequest], abilities: Abilities, seed: int) -> list[Ability]:
    """Draw the abilities of each of the jobs, in their order.

    Each ability has draws of its own, and a larger share of jobs contains the smaller one of the same seed:
    workloads differ only in the share that is varied.

    Fungible are 21 % of all jobs with 21 % of the load, none of them scalable; and all elastic jobs, because
    the thesis places elastic jobs on loaned servers first (section 3.5.3). In Basic, a quarter of the jobs,
    with 57 % of the load, may run on loaned servers.
    """
    indices = range(len(requests))
    ideal = abilities.scenario == "ideal"
    elastic = set(indices) if ideal else _elastic(requests, abilities.elastic_share, seed)
    if abilities.scenario == "heterogeneous":
        fungible: set[int] = set()
    else:
        fungible = elastic | set(
            chosen_by_share(
                requests,
                [index for index in indices if not requests[index].scalable],
                FUNGIBLE_SHARE,
                FUNGIBLE_SHARE,
                random.Random(f"{seed}/elastic/fungible"),
            )
        )
    if ideal:
        heterogeneous = set(indices)
    elif abilities.scenario == "basic":
        heterogeneous = set()
    else:
        heterogeneous = _by_day(requests, abilities.heterogeneous_share, seed)
    checkpoints = _first(indices, abilities.checkpoint_share, random.Random(f"{seed}/elastic/checkpoints"))
    errors = random.Random(f"{seed}/elastic/errors")
    wrong = _first(indices, abilities.wrong_prediction_share, errors)
    families = random.Random(f"{seed}/elastic/families")
    drawn_errors = [errors.uniform(-1.0, 1.0) * abilities.prediction_error for _ in indices]
    return [
        Ability(
            elastic=index in elastic,
            fungible=index in fungible,
            heterogeneous=index in heterogeneous,
            keeps_checkpoints=index in checkpoints,
            predicted_over_true=1.0 + drawn_errors[index] if index in wrong else 1.0,
            family_draw=families.random(),
        )
        for index in indices
    ]


def _elastic(requests: Sequence[JobRequest], share: float | None, seed: int) -> set[int]:
    draws = random.Random(f"{seed}/elastic/scaling")
    scalable = [index for index, request in enumerate(requests) if request.scalable]
    if share is None:
        return set(scalable)
    others = [index for index, request in enumerate(requests) if not request.scalable]
    draws.shuffle(scalable)
    draws.shuffle(others)
    return set([*scalable, *others][: round(share * len(requests))])


def _first(indices: Sequence[int], share: float, draws: random.Random) -> set[int]:
    """Return a share of the indices, drawn as the first ones of a random order."""
    order = list(indices)
    draws.shuffle(order)
    return set(order[: round(share * len(order))])


def _by_day(requests: Sequence[JobRequest], share: float, seed: int) -> set[int]:
    """Draw an equal share of each day's jobs ("distributed evenly across 15 days")."""
    draws = random.Random(f"{seed}/elastic/heterogeneous")
    chosen: set[int] = set()
    for _, day in groupby(
        range(len(requests)), key=lambda index: math.floor(requests[index].offset_s / DAY_S)
    ):
        chosen |= _first(list(day), share, draws)
    return chosen
