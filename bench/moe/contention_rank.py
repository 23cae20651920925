"""What each rank does to measure an all-to-all alone, and beside an allreduce."""

import random
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, ProcessGroup  # type: ignore[attr-defined]

from bench.network.ranks import Rank

_TIMEOUT_S = 60.0
_ALONE_EACH = 2
"""Times alone for each time beside an allreduce."""


def measure_contention(rank: Rank) -> dict[str, Any]:
    """Take turns: an all-to-all alone, then the same while an allreduce of another group runs.

    The allreduce starts before it, by a part of the time that the all-to-all takes alone, and outlasts it.

    Arguments of the run: `size_bytes` of an all-to-all, `samples` and `seed`.

    Returns:
        seconds `alone_s` and `beside_s`; with `allreduce_bytes` of each of the latter.
    """
    torch.set_num_threads(1)
    store = FileStore(str(rank.scratch / "store"), rank.world)
    timeout = timedelta(seconds=_TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.world, timeout=timeout)
    drawn = random.Random(rank.arguments["seed"])  # the same on all ranks
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
        beside_s: list[float] = []
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
            beside_s.append(exchange())
            work.wait()
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return {"alone_s": alone_s, "beside_s": beside_s, "allreduce_bytes": sizes}
