"""EPLB's placement: popular experts are replicated greedily, and the replicas packed (deepseek-ai/EPLB).

It follows `replicate_experts` and `balanced_packing` of `eplb.py`, for one group of experts and one node.
"""

import numpy as np

from solvers.compiled import Ints, kernel
from solvers.experts.placement import Cluster, Demand, Placement


def place_replicated(demand: Demand, cluster: Cluster) -> Placement:
    """Fill every slot with a replica. Replicas of an expert get equal parts of its tokens.

    Each spare slot goes to the expert with the largest load per replica. Then the replicas are packed, the
    heaviest first, each to the least loaded device with room. Two replicas of an expert on one device become
    one with the part of both. Ties by index. The unknown part of a demand counts as 0.

    Raises:
        ValueError: there is no room for all experts.
    """
    cluster.check(demand.loads.size)
    parts = replicated_parts(demand.loads, cluster.devices, cluster.most_per_device)
    return Placement.of_parts(parts, cluster.most_per_device)


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
    taken = np.zeros(devices, np.int64)
    given = np.zeros(count, np.int64)
    for replica in np.argsort(-weights, kind="mergesort"):
        best = -1
        for device in range(devices):
            if taken[device] < slots and (best < 0 or held[device] < held[best]):
                best = device
        expert = expert_of[replica]
        # Equal parts of a whole number, the larger ones first.
        part = loads[expert] // replicas[expert]
        if given[expert] < loads[expert] % replicas[expert]:
            part += 1
        given[expert] += 1
        parts[best, expert] = max(parts[best, expert], 0) + part
        held[best] += weights[replica]
        taken[best] += 1
    return parts
