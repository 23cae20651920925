"""Nodes of a zone for the auction: classes, capacities and tariffs; and its slots."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from schemas.base import HOURS_PER_DAY
from schemas.cells import CellConfigured, GpuType, Tariff, Zone
from solvers.compiled import Floats, Ints


@dataclass(frozen=True)
class Calendar:
    """Calendar of slots: slot t lasts from epoch_s + t slot_s to epoch_s + (t + 1) slot_s."""

    epoch_s: float
    slot_s: float

    def start_s(self, slot: int) -> float:
        return self.epoch_s + slot * self.slot_s

    def hours_of(self, slots: Ints, utc_offset_h: int = 0) -> Ints:
        """Return the hour of the day in which each slot begins, in UTC plus an offset."""
        starts_s = self.epoch_s + slots * self.slot_s
        return ((starts_s // 3_600).astype(np.int64) + utc_offset_h) % HOURS_PER_DAY

    def slot_at(self, time_s: float) -> int:
        """Return the slot of `time_s`; -1 or less before the epoch. Exact at the boundaries."""
        slot = math.floor((time_s - self.epoch_s) / self.slot_s)
        while self.start_s(slot + 1) <= time_s:
            slot += 1
        while self.start_s(slot) > time_s:
            slot -= 1
        return slot

    def last_slot_by(self, deadline_s: float) -> int:
        """Return the last slot that ends no later than a deadline."""
        return self.slot_at(deadline_s) - 1


GIB_QUANTUM = 1024
"""Quanta per GiB. Memory is counted in 1/1024 GiB, so that sums and differences are exact in floating
point."""


def gib_up(gib: float) -> float:
    """Round GiB up to the memory quantum: the memory of a task."""
    return math.ceil(gib * GIB_QUANTUM) / GIB_QUANTUM


def gib_down(gib: float) -> float:
    """Round GiB down to the memory quantum: the memory of a node."""
    return math.floor(gib * GIB_QUANTUM) / GIB_QUANTUM


@dataclass(frozen=True)
class NodeClass:
    """Class of nodes that differ only in their id: one GPU type at one tariff."""

    gpu_type: str
    tariff: Tariff
    power_kw: float
    capacity_samples: float
    """Capacity C_kp: whole samples per slot."""
    capacity_gib: float
    """Capacity C_km - r_b (constraint 4g, erratum P6)."""
    start: int
    """First row of the class among the fleet's nodes."""
    stop: int
    """Row after the last of the class."""

    def full_cost_micros(self, slots: Ints, calendar: Calendar) -> Floats:
        """Return the operational cost of a fully used node in each slot, by the tariff of its first hour."""
        by_hour = np.array(self.tariff.micros_per_kwh)
        hours = calendar.hours_of(slots, self.tariff.utc_offset_h)
        costs: Floats = by_hour[hours] * self.power_kw * calendar.slot_s / 3_600
        return costs


@dataclass(frozen=True)
class Fleet:
    """Nodes of a zone in rows, classes one after another, by id within a class."""

    nodes: tuple[str, ...]
    classes: tuple[NodeClass, ...]

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Row by node."""
        return {node: row for row, node in enumerate(self.nodes)}

    @cached_property
    def class_of_row(self) -> tuple[int, ...]:
        """Index of each row's class."""
        return tuple(index for index, c in enumerate(self.classes) for _ in range(c.start, c.stop))

    @cached_property
    def capacity_samples(self) -> Floats:
        """Capacities C_kp, (classes,)."""
        return np.array([node_class.capacity_samples for node_class in self.classes])

    @cached_property
    def capacity_gib(self) -> Floats:
        """Capacities C_km - r_b, (classes,)."""
        return np.array([node_class.capacity_gib for node_class in self.classes])

    @cached_property
    def largest_capacity_gib(self) -> float:
        """Memory of the largest node, without its base model."""
        return max(node_class.capacity_gib for node_class in self.classes)

    @classmethod
    def of(cls, cell: CellConfigured, zone: Zone) -> "Fleet":
        tariffs = {tariff.name: tariff for tariff in cell.tariffs}
        types = {gpu.name: gpu for gpu in zone.gpu_types}
        members: dict[tuple[str, str], list[str]] = {}
        for node in zone.nodes:
            members.setdefault((node.gpu_type, node.tariff), []).append(node.id)
        nodes: list[str] = []
        classes: list[NodeClass] = []
        for (gpu_type, tariff), ids in sorted(members.items()):
            gpu: GpuType = types[gpu_type]
            classes.append(
                NodeClass(
                    gpu_type=gpu_type,
                    tariff=tariffs[tariff],
                    power_kw=gpu.power_kw,
                    capacity_samples=float(math.floor(gpu.samples_per_s * cell.slot_s)),
                    capacity_gib=gib_down(gpu.memory_gib - zone.base_model_memory_gib),
                    start=len(nodes),
                    stop=len(nodes) + len(ids),
                )
            )
            nodes.extend(sorted(ids))
        return cls(tuple(nodes), tuple(classes))
