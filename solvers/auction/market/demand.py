"""A task's demand on each class of nodes: samples per slot and memory."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self, cast

import numpy as np

from schemas.auction.evidence import MemorySource, SpeedSource
from schemas.auction.settings import AuctionPolicy
from schemas.cells import ThroughputRow, Zone
from schemas.decisions import RejectionReason
from schemas.facts import Fact
from schemas.lora import LoraHyperparameters, LoraWorkload
from schemas.lora_commands import MAX_RUNS_PER_SLOT
from solvers.auction.market.fleet import Fleet, gib_up
from solvers.auction.market.memory import least_memory_gib
from solvers.compiled import Floats, Ints


class Speed(NamedTuple):
    """How fast a task is taken to be on a GPU type, and by whose word: see `CountedSpeed`."""

    gpu_type: str
    samples_per_s: float
    source: SpeedSource


class Memory(NamedTuple):
    """What a task takes of a node, and by whose word: see `CountedMemory`."""

    gib: float
    """r_i, in whole quanta."""
    source: MemorySource


def counted_speeds(workload: LoraWorkload, rows: Sequence[ThroughputRow]) -> list[Speed]:
    """The speed per GPU type that the task may run on, by type; none where nothing is known.

    What a user declares says which types the task runs on, and how fast on those that the zone has not
    measured. Where it has, its measure holds: a task that claimed to be slower would get room in smaller
    parts, and pay for less of the last one, than it pays that says what it is.

    Args:
        rows: those that cover the task.
    """
    measured = {row.gpu_type: row.samples_per_s for row in rows}
    declared = workload.speed_samples_per_s
    if declared is None:
        return [Speed(gpu_type, speed, "row") for gpu_type, speed in measured.items()]
    return [_counted(gpu_type, declared[gpu_type], measured.get(gpu_type)) for gpu_type in sorted(declared)]


def counted_memory(workload: LoraWorkload, rows: Sequence[ThroughputRow], fleet: Fleet) -> Memory:
    """What the task takes beside the base model, on whichever GPU type it runs.

    The largest of the rows counts, those of types that the bid does not name included: so a bid that names
    fewer of them does not count for less.

    Args:
        rows: those that cover the task; one at least, unless it declares its memory.
    """
    declared, measured = workload.memory_gib, max((row.memory_gib for row in rows), default=None)
    least_gib = least_counted_gib(fleet)
    if measured is None or (declared is not None and declared >= measured):
        return Memory(max(gib_up(cast(float, declared)), least_gib), "declared")
    return Memory(max(gib_up(measured), least_gib), "row" if declared is None else "raised_to_row")


def memory_rests_on_declaration(workload: LoraWorkload, zone: Zone) -> bool:
    """Whether the user's word alone says what memory the task takes: no row of any type covers it."""
    return workload.memory_gib is not None and not covering_rows(workload.hyperparameters, zone)


def speed_rests_on_declaration(workload: LoraWorkload, zone: Zone, gpu_type: str) -> bool:
    """Whether the user's word alone says how fast the task is on a type that it may run on: `declared`."""
    return workload.speed_samples_per_s is not None and all(
        row.gpu_type != gpu_type for row in covering_rows(workload.hyperparameters, zone)
    )


def _counted(gpu_type: str, declared: float, measured: float | None) -> Speed:
    if measured is None:
        return Speed(gpu_type, declared, "declared")
    if declared == measured:
        return Speed(gpu_type, measured, "row")
    return Speed(gpu_type, measured, "raised_to_row" if declared < measured else "capped_by_row")


def covering_rows(shape: LoraHyperparameters, zone: Zone) -> list[ThroughputRow]:
    """Per GPU type the least row that covers the shape: a larger rank or sequence is slower, never faster."""
    best: dict[str, ThroughputRow] = {}
    for row in zone.throughput:
        covers = (
            row.batch_size == shape.batch_size
            and row.rank >= shape.rank
            and row.sequence_length >= shape.sequence_length
        )
        held = best.get(row.gpu_type)
        if covers and (held is None or (row.sequence_length, row.rank) < (held.sequence_length, held.rank)):
            best[row.gpu_type] = row
    return [best[gpu_type] for gpu_type in sorted(best)]


class UnjudgeableError(Exception):
    """A task that no plan can be sought for, whatever the load."""

    def __init__(self, reason: RejectionReason, /, **facts: Fact) -> None:
        super().__init__(reason, facts)
        self.reason: RejectionReason = reason
        self.facts = facts


