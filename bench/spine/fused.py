"""The gain of fusion: speed and memory of adapters trained together, relative to one after another."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from bench.figures import Measurement, Result
from bench.spine.fused_memory import (
    BATCH_SIZE,
    RANK,
    SEQUENCE_LENGTH,
    make_engine,
    measure_peaks_mib,
    write_dataset,
)
from executors.lora.default_base import default_base_directory

_WARM_ROUNDS = 3


def measure_fused_training(quick: bool, seed: int) -> Result:
    """Measure `fused_speedup` and `fused_memory_ratio` of four adapters on the default base."""
    return measure_fused(adapters=4, quick=quick, seed=seed)


def measure_fused(adapters: int, quick: bool, seed: int, base_directory: Path | None = None) -> Result:
    """Measure speed and memory on a CPU with one thread.

    Args:
        adapters: number of tasks that share the base; at least 2.
        quick: fewer rounds.
        seed: determines data and adapters.
        base_directory: a local Llama-like model; the default base if not given.
    """
    if adapters < 2:
        raise ValueError("fusion needs at least two adapters")
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_dataset(folder, seed)
        directory = base_directory or default_base_directory()
        speedup = _measure_speedup(folder, adapters, 8 if quick else 100, seed, directory)
        memory = _measure_memory(folder, adapters, 1 if quick else adapters, seed, directory)
        return Result((speedup, memory))


def _measure_speedup(
    folder: Path, adapters: int, rounds: int, seed: int, base_directory: Path
) -> Measurement:
    threads = torch.get_num_threads()
    try:
        engine = make_engine(folder, adapters, seed, base_directory)

        def one_after_another() -> None:
            for job_id in engine.job_ids:
                engine.step([job_id])

        fused_s, separate_s = _time_in_turn(engine.step, one_after_another, rounds)
    finally:
        torch.set_num_threads(threads)
    fused_ms, separate_ms = 1e3 * median(fused_s), 1e3 * median(separate_s)
    speedup = separate_ms / fused_ms
    return Measurement(
        name="fused_speedup",
        value=speedup,
        note=(
            f"{adapters} adapters of rank {RANK}, one step each on {BATCH_SIZE} x {SEQUENCE_LENGTH} tokens, "
            f"one CPU thread, {base_directory.name}: {fused_ms:.1f} ms fused, {separate_ms:.1f} ms one after "
            f"another on the same base and engine; medians of {rounds} interleaved rounds"
        ),
    )


def _time_in_turn(
    first: Callable[[], object], second: Callable[[], object], rounds: int
) -> tuple[list[float], list[float]]:
    """Time two actions in seconds, in rounds of one each that begin with either alternately.

    So a temporary slowdown of the machine affects both.
    """
    actions = (first, second)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(_WARM_ROUNDS + rounds):
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            start = time.perf_counter()
            actions[index]()
            if number >= _WARM_ROUNDS:
                times[index].append(time.perf_counter() - start)
    return times


def _measure_memory(
    folder: Path, adapters: int, singles: int, seed: int, base_directory: Path
) -> Measurement:
    """Measure `singles` of the processes with one adapter each, as a sample of all."""
    fused_mib, *single_mib = measure_peaks_mib(folder, [adapters] + [1] * singles, seed, base_directory)
    separate_mib = sum(single_mib) / singles * adapters
    return Measurement(
        name="fused_memory_ratio",
        value=fused_mib / separate_mib,
        note=(
            f"peak RSS of one process that trains {adapters} adapters ({fused_mib:.0f} MiB) over that of "
            f"{adapters} processes with one each ({separate_mib:.0f} MiB, by {singles} measured), "
            f"{base_directory.name}; each is forked with its libraries loaded. Most of it is torch itself; "
            "RSS counts shared pages in each"
        ),
    )
