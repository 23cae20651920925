"""Random small zones, their other users, and one user whose task has known properties.

All properties come from a seeded generator, so that a world is the same on every machine. Deadlines are ends
of slots, because a plan promises no work before the end of a slot.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from schemas.auction.bids import BidTerms, VendorQuoted
from schemas.base import HOURS_PER_DAY
from schemas.cells import CellConfigured, GpuType, Node, Tariff, ThroughputRow, Zone
from schemas.jobs import JobSubmitted
from schemas.kind import PolicySettings
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload

CELL, ZONE = "c", "z"
SLOT_S = 1_800.0
UNIT_MICROS = 1_000_000
"""The median value of a node-slot of compute."""
BASE_GIB = 2.0
NODE_GIB = {"large": 26.0, "small": 14.0}
NODE_SAMPLES = {"large": 1_800, "small": 900}
"""Samples per slot of a full node, by GPU type."""
RANK, SEQUENCE_LENGTH = 8, 64
OTHERS_BATCH = 2
"""Batch size of other users' tasks, which no row covers: their declarations are true."""
MOST_OTHERS = 36
LOADS = (0.3, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class DeclaredTask:
    """Properties of a task that a bid may declare; for the user's own task, the true ones."""

    work_samples: int
    deadline_slot: int
    """Slot that begins with the deadline."""
    memory_gib: float
    speed_samples_per_s: Mapping[str, float]
    """Speeds by GPU type."""
    dataset_samples: int
    needs_preprocessing: bool
    batch_size: int

    def bid(self, job_id: str, bid_micros: int, user: str) -> JobSubmitted:
        """Return a bid with these properties."""
        return JobSubmitted(
            cell=CELL,
            job_id=job_id,
            user=user,
            zone=ZONE,
            workload=LoraWorkload(
                work_samples=self.work_samples,
                dataset=Dataset(path="d.jsonl", samples=self.dataset_samples),
                hyperparameters=LoraHyperparameters(
                    rank=RANK, batch_size=self.batch_size, sequence_length=SEQUENCE_LENGTH
                ),
                memory_gib=self.memory_gib,
                speed_samples_per_s=dict(self.speed_samples_per_s),
                needs_preprocessing=self.needs_preprocessing,
            ),
            terms=BidTerms(bid_micros=bid_micros, deadline_s=self.deadline_slot * SLOT_S),
        )


@dataclass(frozen=True)
class Other:
    """A true bid of another user."""

    job_id: str
    task: DeclaredTask
    bid_micros: int


@dataclass(frozen=True)
class World:
    """A zone and all its events except the user's actions."""

    configuration: CellConfigured
    quotes: tuple[VendorQuoted, ...]
    others: Mapping[int, tuple[Other, ...]]
    """Bids by slot; in the user's own slot, those before the user."""
    others_behind: tuple[Other, ...]
    """Bids in the user's own slot, after the user."""
    slot: int
    """Slot of the user's arrival."""
    task: DeclaredTask
    value_micros: int
    """Value of an adapter by the deadline."""
    has_row: bool
    """Whether the zone has measured the user's task."""

    @property
    def horizon_slots(self) -> int:
        """Horizon of the zone."""
        return self.configuration.zones[0].horizon_slots

    @property
    def reach_slots(self) -> int:
        """Slots by which the deadline is beyond the horizon at the user's arrival; 0 or less if it is
        within."""
        return self.task.deadline_slot - (self.slot + 1 + self.horizon_slots)


def draw_world(rng: random.Random, policy: PolicySettings) -> World:
    """Draw one to four nodes of one or two types, six to 24 slots, and up to `MOST_OTHERS` other bids."""
    types = rng.choice((("large",), ("large",), ("large", "small")))
    nodes = rng.choice((1, 2, 2, 3, 4))
    horizon_slots = rng.randint(6, 24)
    slot = rng.randint(0, 3)
    task, value_micros = _draw_task(rng, types, slot, horizon_slots, rng.choice((1, 4, 16)))
    if rng.random() < 0.25:
        task = replace(task, deadline_slot=slot + 1 + horizon_slots + rng.randint(1, 4))
    has_row = rng.random() < 0.5
    rows = tuple(_row(rng, task, gpu_type) for gpu_type in types) if has_row else ()
    vendors = tuple(f"v{number}" for number in range(rng.randint(1, 3)))
    others = _draw_others(rng, types, nodes, slot, horizon_slots)
    own = others.get(slot, ())
    before = rng.randint(0, len(own))
    return World(
        configuration=CellConfigured(
            cell=CELL,
            epoch_s=0.0,
            slot_s=SLOT_S,
            node_timeout_s=SLOT_S,
            tariffs=(_tariff(rng, "day"), _tariff(rng, "night")),
            zones=(
                Zone(
                    id=ZONE,
                    base_model="base",
                    base_model_memory_gib=BASE_GIB,
                    horizon_slots=horizon_slots,
                    gpu_types=tuple(
                        GpuType(
                            name=name,
                            samples_per_s=NODE_SAMPLES[name] / SLOT_S,
                            memory_gib=NODE_GIB[name],
                            power_kw=NODE_SAMPLES[name] / 1_800,
                        )
                        for name in types
                    ),
                    nodes=tuple(
                        Node(id=f"n{number}", gpu_type=rng.choice(types), tariff=rng.choice(("day", "night")))
                        for number in range(nodes)
                    ),
                    throughput=rows,
                    policy=policy,
                ),
            ),
            vendors=vendors,
        ),
        quotes=tuple(_quote(rng, vendor) for vendor in vendors),
        others={**others, slot: own[:before]},
        others_behind=own[before:],
        slot=slot,
        task=task,
        value_micros=value_micros,
        has_row=has_row,
    )


def _draw_task(
    rng: random.Random, types: tuple[str, ...], slot: int, horizon_slots: int, batch_size: int
) -> tuple[DeclaredTask, int]:
    """Draw the task of a user who arrives in a slot, and its value in micros."""
    share = rng.choice((0.1, 0.25, 0.4, 0.5, 0.7, 1.0)) * rng.uniform(0.8, 1.0)
    per_slot = {
        name: max(math.floor(share * NODE_SAMPLES[name] * rng.uniform(0.7, 1.0)), 1) for name in types
    }
    node_slots = rng.choice((1, 1, 2, 3, 5)) * rng.uniform(0.6, 1.0)
    work = max(math.ceil(node_slots * max(per_slot.values())), 1)
    needed = math.ceil(work / min(per_slot.values()))
    deadline = slot + 1 + needed + rng.randint(0, max(horizon_slots - needed, 0))
    density = math.exp(rng.gauss(0.0, 1.0))
    compute = max(work / NODE_SAMPLES[name] for name in types)
    prepared = rng.random() < 0.3
    task = DeclaredTask(
        work_samples=work,
        deadline_slot=deadline,
        memory_gib=round(rng.choice((0.5, 1.0, 3.0, 6.0, 11.0)) * rng.uniform(0.7, 1.0), 3),
        # Half a sample more, so that rounding does not remove one.
        speed_samples_per_s={name: (samples + 0.5) / SLOT_S for name, samples in per_slot.items()},
        dataset_samples=rng.randint(50, 2_000),
        needs_preprocessing=prepared,
        batch_size=batch_size,
    )
    return task, max(round(UNIT_MICROS * density * max(compute, 0.05) * (1.3 if prepared else 1.0)), 1)


def _draw_others(
    rng: random.Random, types: tuple[str, ...], nodes: int, slot: int, horizon_slots: int
) -> dict[int, tuple[Other, ...]]:
    """Draw other bids, by slot: most before the user or in the same slot, some later."""
    count = min(round(rng.choice(LOADS) * rng.uniform(0.5, 1.0) * nodes * horizon_slots / 2), MOST_OTHERS)
    drawn: dict[int, list[Other]] = {}
    for number in range(count):
        at = rng.randint(0, slot) if rng.random() < 0.7 else slot + rng.randint(0, 4)
        task, value_micros = _draw_task(rng, types, at, horizon_slots, OTHERS_BATCH)
        drawn.setdefault(at, []).append(Other(f"other{number}", task, value_micros))
    return {at: tuple(bids) for at, bids in drawn.items()}


def _row(rng: random.Random, task: DeclaredTask, gpu_type: str) -> ThroughputRow:
    """Draw a measurement of the task's shape, or of one that is no smaller."""
    is_exact = rng.random() < 0.5
    return ThroughputRow(
        gpu_type=gpu_type,
        rank=RANK if is_exact else 2 * RANK,
        batch_size=task.batch_size,
        sequence_length=SEQUENCE_LENGTH,
        samples_per_s=task.speed_samples_per_s[gpu_type] * (1.0 if is_exact else rng.uniform(0.85, 1.0)),
        memory_gib=task.memory_gib * (1.0 if is_exact else rng.uniform(1.0, 1.1)),
    )


def _tariff(rng: random.Random, name: str) -> Tariff:
    prices = tuple(round(UNIT_MICROS * rng.uniform(0.0, 0.6)) for _ in range(HOURS_PER_DAY))
    return Tariff(name=name, micros_per_kwh=prices)


def _quote(rng: random.Random, vendor: str) -> VendorQuoted:
    return VendorQuoted(
        cell=CELL,
        vendor=vendor,
        fixed_price_micros=round(UNIT_MICROS * rng.uniform(0.0, 0.1)),
        price_per_thousand_samples_micros=round(UNIT_MICROS * rng.uniform(0.0, 0.4)),
        fixed_delay_s=SLOT_S * rng.choice((0, 0, 1, 2)),
        delay_per_thousand_samples_s=SLOT_S * rng.choice((0.0, 0.5, 1.0)),
    )
