"""Placements of other systems: Lina's (thesis, section 4.5.2), EPLB's and DeepSpeed-MoE's.

Lina gives devices in proportion to popularity, and packs first-fit decreasing. The thesis does not define how
n_e of Eq. 4.1 becomes whole devices. Here an expert gets the whole part of n_e as devices of its own, and the
fraction is packed with those of other experts into the remaining devices.

EPLB (deepseek-ai/EPLB) replicates popular experts greedily, and packs the replicas. It follows
`replicate_experts` and `balanced_packing` of `eplb.py`, for one group of experts and one node.
"""

import random

import numpy as np

from solvers.compiled import Ints, kernel
from solvers.experts.placement import FREE, DeviceGroup, ExpertDemand, ExpertPlacement


def place_first_fit(demand: ExpertDemand, cluster: DeviceGroup, seed: int = 0) -> ExpertPlacement:
    """Return a placement by the heuristic of the thesis.

    1. Each expert gets the whole part of n_e = N x popularity (Eq. 4.1) as devices of its own, popular
       experts first.
    2. The fractions are packed first-fit decreasing into the empty devices, each of which holds 1. A fraction
       that fits nowhere is added to the expert's own devices; without any, it goes to the least loaded device
       that has room.
    3. Experts without estimate are spread evenly over the devices still empty. Without such devices, each
       goes to a device drawn from those with room.

    Ties by index. An expert's tokens are shared in proportion to its devices and its fraction of one. A
    replica never takes the room of an expert that is not placed yet.

    Args:
        seed: seed of the drawn devices.

    Raises:
        ValueError: there is no room for all experts.
    """
    cluster.check(demand.loads.size)
    packing = _Packing(demand, cluster)
    for expert in sorted(range(packing.count), key=lambda expert: -packing.loads[expert]):
        packing.give_own_gpus(expert)
    packing.pack_fractions()
    packing.spread_unknown(random.Random(seed))
    return ExpertPlacement.of_parts(packing.parts, cluster.most_per_device)


class _Packing:
    """Placement under construction. Loads are N x the demand's, so that a device holds its total."""

    def __init__(self, demand: ExpertDemand, cluster: DeviceGroup) -> None:
        self.count = demand.loads.size
        self.loads = [load * cluster.devices for load in demand.loads.tolist()]
        self.device_load = max(demand.total, 1)
        self.most = cluster.most_per_device
        self.parts = np.full((cluster.devices, self.count), FREE, np.int64)
        self.held = [0] * cluster.devices
        self.used_slots = [0] * cluster.devices
        self.own = [0] * self.count
        self.is_placed = [False] * self.count
        self.homeless = self.count
        self.free_slots = cluster.devices * self.most

    def give_own_gpus(self, expert: int) -> None:
        for _ in range(self.loads[expert] // self.device_load):
            if not self._has_slot_for(expert):
                return
            self._put(expert, self.used_slots.index(0), self.device_load)
            self.own[expert] += 1

    def pack_fractions(self) -> None:
        fractions = [load % self.device_load for load in self.loads]
        shared = [device for device, used_slots in enumerate(self.used_slots) if used_slots == 0]
        for expert in sorted(range(self.count), key=lambda expert: -fractions[expert]):
            fraction = fractions[expert]
            if fraction == 0 or not self._has_slot_for(expert):
                continue
            device = next(
                (
                    device
                    for device in shared
                    if self.held[device] + fraction <= self.device_load
                    and self.used_slots[device] < self.most
                ),
                None,
            )
            if device is None and not self.own[expert]:
                device = min(self._with_room(), key=lambda device: self.held[device])
            if device is not None:
                self._put(expert, device, fraction)

    def spread_unknown(self, rng: random.Random) -> None:
        empty = [device for device, used_slots in enumerate(self.used_slots) if used_slots == 0]
        unknown = [expert for expert in range(self.count) if not self.is_placed[expert]]
        for place, expert in enumerate(unknown):
            if place < len(empty) * self.most:
                device = empty[place % len(empty)]
            else:
                device = rng.choice(self._with_room())
            self._put(expert, device, 0)

    def _has_slot_for(self, expert: int) -> bool:
        return not self.is_placed[expert] or self.free_slots > self.homeless

    def _with_room(self) -> list[int]:
        return [device for device, used_slots in enumerate(self.used_slots) if used_slots < self.most]

    def _put(self, expert: int, device: int, part: int) -> None:
        self.homeless -= not self.is_placed[expert]
        self.is_placed[expert] = True
        self.free_slots -= 1
        self.parts[device, expert] = part
        self.held[device] += part
        self.used_slots[device] += 1


def place_replicated(demand: ExpertDemand, cluster: DeviceGroup) -> ExpertPlacement:
    """Fill every slot with a replica. Replicas of an expert get equal parts of its tokens.

    Each spare slot goes to the expert with the largest load per replica. Then the replicas are packed, the
    heaviest first, each to the least loaded device with room. Two replicas of an expert on one device become
    one with the part of both. Ties by index. The unknown part of a demand counts as 0.

    Raises:
        ValueError: there is no room for all experts.
    """
    cluster.check(demand.loads.size)
    parts = replicated_parts(demand.loads, cluster.devices, cluster.most_per_device)
    return ExpertPlacement.of_parts(parts, cluster.most_per_device)


@kernel
def replicated_parts(loads: Ints, devices: int, slots: int) -> Ints:
    """Return the parts of the loads, (devices, experts); -1 where a device lacks the expert."""
    count = loads.size
    total = devices * slots
    expert_of = np.empty(total, np.int64)
    expert_of[:count] = np.arange(count)
    replicas = np.ones(count, np.int64)
    for replica in range(count, total):
        heaviest = 0
        for expert in range(1, count):
            if loads[expert] * replicas[heaviest] > loads[heaviest] * replicas[expert]:
                heaviest = expert
        expert_of[replica] = heaviest
        replicas[heaviest] += 1
    weights = loads[expert_of] / replicas[expert_of]
    parts = np.full((devices, count), -1, np.int64)
    held = np.zeros(devices)
    used_slots = np.zeros(devices, np.int64)
    given = np.zeros(count, np.int64)
    for replica in np.argsort(-weights, kind="mergesort"):
        best = -1
        for device in range(devices):
            if used_slots[device] < slots and (best < 0 or held[device] < held[best]):
                best = device
        expert = expert_of[replica]
        # Equal parts of a whole number, the larger ones first.
        part = loads[expert] // replicas[expert]
        if given[expert] < loads[expert] % replicas[expert]:
            part += 1
        given[expert] += 1
        parts[best, expert] = max(parts[best, expert], 0) + part
        held[best] += weights[replica]
        used_slots[best] += 1
    return parts


def place_one_per_device(demand: ExpertDemand, cluster: DeviceGroup) -> ExpertPlacement:
    """Place expert e on device e.

    With more experts than devices, each device has equally many, or one more, in the order of their numbers.
    With fewer, device d has expert d modulo their number, as in data-parallel groups. Only the number of
    experts of the demand is used.

    Raises:
        ValueError: there is no room for all experts.
    """
    count, devices = demand.loads.size, cluster.devices
    cluster.check(count)
    if count < devices:
        lists = [[device % count] for device in range(devices)]
    else:
        lists = [[] for _ in range(devices)]
        for expert in range(count):
            lists[expert * devices // count].append(expert)
    return ExpertPlacement.of_lists(lists, count, cluster.most_per_device)
