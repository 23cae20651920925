"""Demand of a task on each class of nodes: samples per slot and memory."""

import math
from collections.abc import Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple, Self, cast

import numpy as np

from schemas.auction.evidence import MemorySource, ProfileSource, SpeedSource
from schemas.auction.settings import MarketPolicy
from schemas.cells import BaseDimensions, ThroughputRow, Zone
from schemas.decisions import RejectionReason
from schemas.facts import Fact
from schemas.lora import LoraHyperparameters, LoraWorkload
from schemas.lora_commands import MAX_RUNS_PER_SLOT
from solvers.auction.market.fleet import Fleet, gib_up
from solvers.compiled import Floats, Ints

_BYTES_PER_PARAMETER = 16
_BYTES_PER_LOG_PROBABILITY = 4
_BYTES_PER_GIB = 2**30


def least_memory_gib(shape: LoraHyperparameters, base: BaseDimensions) -> float:
    """Return the least memory of a task without its base model in GiB: whole bytes, so equal on all machines.

    It counts the memory of the fused engine (docs/lora-engine.md) at the end of a forward pass over full
    sequences:

    - for each parameter of the adapter, four numbers of 4 bytes: itself, its gradient, AdamW's two moments;
    - for each token and layer, the values that the frozen Llama keeps for the backward pass: the inputs of
      both norms, query and attention output (4 h), keys and values (2 kv), and the gate before and after its
      activation and the parallel projection (3 i). The first layer is left out, since gradients need not
      reach its beginning;
    - for each token, the log-probabilities of the whole vocabulary, in 4 bytes.

    It is a lower bound: it leaves out additional inputs that adapters keep, dropout masks, work space and the
    allocator's overhead. On the default base it is 0.6 to 0.8 of the measured memory of autograd. Layers that
    a Llama does not have add nothing: the executor rejects them by name.
    """
    hidden, inner, narrow = base.hidden_features, base.intermediate_features, base.key_value_features
    features = {
        "q_proj": 2 * hidden,
        "k_proj": hidden + narrow,
        "v_proj": hidden + narrow,
        "o_proj": 2 * hidden,
        "gate_proj": hidden + inner,
        "up_proj": hidden + inner,
        "down_proj": inner + hidden,
    }
    adapted = features if shape.is_all_linear else set(shape.target_modules)
    parameters = base.layers * shape.rank * sum(features.get(name, 0) for name in adapted)
    kept = (base.layers - 1) * (4 * hidden + 2 * narrow + 3 * inner) * base.activation_bytes
    tokens = shape.batch_size * shape.sequence_length
    per_token = kept + _BYTES_PER_LOG_PROBABILITY * base.vocabulary_size
    return (_BYTES_PER_PARAMETER * parameters + tokens * per_token) / _BYTES_PER_GIB


class Speed(NamedTuple):
    """Assumed speed of a task on a GPU type, and its source: see `CountedSpeed`."""

    gpu_type: str
    samples_per_s: float
    source: SpeedSource
    speed_from: ProfileSource | None = None


class ProfiledSpeed(NamedTuple):
    """Speed of a task on a GPU type, from the profile store of the cell, for a job of equal shape."""

    samples_per_s: float
    memory_gib: float | None
    source: ProfileSource


Profiles = Mapping[str, ProfiledSpeed]
"""Profiles that count for a task, by GPU type."""
NO_PROFILES: Profiles = MappingProxyType({})


class Known(NamedTuple):
    """Measurements that cover a task: its profiles, and else the rows of the zone's table."""

    speeds: Mapping[str, tuple[float, ProfileSource | None]]
    """Speed by GPU type, ascending, with its source; None for a row."""
    memory_gib: float | None
    """Largest memory of all types; None if none was measured."""
    memory_from: ProfileSource | None = None
    """Source of the memory; None for a row."""

    @classmethod
    def of(cls, workload: LoraWorkload, zone: Zone, profiles: Profiles = NO_PROFILES) -> Self:
        """Return the measurements that cover a task in a zone.

        Profiles from runs of other users take precedence over the zone's rows. Any other profile counts only
        without a row and without a declaration, since anyone may publish a profile, and the user's own runs
        count as a declaration. So a forged profile does not change a bid with a declaration, and the runs of
        a user do not change the user's price.
        """
        rows = covering_rows(workload.hyperparameters, zone)
        if not rows and not profiles:
            return cls({}, None)
        speeds: dict[str, tuple[float, ProfileSource | None]] = {
            row.gpu_type: (row.samples_per_s, None) for row in rows
        }
        measured = {gpu_type: each for gpu_type, each in profiles.items() if each.source == "measured"}
        weaker = {gpu_type: each for gpu_type, each in profiles.items() if gpu_type not in measured}
        speeds |= {gpu_type: (each.samples_per_s, each.source) for gpu_type, each in measured.items()}
        if workload.speed_samples_per_s is None:
            speeds = {
                gpu_type: (each.samples_per_s, each.source) for gpu_type, each in weaker.items()
            } | speeds
        memories: dict[str, _Memory] = {row.gpu_type: (row.memory_gib, None) for row in rows}
        memories |= _memories(measured)
        if not memories and workload.memory_gib is None:
            memories = _memories(weaker)
        return cls(dict(sorted(speeds.items())), *_largest(memories))


