"""A simulated run of the production cell, and the results of its jobs."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict, FiniteFloat, TypeAdapter

from bench.merging.measured import Profiles, WorkloadJob
from bench.merging.measured_truth import (
    GpuCluster,
    MeasuredTruth,
    PlacementStepTimes,
    Switching,
    past_merges,
    workload_of,
)
from bench.merging.merging_trial import MergingTrial
from infra.figures.board import Board
from infra.figures.merging.figures import MergingFigures
from infra.figures.merging.jobs import TuningTimeline
from infra.figures.summary import summarise
from infra.simulation.merging.tuner import VirtualTuner
from infra.simulation.simulator import Simulation, Step
from infra.workloads.timed import TimedEvent
from schemas.base import Event
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.jobs import JobSubmitted
from schemas.merging.commands import TaskAssigned
from schemas.merging.problems import MergeSolution
from schemas.merging.settings import MAX_SPEEDS, MemoryRow, MergingPolicy
from schemas.merging.workload import MergingTerms
from schemas.solves import SolveFinished
from solvers.merging.rivals import RIVALS

CELL, ZONE = "bench", "tuning"
_USERS = 64
"""Number of users: no user of a cell may take the room of all others."""
STORING_S = 30.0
"""Cost of a cold switch besides the measured start: storing the state of the previous task, as charged by the
source of the measurements."""
WARM_SPEEDUP = 10.0
"""Speedup of a switch on a node that has run a task before, which `switch_speedup` must reach."""
INTERVAL_S = 120.0
"""Interval of the task merger (section 7.1)."""
IDLE_INTERVAL_S = 5.0
SOLVE_S = 0.1
"""Virtual time of each solve."""


@dataclass(frozen=True)
class SimulatedJob:
    """Result of a job."""

    name: str
    submitted_s: FiniteFloat
    ended_s: FiniteFloat
    met_target: bool

    @property
    def jct_s(self) -> float:
        """Time from submission to end."""
        return self.ended_s - self.submitted_s


@dataclass(frozen=True)
class MergingRunOutcome:
    """Result of a trial."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    jobs: tuple[SimulatedJob, ...]
    """Results in the order of submission."""
    starts: int
    """Starts of tasks: each is charged a switch."""
    merges: int
    undone: int
    solves_s: tuple[FiniteFloat, ...]
    """Real seconds of each answer of a solver, without estimates."""
    cpu_s: FiniteFloat

    @property
    def average_s(self) -> float:
        """Mean completion time."""
        return math.fsum(job.jct_s for job in self.jobs) / len(self.jobs)

    @property
    def tail_s(self) -> float:
        """99 % quantile of the completion times."""
        times = sorted(job.jct_s for job in self.jobs)
        return times[math.ceil(0.99 * len(times)) - 1]

    @property
    def slowest_s(self) -> float:
        """Longest completion time."""
        return max(job.jct_s for job in self.jobs)

    @property
    def makespan_s(self) -> float:
        """Time from the first submission to the last end."""
        return max(job.ended_s for job in self.jobs) - min(job.submitted_s for job in self.jobs)

    @property
    def met(self) -> int:
        """Number of jobs that reached their accuracy target."""
        return sum(job.met_target for job in self.jobs)


OUTCOME = TypeAdapter(MergingRunOutcome)


def run(trial: MergingTrial) -> MergingRunOutcome:
    """Run a trial in this process.

    Raises:
        FileNotFoundError: a file of its setting is missing.
        ValueError: a file is not of its form.
    """
    profiles, jobs = trial.setting.read()
    cluster = trial.setting.cluster
    cold_s = STORING_S + profiles.context_switch_s
    switching = Switching(cold_s, cold_s / WARM_SPEEDUP if trial.warm_switches else cold_s)
    return simulate(profiles, jobs, cluster, _policy(trial, profiles, jobs, switching), switching)


