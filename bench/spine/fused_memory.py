"""Peak memory of processes that train adapters. Run as a separate program, to exclude all other memory."""

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from bench.spine.fused_workload import make_engine
from schemas.interpreters import python_command

_STEPS = 5


def measure_peaks_mib(
    folder: Path, adapters_by_process: Sequence[int], seed: int, base_directory: Path
) -> list[float]:
    """Run a process for each entry, which trains that many adapters, and return their peak RSS in MiB."""
    command = python_command("-m", "bench.spine.fused_memory", str(folder), str(seed), str(base_directory))
    command += map(str, adapters_by_process)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return cast(list[float], json.loads(output.stdout))


def train_and_measure(folder: Path, seed: int, base_directory: Path, adapters: int) -> float:
    """Train a few steps in this process and return its peak RSS in MiB."""
    engine = make_engine(folder, adapters, seed, base_directory)
    for _ in range(_STEPS):
        engine.step()
    # Not ru_maxrss, which a process inherits from the one that started it.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("the system does not say this process's peak memory")


def main(folder: str, seed: str, base_directory: str, *adapters_by_process: str) -> None:
    """Print the peaks as JSON. Each process is forked with everything imported, to import it only once."""
    measure = partial(train_and_measure, Path(folder), int(seed), Path(base_directory))
    with multiprocessing.get_context("fork").Pool(processes=1, maxtasksperchild=1) as pool:
        peaks_mib = pool.map(measure, map(int, adapters_by_process), chunksize=1)
    sys.stdout.write(json.dumps(peaks_mib))


if __name__ == "__main__":
    main(*sys.argv[1:])
