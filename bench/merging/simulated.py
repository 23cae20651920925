"""A simulated zone of fine-tuning jobs as they were measured, and what became of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.merging.curves import Curve
from bench.merging.fluid import Cluster
from bench.merging.fluid_data import StepTimesByPlacement
from bench.merging.measured import Profiles, WorkloadJob
from bench.merging.measured_truth import MeasuredTruth, Switching, workload_of
from infra.simulation.merging.tuner import VirtualTuner
from infra.simulation.simulator import Simulation, Step
from infra.workloads.timed import TimedEvent
from schemas.base import Event
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.decisions import JobCompleted
from schemas.jobs import JobSubmitted
from schemas.merging.commands import TaskAssigned
from schemas.merging.estimates import MergeMode, PastMerge
from schemas.merging.outcomes import MergeJudged, TaskChanged
from schemas.merging.reports import TaskEvaluated
from schemas.merging.settings import MAX_SPEEDS, MemoryRow, MergingPolicy
from schemas.merging.workload import MergingTerms, TuningWorkload
from streams.policies.merging.kind_of_jobs import task_key

CELL, ZONE = "bench", "tuning"


@dataclass(frozen=True)
class Fared:
    """What became of a job."""

    name: str
    submitted_s: float
    ended_s: float
    met_target: bool
    merged: str
    """The mode of the last merge that it was in; empty where it was in none."""

    @property
    def jct_s(self) -> float:
        """From submission to end."""
        return self.ended_s - self.submitted_s


@dataclass(frozen=True)
class Simulated:
    """A run."""

    jobs: tuple[Fared, ...]
    starts: int
    undone: int
    solves_s: tuple[float, ...]

    @property
    def average_s(self) -> float:
        """Mean completion time."""
        return math.fsum(job.jct_s for job in self.jobs) / len(self.jobs)

    @property
    def tail_s(self) -> float:
        """Completion time that 99 of a hundred jobs do not exceed."""
        times = sorted(job.jct_s for job in self.jobs)
        return times[math.ceil(0.99 * len(times)) - 1]

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        return max(job.ended_s for job in self.jobs) - min(job.submitted_s for job in self.jobs)


def configuration(profiles: Profiles, cluster: Cluster, policy: MergingPolicy) -> CellConfigured:
    """A cell with one merging zone."""
    gpu = GpuType(
        name=profiles.gpu,
        samples_per_s=100.0,
        memory_gib=40.0 * cluster.gpus_per_node,
        gpus=cluster.gpus_per_node,
    )
    return CellConfigured(
        cell=CELL,
        epoch_s=0.0,
        slot_s=600.0,
        tariffs=(Tariff(name="flat", micros_per_kwh=(0,) * 24),),
        zones=(
            Zone(
                id=ZONE,
                base_model=profiles.model,
                base_model_memory_gib=1.0,
                gpu_types=(gpu,),
                nodes=tuple(
                    Node(id=f"n{number}", gpu_type=gpu.name, tariff="flat") for number in range(cluster.nodes)
                ),
                policy=policy,
            ),
        ),
    )


def submissions(jobs: Sequence[WorkloadJob], profiles: Profiles) -> list[TimedEvent[Event]]:
    """Jobs as users submit them."""
    return [
        TimedEvent(
            job.submitted_s,
            JobSubmitted(
                cell=CELL,
                job_id=f"j{number}",
                user=f"u{number % 7}",
                zone=ZONE,
                workload=workload_of(job, profiles),
                terms=MergingTerms(),
            ),
        )
        for number, job in enumerate(jobs)
    ]


def offline(profiles: Profiles, **settings: object) -> MergingPolicy:
    """The policy with the steps and the memory that were profiled offline."""
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


def past_merges(
    profiles: Profiles,
    workloads: Sequence[TuningWorkload],
    settings: Sequence[Curve],
    pairs: Sequence[tuple[MergeMode, str, str]],
) -> tuple[PastMerge, ...]:
    """What these pairs brought, as a zone remembers merges."""
    by_task = {
        workload.dataset.path.removesuffix(".jsonl"): index for index, workload in enumerate(workloads)
    }
    found = []
    for mode, donor, receiver in pairs:
        curve = profiles.curves.merged(donor, receiver, mode)
        if curve is None or donor not in by_task or receiver not in by_task:
            continue
        giver, taker = workloads[by_task[donor]], workloads[by_task[receiver]]
        alone = settings[by_task[receiver]]
        own = alone.first_reaching(alone.best)
        assert own is not None
        epochs = curve.first_reaching(alone.best)
        found.append(
            PastMerge(
                mode=mode,
                donor=task_key(giver),
                donor_samples=giver.dataset.samples,
                receiver=task_key(taker),
                receiver_samples=taker.dataset.samples,
                score=None,
                gain=(curve.best - alone.best) / alone.best,
                target=min(alone.best, 1.0),
                best=min(max(curve.best, 0.0), 1.0),
                epochs=None if epochs is None else float(epochs),
                own_epochs=float(own),
            )
        )
    return tuple(found)


def simulate(
    profiles: Profiles,
    jobs: Sequence[WorkloadJob],
    cluster: Cluster,
    policy: MergingPolicy,
    step_times: StepTimesByPlacement,
    switching: Switching,
) -> Simulated:
    """Run the jobs through a cell as it is."""
    truth = MeasuredTruth(profiles, jobs, step_times, switching)
    simulation = Simulation(
        configuration(profiles, cluster, policy),
        submissions(jobs, profiles),
        solve_s=0.1,
        runners={TaskAssigned.RUNNER: VirtualTuner(CELL, 1.0, truth)},
    )
    submitted: dict[str, float] = {}
    ended: dict[str, float] = {}
    accuracy: dict[str, float] = {}
    targets: dict[str, float] = {}
    merged: dict[str, str] = {}
    starts = undone = 0
    solves_s: list[float] = []

    def take(step: Step) -> None:
        nonlocal starts, undone
        event = step.entry.envelope.event
        if isinstance(event, TaskEvaluated) and event.phase == "own":
            accuracy[event.job_id] = event.accuracy
        if isinstance(event, JobSubmitted):
            submitted[event.job_id] = step.time_s
            assert isinstance(event.workload, TuningWorkload)
            targets[event.job_id] = event.workload.target.accuracy or 0.0
        for decision in step.decisions:
            match decision.outcome:
                case JobCompleted() as done:
                    ended[done.job_id] = step.time_s
                case TaskAssigned():
                    starts += 1
                case TaskChanged(reason="undone"):
                    undone += 1
                case MergeJudged() as judged:
                    merged[judged.job_id] = judged.mode

    simulation.pass_on(take)
    assert simulation.given_up is None, simulation.given_up
    return Simulated(
        tuple(
            Fared(
                jobs[int(job_id[1:])].name,
                submitted[job_id],
                ended[job_id],
                accuracy[job_id] >= targets[job_id],
                merged.get(job_id, ""),
            )
            for job_id in submitted
        ),
        starts,
        undone,
        tuple(solves_s),
    )