_Memory = tuple[float, ProfileSource | None]


def _memories(profiles: Profiles) -> dict[str, _Memory]:
    return {
        gpu_type: (each.memory_gib, each.source)
        for gpu_type, each in profiles.items()
        if each.memory_gib is not None
    }


def _largest(memories: Mapping[str, _Memory]) -> tuple[float | None, ProfileSource | None]:
    if not memories:
        return None, None
    return max((memories[gpu_type] for gpu_type in sorted(memories)), key=itemgetter(0))


class TaskMemory(NamedTuple):
    """Memory that a task takes of a node, and its source: see `CountedMemory`."""

    gib: float
    """Memory r_i, in whole quanta."""
    source: MemorySource
    memory_from: ProfileSource | None = None


def counted_speeds(workload: LoraWorkload, known: Known) -> list[Speed]:
    """Return the speed on each GPU type that the task may run on, by type; empty if none is known.

    The user's declaration determines the types that the task runs on, and the speed on types that the zone
    has not measured. A measurement of the zone takes precedence. Otherwise, a task that claims to be slower
    than it is would get room in smaller parts than with a true declaration, and would pay for less of its
    last part.

    Args:
        known: measurements that cover the task.
    """
    declared = workload.speed_samples_per_s
    if declared is None:
        return [Speed(gpu_type, speed, "row", origin) for gpu_type, (speed, origin) in known.speeds.items()]
    return [_counted(gpu_type, declared[gpu_type], known) for gpu_type in sorted(declared)]


def counted_memory(workload: LoraWorkload, known: Known, fleet: Fleet) -> TaskMemory:
    """Return the memory of the task without the base model, on any GPU type.

    The largest measurement counts, also those of GPU types that the bid does not name. So a bid does not
    count for less memory by naming fewer types.

    Args:
        known: measurements that cover the task, with memory unless it declares its own.
    """
    declared, measured = workload.memory_gib, known.memory_gib
    least_gib = least_counted_gib(fleet)
    if measured is None or (declared is not None and declared >= measured):
        return TaskMemory(max(gib_up(cast(float, declared)), least_gib), "declared")
    source: MemorySource = "row" if declared is None else "raised_to_row"
    return TaskMemory(max(gib_up(measured), least_gib), source, known.memory_from)


def memory_rests_on_declaration(workload: LoraWorkload, known: Known) -> bool:
    """Return whether the user is responsible for the memory of the task: it is only declared, or measured by
    the user's own runs."""
    if known.memory_gib is None:
        return workload.memory_gib is not None
    return known.memory_from == "own_runs"


def speed_rests_on_declaration(workload: LoraWorkload, known: Known, gpu_type: str) -> bool:
    """Return whether the user is responsible for the speed of the task on a type that it may run on: it is
    only declared, or measured by the user's own runs."""
    if gpu_type in known.speeds:
        return known.speeds[gpu_type][1] == "own_runs"
    return workload.speed_samples_per_s is not None


def _counted(gpu_type: str, declared: float, known: Known) -> Speed:
    if gpu_type not in known.speeds:
        return Speed(gpu_type, declared, "declared")
    measured, origin = known.speeds[gpu_type]
    if declared == measured:
        return Speed(gpu_type, measured, "row", origin)
    source: SpeedSource = "raised_to_row" if declared < measured else "capped_by_row"
    return Speed(gpu_type, measured, source, origin)


def covering_rows(shape: LoraHyperparameters, zone: Zone) -> list[ThroughputRow]:
    """Return for each GPU type the row of the smallest shape that covers the task's. A larger rank or
    sequence is never faster."""
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


class UnplannableError(Exception):
    """No plan can be searched for the task, whatever the load."""

    def __init__(self, reason: RejectionReason, /, **facts: Fact) -> None:
        super().__init__(reason, facts)
        self.reason: RejectionReason = reason
        self.facts = facts


