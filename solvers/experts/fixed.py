"""Placement of one expert per device, whatever the demand: as DeepSpeed-MoE does (thesis, section 4.2.1)."""

from solvers.experts.placement import Cluster, Demand, Placement


def place_one_per_device(demand: Demand, cluster: Cluster) -> Placement:
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
    return Placement.of_lists(lists, count, cluster.most_per_device)
