"""One expert per device, whatever is asked of them: the way of DeepSpeed-MoE (thesis, section 4.2.1)."""

from solvers.experts.placement import Cluster, Demand, Placement


def place_one_per_device(demand: Demand, cluster: Cluster) -> Placement:
    """Expert e is on device e.

    Of more experts than devices each device has as many as the others, or one more, in the order of their
    numbers; with fewer, device d has expert d modulo their number, as data-parallel groups have. Of the
    demand only the number of experts counts.

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