class Demand(NamedTuple):
    """A task's work, and per class of nodes what a slot of it does and takes; arrays are per class.

    A tuple, so that compiled code takes it whole.
    """

    work_samples: int
    samples: Ints
    """s_ik: whole samples trained per slot, as the policy's `quotas` say; 0 where the task cannot run on the
    class."""
    compute_share: Floats
    """s_ik / C_kp."""
    memory_gib: float
    """r_i, or the least that any task counts for."""
    memory_share: Floats
    """r_i / (C_km - r_b)."""

    @classmethod
    def of(cls, workload: LoraWorkload, work_samples: int, zone: Zone, fleet: Fleet, slot_s: float) -> Self:
        """The demand of `work_samples` of a task in a zone: all of its work, or what is left of it.

        Raises:
            UnjudgeableError: if the speed of the task is unknown, it declares less memory than it must take,
                or no node of the zone could ever hold it.
        """
        _refuse_understated_memory(workload, zone)
        speeds, memory_gib = _speeds_and_memory(workload, zone, fleet)
        samples = [0] * len(fleet.classes)
        for index, node_class in enumerate(fleet.classes):
            per_slot = math.floor(speeds.get(node_class.gpu_type, 0.0) * slot_s)
            if per_slot <= node_class.capacity_samples and memory_gib <= node_class.capacity_gib:
                samples[index] = _quota(per_slot, work_samples, zone)
        if not any(samples):
            raise UnjudgeableError(
                "larger_than_a_node",
                memory_gib=memory_gib,
                gpu_types=tuple(speeds),
                fastest_samples_per_s=max(speeds.values(), default=0.0),
            )
        return cls.sized(work_samples, np.array(samples, np.int64), memory_gib, fleet)

    @classmethod
    def sized(cls, work_samples: int, samples: Ints, memory_gib: float, fleet: Fleet) -> Self:
        """A demand with its shares of the fleet's nodes worked out."""
        return cls(
            work_samples=work_samples,
            samples=samples,
            compute_share=samples / fleet.capacity_samples,
            memory_gib=memory_gib,
            memory_share=memory_gib / fleet.capacity_gib,
        )

    def among(self, before: Fleet, after: Fleet) -> "Demand":
        """The same for other nodes: as much per slot on each GPU type that was there before, and nothing on
        the others, so that what is reserved with it stays as it is."""
        samples_of = {c.gpu_type: int(n) for c, n in zip(before.classes, self.samples, strict=True)}
        samples = np.array([samples_of.get(c.gpu_type, 0) for c in after.classes], np.int64)
        return Demand.sized(self.work_samples, samples, self.memory_gib, after)

    def operational(self, full_costs: Floats) -> Floats:
        """e_ikt of one slot of the task, from the cost of a fully used node: whole micros, rounded up.

        Both are (slots, classes), in micros.
        """
        return cast(Floats, np.ceil(full_costs * self.compute_share))

    @property
    def larger_share(self) -> Floats:
        """(classes,) of a node's compute or memory, whichever the task takes more of: what others lose."""
        return np.maximum(self.compute_share, self.memory_share)

    def least_node_slots(self) -> float:
        """What all of the work takes of compute and memory together, on the class that takes least."""
        runs = self.samples > 0
        per_sample = (self.compute_share[runs] + self.memory_share[runs]) / self.samples[runs]
        return float(per_sample.min()) * self.work_samples


def _quota(per_slot: int, work_samples: int, zone: Zone) -> int:
    """What a task that trains `per_slot` samples at most in a slot trains in each."""
    quota = min(per_slot, work_samples)
    if quota and isinstance(zone.policy, AuctionPolicy) and zone.policy.quotas == "even":
        slots = -(-work_samples // quota)
        return -(-work_samples // slots)
    return quota


def _refuse_understated_memory(workload: LoraWorkload, zone: Zone) -> None:
    """Where the user's word counts, it is reserved: too little would be taken from the node's other tasks."""
    if zone.base_dimensions is None or not memory_rests_on_declaration(workload, zone):
        return
    least_gib = least_memory_gib(workload.hyperparameters, zone.base_dimensions)
    if cast(float, workload.memory_gib) < least_gib:
        shape = workload.hyperparameters
        raise UnjudgeableError(
            "memory_understated",
            case="below_least",
            declared_gib=cast(float, workload.memory_gib),
            least_gib=gib_up(least_gib),
            rank=shape.rank,
            batch_size=shape.batch_size,
            sequence_length=shape.sequence_length,
            base_model=zone.base_model,
        )


def least_counted_gib(fleet: Fleet) -> float:
    """What a task counts for at least, so that no node gets more runs in a slot than a command holds."""
    return gib_up(fleet.largest_capacity_gib / MAX_RUNS_PER_SLOT)


def _speeds_and_memory(workload: LoraWorkload, zone: Zone, fleet: Fleet) -> tuple[dict[str, float], float]:
    types = {gpu.name for gpu in zone.gpu_types}
    if unknown := sorted((workload.speed_samples_per_s or {}).keys() - types):
        raise UnjudgeableError("unknown_gpu_type", gpu_types=tuple(unknown))
    rows = covering_rows(workload.hyperparameters, zone)
    if not rows and (workload.speed_samples_per_s is None or workload.memory_gib is None):
        shape = workload.hyperparameters
        raise UnjudgeableError(
            "no_throughput_known",
            rank=shape.rank,
            batch_size=shape.batch_size,
            sequence_length=shape.sequence_length,
        )
    speeds = {speed.gpu_type: speed.samples_per_s for speed in counted_speeds(workload, rows)}
    return speeds, counted_memory(workload, rows, fleet).gib
