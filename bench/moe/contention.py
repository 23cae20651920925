"""The part `contention`: slowdown of an all-to-all by a concurrent allreduce (Figure 4.4)."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, ProcessGroup  # type: ignore[attr-defined]

from bench.figures import Conditions, Measurement, Result, Table, Value
from bench.network import Rank, run_on_limited_network

_SIZES_BYTES = (2**20, 2**21, 2**22)
_TIMEOUT_S = 60.0
_ALONE_EACH = 2
"""Number of samples alone for each sample with an allreduce."""


@dataclass(frozen=True)
class Contention:
    """All-to-alls of one size, each with the time of the last rank.

    Attributes:
        alone_s: median of those alone.
        slowdowns: slowdown of each that ran during an allreduce.
        network: description of the network.
    """

    alone_s: float
    slowdowns: Sequence[float]
    network: str


def sample_contention(world: int, size_bytes: int, samples: int, seed: int) -> Contention:
    """Measure all-to-alls alone and during an allreduce, alternating."""
    results, network = run_on_limited_network(
        measure_contention, world, size_bytes=size_bytes, samples=samples, seed=seed
    )
    alone_s = median(_last(results, "alone_s"))
    return Contention(alone_s, [each_s / alone_s for each_s in _last(results, "beside_s")], network)


def measure_contention_part(conditions: Conditions) -> Result:
    """Return `contention_slowdown`, and every slowdown."""
    sizes, samples = ((2**20,), 10) if conditions.quick else (_SIZES_BYTES, 20)
    sampled = {size: sample_contention(4, size, samples, conditions.seed) for size in sizes}
    slowdowns = [factor for each in sampled.values() for factor in each.slowdowns]
    figure = Measurement(
        "contention_slowdown",
        median(slowdowns),
        f"median of all-to-alls of {_named(sizes)} a rank during an allreduce, over the median alone; "
        f"mean {fmean(slowdowns):.2f}, {min(slowdowns):.2f} to {max(slowdowns):.2f}; "
        f"{sampled[sizes[0]].network}; the thesis: median 1.83, worst 4.14",
        len(slowdowns),
    )
    rows: list[dict[str, Value]] = [
        {"all_to_all": _named((size,)), "slowdown": factor}
        for size, each in sampled.items()
        for factor in each.slowdowns
    ]
    return Result((figure,), (Table("figure_4_4", rows),))


def _last(results: Sequence[dict[str, Any]], field: str) -> list[float]:
    return [max(times_s) for times_s in zip(*(result[field] for result in results), strict=True)]


def _named(sizes_bytes: Sequence[int]) -> str:
    return ", ".join(f"{size / 2**20:g}" for size in sizes_bytes) + " MiB"


def measure_contention(rank: Rank) -> dict[str, Any]:
    """Alternate: an all-to-all alone, then one during an allreduce of another group.

    The allreduce starts earlier, by a part of the all-to-all's time alone, and ends later.

    Arguments of the run: `size_bytes` of an all-to-all, `samples` and `seed`.

    Returns:
        seconds `alone_s` and `beside_s`; with `allreduce_bytes` of each of the latter.
    """
    torch.set_num_threads(1)
    store = FileStore(str(rank.scratch / "store"), rank.world)
    timeout = timedelta(seconds=_TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.world, timeout=timeout)
    drawn = random.Random(rank.arguments["seed"])  # equal on all ranks
    size_bytes = rank.arguments["size_bytes"]
    try:
        tokens, gradients = dist.new_group(), dist.new_group()
        assert isinstance(tokens, ProcessGroup)
        assert isinstance(gradients, ProcessGroup)
        sent = torch.ones(size_bytes // 4)
        received = torch.empty_like(sent)

        def exchange() -> float:
            began_s = time.monotonic()
            dist.all_to_all_single(received, sent, group=tokens)
            return time.monotonic() - began_s

        def alone() -> float:
            dist.barrier()
            return exchange()

        dist.all_reduce(torch.ones(1), group=gradients)
        first_s = [alone() for _ in range(3)][-1]
        alone_s: list[float] = []
        contended_s: list[float] = []
        sizes: list[int] = []
        for _ in range(rank.arguments["samples"]):
            alone_s += [alone() for _ in range(_ALONE_EACH)]
            sizes.append(round(size_bytes * drawn.uniform(2.0, 4.0)))
            averaged = torch.ones(sizes[-1] // 4)
            early = drawn.uniform(0.0, 0.5)
            dist.barrier()
            work = dist.all_reduce(averaged, group=gradients, async_op=True)
            assert work is not None
            time.sleep(early * first_s)
            contended_s.append(exchange())
            work.wait()
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return {"alone_s": alone_s, "beside_s": contended_s, "allreduce_bytes": sizes}
