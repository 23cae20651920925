"""A testbed: one zone on throttled executors, its jobs, and the constants that its simulation needs."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from infra.deployment.deployment_folders import Folders
from infra.simulation.simulator import Step
from infra.simulation.virtual_fleet import VirtualRunner
from infra.workloads.timed import TimedEvent
from schemas.cells import CellConfigured, GpuType, Node, PolicySettings, Tariff, Zone
from schemas.jobs import JobSubmitted
from schemas.kind import Terms, Workload

CELL, ZONE = "testbed", "testbed"
GPU, TARIFF = "throttled", "flat"
MODEL = "tiny-llama"
SEQUENCE_S = 0.25
"""Least time of a sequence in training: some fifty times that of its computation, so that many executors fit
on two cores."""
SAMPLES_PER_S = 1 / SEQUENCE_S
"""Full speed of a GPU."""
SEQUENCE_LENGTH = 32
_NODE_TIMEOUT_S = 60.0
_USERS = 4
_LOAD = 0.7
"""Work that arrives, as a part of what the GPUs do in the same time."""


@dataclass(frozen=True)
class Size:
    """Size of a run.

    Attributes:
        nodes: executors, each with one GPU.
        jobs: number of jobs.
        length: factor for the work of each job.
    """

    nodes: int
    jobs: int
    length: float = 1.0

    def arrivals_s(self, mean_gpu_s: float, seed: int) -> list[float]:
        """Draw the offsets of Poisson arrivals, ascending, from 0 on.

        Args:
            mean_gpu_s: mean time of a GPU that a job takes.
        """
        draw = random.Random(f"{seed}/arrivals")
        mean_gap_s = mean_gpu_s / (_LOAD * self.nodes)
        offsets_s = [0.0]
        while len(offsets_s) < self.jobs:
            offsets_s.append(offsets_s[-1] + draw.expovariate(1 / mean_gap_s))
        return offsets_s


@dataclass(frozen=True)
class Calibrated:
    """Settings of a simulation by a deployment that was measured.

    Attributes:
        constants: the measured constants, by name, for the table.
        runners: simulated runners, by name.
        solve_s: time of a solve, its way through Kafka included.
    """

    constants: Mapping[str, float]
    runners: Mapping[str, VirtualRunner] = field(default_factory=dict)
    solve_s: float = 0.0


class Testbed(Protocol):
    """A zone of one policy."""

    @property
    def policy(self) -> str:
        """Kind of the policy."""

    @property
    def slot_s(self) -> float:
        """Length of the cell's slots."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Environment variables of the executors."""

    def zone(self, nodes: int) -> Zone:
        """Return the zone with a number of nodes."""

    def write_data(self, folders: Folders) -> None:
        """Write the data of the jobs."""

    def jobs(
        self, cell: CellConfigured, size: Size, seed: int, start_s: float
    ) -> list[TimedEvent[JobSubmitted]]:
        """Draw jobs, ascending by their arrivals, the first at `start_s`."""

    def calibrate(self, steps: Sequence[Step], job_ids: frozenset[str]) -> Calibrated:
        """Measure the constants of a simulation by the log of a deployment.

        Args:
            job_ids: jobs that may be used.

        Raises:
            ValueError: too few of them were completed.
        """


def zone_of(policy: PolicySettings, nodes: int, samples_per_s: float, **fields: object) -> Zone:
    """Return a zone of throttled GPUs."""
    return Zone.model_validate(
        {
            "id": ZONE,
            "base_model": MODEL,
            "base_model_memory_gib": 4.0,
            "gpu_types": (GpuType(name=GPU, samples_per_s=samples_per_s, memory_gib=48.0, power_kw=0.3),),
            "nodes": tuple(
                Node(id=f"gpu-{number:02d}", gpu_type=GPU, tariff=TARIFF) for number in range(nodes)
            ),
            "policy": policy,
            **fields,
        }
    )


def submitted(cell: CellConfigured, number: int, workload: Workload, terms: Terms) -> JobSubmitted:
    """Return the submission of a job of a testbed, by one of its users in turn."""
    return JobSubmitted(
        cell=cell.cell,
        job_id=f"job-{number:04d}",
        user=f"user-{number % _USERS}",
        zone=ZONE,
        workload=workload,
        terms=terms,
    )


def cell_of(testbed: Testbed, nodes: int, epoch_s: float) -> CellConfigured:
    return CellConfigured(
        cell=CELL,
        epoch_s=epoch_s,
        slot_s=testbed.slot_s,
        node_timeout_s=_NODE_TIMEOUT_S,
        tariffs=(Tariff(name=TARIFF, micros_per_kwh=(10**8,) * 24),),
        zones=(testbed.zone(nodes),),
    )