def _policy(
    trial: MergingTrial, profiles: Profiles, jobs: Sequence[WorkloadJob], switching: Switching
) -> MergingPolicy:
    """Return the policy of the zone."""
    is_rival = trial.scheme in RIVALS
    return offline(
        profiles,
        scheme=trial.scheme,
        interval_s=RIVALS[trial.scheme].interval_s if is_rival else INTERVAL_S,
        idle_interval_s=IDLE_INTERVAL_S if trial.decides == "eager" else None,
        modes=trial.modes,
        switch_s=switching.warm_s,
        outcomes=past_merges(profiles, jobs) if trial.knowledge == "half" else (),
    )


def configuration(profiles: Profiles, cluster: GpuCluster, policy: MergingPolicy) -> CellConfigured:
    """Return a cell with one merging zone."""
    gpu = GpuType(
        name=profiles.gpu,
        samples_per_s=100.0,
        memory_gib=40.0 * cluster.gpus_per_node,
        gpus=cluster.gpus_per_node,
    )
    nodes = tuple(Node(id=f"n{number}", gpu_type=gpu.name, tariff="flat") for number in range(cluster.nodes))
    zone = Zone(
        id=ZONE,
        base_model=profiles.model,
        base_model_memory_gib=1.0,
        gpu_types=(gpu,),
        nodes=nodes,
        policy=policy,
    )
    tariff = Tariff(name="flat", micros_per_kwh=(0,) * 24)
    return CellConfigured(cell=CELL, epoch_s=0.0, slot_s=600.0, tariffs=(tariff,), zones=(zone,))


def submissions(jobs: Sequence[WorkloadJob], profiles: Profiles) -> list[TimedEvent[Event]]:
    """Return the jobs as users submit them."""
    return [
        TimedEvent(
            job.submitted_s,
            JobSubmitted(
                cell=CELL,
                job_id=f"j{number}",
                user=f"u{number % _USERS}",
                zone=ZONE,
                workload=workload_of(job, profiles),
                terms=MergingTerms(),
            ),
        )
        for number, job in enumerate(jobs)
    ]


def offline(profiles: Profiles, **settings: object) -> MergingPolicy:
    """Return the policy with steps and memory that were profiled offline."""
    return MergingPolicy.model_validate(
        {
            "speeds": tuple(profiles.steps)[:MAX_SPEEDS],
            "memory": tuple(
                MemoryRow(micro_batch_size=size, memory_gib=gib)
                for size, gib in profiles.memory.gib_by_micro_batch
            ),
            **settings,
        }
    )


def simulate(
    profiles: Profiles,
    jobs: Sequence[WorkloadJob],
    cluster: GpuCluster,
    policy: MergingPolicy,
    switching: Switching,
) -> MergingRunOutcome:
    """Run jobs through a cell.

    Raises:
        RuntimeError: some of them never end.
    """
    began_s = time.process_time()
    truth = MeasuredTruth(profiles, jobs, PlacementStepTimes(profiles, cluster), switching)
    simulation = Simulation(
        configuration(profiles, cluster, policy),
        submissions(jobs, profiles),
        solve_s=SOLVE_S,
        runners={TaskAssigned.RUNNER: VirtualTuner(CELL, 1.0, truth)},
    )
    board, solves_s = Board(CELL), list[float]()

    def fold(step: Step) -> None:
        board.fold_step(step.time_s, step.entry, step.decisions)
        answer = step.entry.envelope.event
        if isinstance(answer, SolveFinished) and isinstance(answer.solution, MergeSolution):
            solves_s.append(answer.solve_s)

    simulation.pass_on(fold)
    if simulation.given_up is not None:
        raise RuntimeError(f"the simulation ended unfinished: {simulation.given_up}")
    figures = summarise(board).part(MergingFigures)
    results = tuple(_result(jobs[int(job.job_id[1:])].name, job) for job in figures.kept())
    cpu_s = time.process_time() - began_s
    return MergingRunOutcome(results, figures.starts, figures.merges, figures.undone, tuple(solves_s), cpu_s)


def _result(name: str, job: TuningTimeline) -> SimulatedJob:
    if job.completed is None or job.over_s is None or job.workload is None:
        raise RuntimeError(f"job {job.job_id} was never done")
    target = job.workload.target.accuracy or 0.0
    return SimulatedJob(name, job.submitted_s, job.over_s, (job.accuracy or 0.0) >= target)