class Demand(NamedTuple):
    """Work of a task, and per class of nodes the samples and resources of a slot; arrays are per class.

    A tuple, so that compiled code accepts it as a whole.
    """

    work_samples: int
    samples: Ints
    """Whole samples s_ik trained per slot, by the policy's `quotas`; 0 if the class cannot run the task."""
    compute_share: Floats
    """Share s_ik / C_kp."""
    memory_gib: float
    """Memory r_i, or the least that any task counts for."""
    memory_share: Floats
    """Share r_i / (C_km - r_b)."""

    @classmethod
    def of(
        cls,
        workload: LoraWorkload,
        work_samples: int,
        zone: Zone,
        fleet: Fleet,
        slot_s: float,
        profiles: Profiles = NO_PROFILES,
    ) -> Self:
        """Return the demand of `work_samples` of a task in a zone: all of its work, or the rest of it.

        Args:
            workload: of the task.
            work_samples: number of samples to train.
            zone: with its table of throughput.
            fleet: nodes of the zone.
            slot_s: length of a slot.
            profiles: profiles of the task, which count before the table.

        Raises:
            UnplannableError: the speed of the task is unknown, it declares less memory than it must use, or
                no node of the zone could ever hold it.
        """
        known = Known.of(workload, zone, profiles)
        _refuse_understated_memory(workload, zone, known)
        speeds, memory_gib = _speeds_and_memory(workload, zone, fleet, known)
        samples = [0] * len(fleet.classes)
        for index, node_class in enumerate(fleet.classes):
            per_slot = math.floor(speeds.get(node_class.gpu_type, 0.0) * slot_s)
            if per_slot <= node_class.capacity_samples and memory_gib <= node_class.capacity_gib:
                samples[index] = _quota(per_slot, work_samples, zone)
        if not any(samples):
            raise UnplannableError(
                "larger_than_a_node",
                memory_gib=memory_gib,
                gpu_types=tuple(speeds),
                fastest_samples_per_s=max(speeds.values(), default=0.0),
            )
        return cls.sized(work_samples, np.array(samples, np.int64), memory_gib, fleet)

    @classmethod
    def sized(cls, work_samples: int, samples: Ints, memory_gib: float, fleet: Fleet) -> Self:
        """Return a demand with its shares of the fleet's nodes."""
        return cls(
            work_samples=work_samples,
            samples=samples,
            compute_share=samples / fleet.capacity_samples,
            memory_gib=memory_gib,
            memory_share=memory_gib / fleet.capacity_gib,
        )

    def among(self, before: Fleet, after: Fleet) -> "Demand":
        """Return the demand for other nodes. To leave its reservations unchanged, it has the same samples per
        slot on each former GPU type, and none on other types."""
        samples_of = {c.gpu_type: int(n) for c, n in zip(before.classes, self.samples, strict=True)}
        samples = np.array([samples_of.get(c.gpu_type, 0) for c in after.classes], np.int64)
        return Demand.sized(self.work_samples, samples, self.memory_gib, after)

    def operational(self, full_costs: Floats) -> Floats:
        """Return e_ikt of one slot of the task, from the cost of a fully used node: whole micros, rounded up.

        Both are (slots, classes), in micros.
        """
        return cast(Floats, np.ceil(full_costs * self.compute_share))

    def least_node_slots(self) -> float:
        """Return the node-slots of compute and memory together for all work, on the class with the least
        sum."""
        runs = self.samples > 0
        per_sample = (self.compute_share[runs] + self.memory_share[runs]) / self.samples[runs]
        return float(per_sample.min()) * self.work_samples


def _quota(per_slot: int, work_samples: int, zone: Zone) -> int:
    """Return the samples per slot of a task that can train at most `per_slot`."""
    quota = min(per_slot, work_samples)
    if quota and isinstance(zone.policy, MarketPolicy) and zone.policy.EVEN_QUOTAS:
        slots = -(-work_samples // quota)
        return -(-work_samples // slots)
    return quota


def _refuse_understated_memory(workload: LoraWorkload, zone: Zone, known: Known) -> None:
    """Raise if the declared memory is too low: it is reserved, and a shortage would harm the node's tasks."""
    if zone.base_dimensions is None or not memory_rests_on_declaration(workload, known):
        return
    least_gib = least_memory_gib(workload.hyperparameters, zone.base_dimensions)
    if workload.memory_gib is not None and workload.memory_gib < least_gib:
        shape = workload.hyperparameters
        raise UnplannableError(
            "memory_understated",
            case="below_least",
            declared_gib=workload.memory_gib,
            least_gib=gib_up(least_gib),
            rank=shape.rank,
            batch_size=shape.batch_size,
            sequence_length=shape.sequence_length,
            base_model=zone.base_model,
        )


def least_counted_gib(fleet: Fleet) -> float:
    """Return the least memory that a task counts for, which bounds the runs of a node in a slot by the
    capacity of a command."""
    return gib_up(fleet.largest_capacity_gib / MAX_RUNS_PER_SLOT)


def _speeds_and_memory(
    workload: LoraWorkload, zone: Zone, fleet: Fleet, known: Known
) -> tuple[dict[str, float], float]:
    types = {gpu.name for gpu in zone.gpu_types}
    if unknown := sorted((workload.speed_samples_per_s or {}).keys() - types):
        raise UnplannableError("unknown_gpu_type", gpu_types=tuple(unknown))
    lacks_speed = not known.speeds and workload.speed_samples_per_s is None
    if lacks_speed or (known.memory_gib is None and workload.memory_gib is None):
        shape = workload.hyperparameters
        raise UnplannableError(
            "no_throughput_known",
            rank=shape.rank,
            batch_size=shape.batch_size,
            sequence_length=shape.sequence_length,
        )
    speeds = {speed.gpu_type: speed.samples_per_s for speed in counted_speeds(workload, known)}
    return speeds, counted_memory(workload, known, fleet).gib
