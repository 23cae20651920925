"""A worker's kernels: compiled by a process of its own, and loaded when a policy needs them."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, json, logging, sys
import psutil
from streams.installation import install_policies
from streams.worker.kernels import Kernels
from tests.support.elastic import elastic_cell

install_policies()
logging.basicConfig(stream=sys.stderr, format="%(message)s", level="INFO")

async def main(kills):
    needed = set()
    kernels = Kernels(lambda: needed)
    running = asyncio.create_task(kernels.run())
    ready = asyncio.create_task(kernels.ready_for(elastic_cell(scheme="pollux")))
    await asyncio.sleep(1.5)
    before = ready.done()
    needed.add("elastic")
    killed = 0
    while kills and not killed:
        await asyncio.sleep(0.05)
        for child in psutil.Process().children():
            child.kill()
            killed += 1
    await ready
    print(json.dumps({"before": before, "killed": killed}))

asyncio.run(main(sys.argv[1] == "killed"))
"""


def ran(how: str, **variables: str) -> tuple[dict[str, object], str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_later_policy_awaits_its_kernels():
    found, log = ran("undisturbed")
    assert found == {"before": False, "killed": 0}
    assert "cell c waits until elastic runs as machine code" in log
    assert "kernels of policy elastic run as machine code" in log


@pytest.mark.long
def test_worker_compiles_if_its_process_is_lost(tmp_path):
    found, log = ran("killed", NUMBA_CACHE_DIR=str(tmp_path))
    assert found == {"before": False, "killed": 1}
    assert "the process that compiles the kernels of policy elastic ended with status -9" in log
    assert "kernels of policy elastic run as machine code" in log
