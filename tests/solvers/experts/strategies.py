"""Clusters, loads of experts that fit on them, and the loads of devices."""

import numpy as np
from hypothesis import strategies as st

from solvers.experts.placement import FREE, DeviceGroup, ExpertDemand, ExpertPlacement

COUNTS = st.sampled_from([0, 0, 1, 2, 3, 8, 100]) | st.integers(0, 1_000)


@st.composite
def clusters_and_tokens(draw, most_devices, most_experts, most_per_device=4):
    devices = draw(st.integers(1, most_devices))
    most = draw(st.integers(1, most_per_device))
    experts = draw(st.integers(1, min(most_experts, devices * most)))
    tokens = draw(st.lists(COUNTS, min_size=experts, max_size=experts))
    return DeviceGroup(devices, most), np.array(tokens, np.int64)


def planned_loads(placement: ExpertPlacement, demand: ExpertDemand):
    """The load of each device, (devices,), if the shares are followed."""
    parts = np.where(placement.experts == FREE, 0.0, demand.loads[placement.experts] * placement.shares)
    return parts.sum(axis=1)
