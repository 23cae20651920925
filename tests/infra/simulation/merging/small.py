"""A small cell of fine-tuning jobs whose times can be computed by hand: steps of a second on one GPU, starts
without delay, and merges that help or harm as a test sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.simulation.merging.truth import AccuracyAfter, ProfileTruth
from infra.simulation.merging.tuner import VirtualTuner
from infra.simulation.simulator import SimulatedRun, Simulation
from infra.workloads.timed import TimedEvent
from schemas.base import HOURS_PER_DAY, Event
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.jobs import JobSubmitted, JobWithdrawalRequested
from schemas.lora import Dataset
from schemas.merging.estimates import MergeMode
from schemas.merging.reports import MeasuredStep
from schemas.merging.settings import MergingPolicy
from schemas.merging.workload import MergingTerms, TrainingTarget, TuningHyperparameters, TuningWorkload

CELL, ZONE, MODEL = "c", "z", "tiny"
EPOCH_STEPS = 100
"""Steps of a job's epoch: its data are 800 samples, its batch eight."""
EPOCHS_ALONE = 6
"""In which a job meets its target that is not merged."""
MOST_EPOCHS = 10
_POLICY = {"interval_s": 10_000.0, "prewarm_s": 0.0, "profile_iterations": 8, "merges": "expected"}


@dataclass(frozen=True)
class SmallTruth:
    """See `Truth`. Every epoch brings a tenth of the accuracy, so that a job meets its target of 60 % after
    six; a merge begins as many epochs ahead as `helps` has it, or behind."""

    helps: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By the names of donor and receiver; others are worth nothing."""
    losses: Sequence[float] = (2.0, 1.5, 1.2, 1.0, 0.9, 0.85, 0.8, 0.78)
    """Losses of every profile run."""

    def profile(self, workload: TuningWorkload, iterations: int) -> ProfileTruth:
        return ProfileTruth(tuple(self.losses[:iterations]), (1.0, 2.0, 3.0), 0.1, 0.5, 2.0)

    def alone(self, workload: TuningWorkload) -> AccuracyAfter:
        return _ahead_by(0)

    def merged(self, mode: MergeMode, workload: TuningWorkload, partner: TuningWorkload) -> AccuracyAfter:
        return _ahead_by(self._help(partner, workload))

    def as_receiver(self, workload: TuningWorkload, donor: TuningWorkload) -> AccuracyAfter:
        ahead = self._help(donor, workload)
        return lambda epochs: 0.1 + 0.01 * ahead * epochs

    def step(self, workload: TuningWorkload, placement: tuple[int, ...]) -> MeasuredStep:
        gpus = sum(placement)
        return MeasuredStep(
            gpus=gpus, nodes=1, micro_batch_size=8, accumulation_steps=1, step_s=1 / gpus, exchange_s=0.0
        )

    def start_s(self, workload: TuningWorkload, is_warm: bool, is_prewarmed: bool) -> float:
        return 0.0

    def _help(self, donor: TuningWorkload, receiver: TuningWorkload) -> int:
        return self.helps.get((donor.dataset.path[0], receiver.dataset.path[0]), 0)


@dataclass(frozen=True)
class ShortTruth(SmallTruth):
    """A merge keeps jobs on these data from their target: they come to 55 %."""

    short: frozenset[str] = frozenset()

    def merged(self, mode: MergeMode, workload: TuningWorkload, partner: TuningWorkload) -> AccuracyAfter:
        after = super().merged(mode, workload, partner)
        if workload.dataset.path[0] not in self.short:
            return after
        return lambda epochs: min(after(epochs), 0.55)


def _ahead_by(epochs_ahead: int) -> AccuracyAfter:
    return lambda epochs: min(max(0.1 * (epochs + epochs_ahead) + 1e-9, 0.0), 1.0)


def merging_cell(nodes: int = 1, gpus: int = 1, **policy: Any) -> CellConfigured:
    """A cell of a merging zone, with nodes n0, n1, ... Intervals are long: plans are made where GPUs idle."""
    zone = Zone(
        id=ZONE,
        base_model=MODEL,
        base_model_memory_gib=0.5,
        gpu_types=(GpuType(name="V100", samples_per_s=4.0, memory_gib=32.0 * gpus, gpus=gpus),),
        nodes=tuple(Node(id=f"n{number}", gpu_type="V100", tariff="flat") for number in range(nodes)),
        policy=MergingPolicy(**{**_POLICY, **policy}),
    )
    return CellConfigured(
        cell=CELL,
        epoch_s=0.0,
        slot_s=600.0,
        tariffs=(Tariff(name="flat", micros_per_kwh=(0,) * HOURS_PER_DAY),),
        zones=(zone,),
    )


def workload(data: str = "a", **fields: Any) -> TuningWorkload:
    """A job on one dataset, a hundred steps in an epoch, until 60 % are right."""
    defaults: dict[str, Any] = {
        "model": MODEL,
        "dataset": Dataset(path=f"{data}.jsonl", samples=800),
        "validation_path": f"{data}.validation.jsonl",
        "hyperparameters": TuningHyperparameters(batch_size=8),
        "target": TrainingTarget(accuracy=0.6, most_iterations=MOST_EPOCHS * EPOCH_STEPS),
    }
    return TuningWorkload(**{**defaults, **fields})


def submit(job_id: str, data: str = "a", user: str = "ann", **fields: Any) -> JobSubmitted:
    return JobSubmitted(
        cell=CELL,
        job_id=job_id,
        user=user,
        zone=ZONE,
        workload=workload(data, **fields),
        terms=MergingTerms(),
    )


def withdraw(job_id: str, user: str = "ann") -> JobWithdrawalRequested:
    return JobWithdrawalRequested(cell=CELL, job_id=job_id, user=user)


def simulation(
    cell: CellConfigured, inputs: Sequence[tuple[float, Event]], truth: SmallTruth | None = None
) -> Simulation:
    """The cell with these inputs, by the second at which they come."""
    timed = [TimedEvent(time_s, event) for time_s, event in inputs]
    return Simulation(cell, timed, runners={"tuner": VirtualTuner(CELL, 1.0, truth or SmallTruth())})


def simulated(
    cell: CellConfigured, inputs: Sequence[tuple[float, Event]], truth: SmallTruth | None = None
) -> SimulatedRun:
    """Return the result of the simulation."""
    return simulation(cell, inputs, truth).run()
