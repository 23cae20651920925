"""A service whose kernels are not yet compiled begins at once, and its decisions are the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, time
import numpy as np
from executors.moe.serving.kernels import ServiceKernels
from executors.moe.serving.phases import LayerLayout, StandingPlacement
from solvers.experts.placement import DeviceGroup, ExpertDemand
from solvers.experts.schemes import SCHEMES

RANKS, EXPERTS, MOST = 2, 6, 4

def placed():
    rng = np.random.default_rng(7)
    cluster = DeviceGroup(RANKS, MOST)
    first = StandingPlacement.first(EXPERTS, cluster)
    layout = LayerLayout(SCHEMES["lina"], cluster, first, first.placement)
    rows = []
    for _ in range(20):
        forecast, tokens = rng.integers(0, 90, (2, EXPERTS))
        demand = ExpertDemand.of_counts(forecast)
        settled = layout.settle(layout.plan(demand), demand, tokens)
        rows.append((settled.placement.lists(), settled.split.tolist(), settled.is_revised))
    return rows

kernels = ServiceKernels("lina", MOST, RANKS, EXPERTS)
before = placed()
while not kernels.is_loaded:
    time.sleep(0.05)
kernels.change_over()
assert placed() == before
print(len({str(row) for row in before}))
"""


@pytest.mark.long
def test_interpreted_placement_equals_compiled_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
    assert any(tmp_path.rglob("*.nbi"))
