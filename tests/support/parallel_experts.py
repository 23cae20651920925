"""Parts of tests of expert parallelism: small experts, a model of them, and their groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from bench.network import Rank
from executors.gang.folder import JobFolder
from executors.gang.meeting import Meeting
from executors.gang.messages import Membership
from executors.moe.parallel.coordination import AgreedOrder
from executors.moe.parallel.expert_groups import ExpertGroups, connect_expert_groups
from executors.moe.parallel.experts import ParallelExperts
from executors.moe.parallel.gradients import GradientAverage, leave_out_of_averages
from executors.moe.parallel.micro_ops import MicroOpRecord
from executors.moe.parallel.packing import Packing
from executors.moe.parallel.scheduler import CommunicationScheduler, Order

CPU = torch.device("cpu")


class SmallExperts(nn.Module):
    """Two-layer networks with stacked weights, those of a span of a layer's experts."""

    def __init__(self, span: range, hidden: int, seed: int) -> None:
        super().__init__()
        drawn = [_draw(expert, hidden, seed) for expert in span]
        self.up = nn.Parameter(torch.stack([up for up, _ in drawn]))
        self.down = nn.Parameter(torch.stack([down for _, down in drawn]))

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        outputs = [
            torch.tanh(part @ self.up[expert]) @ self.down[expert]
            for expert, part in enumerate(rows.split(counts.tolist()))
        ]
        return torch.cat(outputs)


def _draw(expert: int, hidden: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + expert)
    up = torch.randn(hidden, 2 * hidden, generator=generator, dtype=torch.float64)
    down = torch.randn(2 * hidden, hidden, generator=generator, dtype=torch.float64)
    return up / hidden, down / hidden


class Block(nn.Module):
    """A dense layer, then experts with top-1 gating by the largest feature; residual."""

    def __init__(self, hidden: int, experts: int, apply: nn.Module, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.dense = nn.Linear(hidden, hidden, dtype=torch.float64)
        self.router = nn.Linear(hidden, experts, dtype=torch.float64)
        self.experts = apply
        self.count = experts

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.dense(rows)
        weights, chosen = self.router(rows).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        outputs = self.experts(rows[order], torch.bincount(chosen, minlength=self.count))
        return rows + torch.zeros_like(rows).index_add(0, order, outputs * weights[order, None])


@dataclass
class Ranks:
    """A rank's connections."""

    rank: int
    world: int
    scheduler: CommunicationScheduler
    trace: list[MicroOpRecord] = field(default_factory=list)

    @property
    def everyone(self) -> ProcessGroup:
        group = dist.group.WORLD
        assert group is not None
        return group


def meet(rank: Rank, generation: int = 1, world: int | None = None) -> Meeting:
    """Find the others, by the store that rank 0 opens at its address."""
    membership = Membership(generation=generation, rank=rank.rank, world=world or rank.world)
    while True:
        meeting = Meeting.attend(JobFolder(rank.scratch / "meeting"), membership, rank.host)
        if meeting is not None:
            return meeting


@contextmanager
def connected(
    rank: Rank,
    timeout_s: float = 20.0,
    terms: str = "",
    generation: int = 1,
    world: int | None = None,
    order: Order | None = None,
    backend: str = "gloo",
) -> Iterator[Ranks]:
    """Process groups and a scheduler that all ranks share."""
    world = world or rank.world
    torch.set_num_threads(1)
    meeting = meet(rank, generation, world)
    store = meeting.store(timedelta(seconds=30))
    dist.init_process_group(
        backend, store=store, rank=rank.rank, world_size=world, timeout=timedelta(seconds=timeout_s)
    )
    trace: list[MicroOpRecord] = []
    try:
        order = order or AgreedOrder.connect(
            dist.PrefixStore("order", store), rank.rank, world, rank.host, terms, timeout_s
        )
        scheduler = CommunicationScheduler(order, rank.rank, timeout_s, trace)
        try:
            yield Ranks(rank.rank, world, scheduler, trace)
        finally:
            scheduler.close()
    finally:
        dist.destroy_process_group()


def model_of(
    ranks: Ranks,
    packing: Packing,
    layers: int,
    hidden: int,
    chunks: int,
    partition_bytes: int,
    device: torch.device = CPU,
) -> tuple[DistributedDataParallel, list[ParallelExperts]]:
    """Layers of dense parameters and parallel experts, under DistributedDataParallel with the hook."""
    groups = connect_expert_groups(packing, ranks.rank, device, 20.0)
    spread = [
        parallel(ranks, groups, SmallExperts(packing.hosted(ranks.rank), hidden, layer), layer, chunks)
        for layer in range(layers)
    ]
    model = nn.Sequential(*(Block(hidden, packing.experts, each, layer) for layer, each in enumerate(spread)))
    model.to(device)
    leave_out_of_averages(model, spread)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=hidden * hidden * 8 / 2**20)
    GradientAverage(ranks.scheduler, ranks.everyone, ranks.world, partition_bytes).attach(wrapped)
    return wrapped, spread


def parallel(
    ranks: Ranks, groups: ExpertGroups, experts: nn.Module, layer: int, chunks: int
) -> ParallelExperts:
    average = GradientAverage(ranks.scheduler, groups.replicas, ranks.world)
    return ParallelExperts(experts, groups, ranks.scheduler, average, f"layer {layer}", chunks)


def tokens_of(rank: int, step: int, count: int, hidden: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(count, hidden, generator=generator, dtype=torch.float64)
