"""The model and the variants of a measured training step, and the work of each rank: steps of all variants in
turns."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore, PrefixStore, ProcessGroup, Store  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from bench.moe.unscheduled import UnscheduledCommunication
from bench.network import Rank
from executors.moe.parallel.coordination import AgreedOrder
from executors.moe.parallel.expert_groups import Lanes, connect_expert_groups
from executors.moe.parallel.experts import ParallelExperts
from executors.moe.parallel.gradients import GradientAverage, leave_out_of_averages
from executors.moe.parallel.micro_ops import MicroOpRecord
from executors.moe.parallel.packing import Packing
from executors.moe.parallel.scheduler import Communication, CommunicationScheduler

_TIMEOUT_S = 60.0
"""Timeout that allows for a busy machine."""
_AVERAGES_EACH = 2
"""Rounds of averages for each round of steps, which take longer."""
_WARM_UP_STEPS = 2
"""Steps after which DistributedDataParallel has formed its buckets again."""


UNCUT_BYTES = 2**40
"""Partition size that cuts nothing."""


@dataclass(frozen=True)
class ModelShape:
    """A model whose layers have a dense network, with parameters on all ranks, and experts.

    Attributes:
        experts: experts of a layer; each token goes to two of them, chosen once by the seed, about evenly.
        layers: number of layers.
        hidden: features of a token, 4 bytes each.
        dense: inner features of the dense network.
        inner: inner features of an expert.
        tokens: tokens of each rank and step.
        bucket_bytes: gradients that DistributedDataParallel averages together.
    """

    experts: int
    layers: int
    hidden: int
    dense: int
    inner: int
    tokens: int
    bucket_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes that one token sends to one expert."""
        return 4 * self.hidden

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of a rank for the experts in one all-to-all, with those that stay on the rank."""
        return 2 * self.tokens * self.row_bytes

    @property
    def dense_bytes(self) -> int:
        """Gradients of a layer that all ranks average."""
        return 4 * 2 * self.hidden * self.dense


@dataclass(frozen=True)
class Variant:
    """A way to issue a step's collectives.

    Attributes:
        name: name of a row.
        is_scheduled: all-to-all first, by `CommunicationScheduler`; otherwise both kinds run concurrently.
        has_two_lanes: whether all-to-alls use a connection for each direction (`Lanes`).
        partition_bytes: largest allreduce micro-op.
        chunks: micro-ops of an all-to-all.
        per_device: experts of a layer on each device.
    """

    name: str
    is_scheduled: bool = True
    has_two_lanes: bool = True
    partition_bytes: int = UNCUT_BYTES
    chunks: int = 1
    per_device: int = 1


BASELINE = Variant("baseline", is_scheduled=False, has_two_lanes=False)
"""Variant of other systems: section 4.2.2."""


def measure_training(rank: Rank) -> dict[str, Any]:
    """Train on this rank, then average gradients alone.

    Arguments of the run: `shape`, `variants`, `rounds` and `seed`, as in `ModelShape` and `Variant`; and
    `partitions_bytes` for the averages.

    Returns:
        for each variant, by name, its `steps`: see `training_steps.RankStep`; for each partition size, the
        seconds of averaging a step's dense gradients, in twice as many rounds.
    """
    inputs = rank.arguments
    shape = ModelShape(**inputs["shape"])
    variants = [Variant(**each) for each in inputs["variants"]]
    with _connected(rank) as store:
        return {
            "steps": _measured_steps(rank, store, shape, variants),
            "averages_s": _measured_averages_s(rank, store, shape),
        }


def _measured_steps(
    rank: Rank, store: Store, shape: ModelShape, variants: Sequence[Variant]
) -> dict[str, list[dict[str, Any]]]:
    inputs = rank.arguments
    steps: dict[str, list[dict[str, Any]]] = {each.name: [] for each in variants}
    with ExitStack() as stack:
        trainings = [
            stack.enter_context(_training(rank, store, shape, each, inputs["seed"])) for each in variants
        ]
        for training in trainings:
            for _ in range(_WARM_UP_STEPS):
                training.step()
        for _ in range(inputs["rounds"]):
            for variant, training in zip(variants, trainings, strict=True):
                steps[variant.name].append(training.step())
        dist.barrier()
    return steps


def _measured_averages_s(rank: Rank, store: Store, shape: ModelShape) -> list[list[float]]:
    sizes = rank.arguments["partitions_bytes"]
    times_by_size: list[list[float]] = [[] for _ in sizes]
    with _scheduler(rank, store, "averages", []) as scheduler:
        all_ranks = dist.new_group()
        assert isinstance(all_ranks, ProcessGroup)
        buckets = [torch.ones(shape.dense_bytes // 4) for _ in range(shape.layers)]
        for _ in range(_AVERAGES_EACH * rank.arguments["rounds"] + 1):
            for size, times_s in zip(sizes, times_by_size, strict=True):
                average = GradientAverage(scheduler, all_ranks, rank.world, size)
                dist.barrier()
                began_s = time.monotonic()
                futures = [average.average(bucket, f"bucket {i}") for i, bucket in enumerate(buckets)]
                for future in futures:
                    future.wait()
                times_s.append(time.monotonic() - began_s)
        dist.barrier()
    return [times_s[1:] for times_s in times_by_size]


@contextmanager
def _connected(rank: Rank) -> Iterator[Store]:
    torch.set_num_threads(1)
    store = FileStore(str(rank.scratch / "store"), rank.world)
    timeout = timedelta(seconds=_TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.world, timeout=timeout)
    try:
        yield store
    finally:
        dist.destroy_process_group()


@contextmanager
def _scheduler(
    rank: Rank, store: Store, name: str, trace: list[MicroOpRecord]
) -> Iterator[CommunicationScheduler]:
    own = PrefixStore(name, store)
    order = AgreedOrder.connect(own, rank.rank, rank.world, rank.host, "", _TIMEOUT_S)
    scheduler = CommunicationScheduler(order, rank.rank, _TIMEOUT_S, trace)
    try:
        yield scheduler
    finally:
        scheduler.close()


@contextmanager
def _training(
    rank: Rank, store: Store, shape: ModelShape, variant: Variant, seed: int
) -> Iterator["_Training"]:
    trace: list[MicroOpRecord] = []
    if variant.is_scheduled:
        with _scheduler(rank, store, variant.name, trace) as scheduler:
            yield _Training(rank, shape, variant, seed, scheduler, trace)
        return
    unscheduled = UnscheduledCommunication(rank.rank, _TIMEOUT_S, trace)
    try:
        yield _Training(rank, shape, variant, seed, unscheduled, trace)
    finally:
        unscheduled.close()


class _Training:
    """A model under one variant."""

    def __init__(
        self,
        rank: Rank,
        shape: ModelShape,
        variant: Variant,
        seed: int,
        communication: Communication,
        trace: list[MicroOpRecord],
    ) -> None:
        torch.manual_seed(seed)
        packing = Packing(rank.world, shape.experts, variant.per_device)
        groups = connect_expert_groups(packing, rank.rank, torch.device("cpu"), _TIMEOUT_S)
        if not variant.has_two_lanes:
            groups = replace(groups, tokens=Lanes(groups.tokens.upward))
        all_ranks = dist.new_group()
        assert isinstance(all_ranks, ProcessGroup)
        self._trace = trace
        average = GradientAverage(communication, groups.replicas, rank.world, variant.partition_bytes)
        layers = [
            ParallelExperts(
                _Experts(variant.per_device, shape),
                *(groups, communication, average, f"layer {layer}", variant.chunks),
            )
            for layer in range(shape.layers)
        ]
        drawn = torch.Generator().manual_seed(1000 * seed + rank.rank)
        model = nn.Sequential(*(_Layer(shape, each, drawn) for each in layers))
        leave_out_of_averages(model, layers)
        self._model = DistributedDataParallel(model, bucket_cap_mb=shape.bucket_bytes / 2**20)
        GradientAverage(communication, all_ranks, rank.world, variant.partition_bytes).attach(self._model)
        self._input = torch.randn(shape.tokens, shape.hidden, generator=drawn)

    def step(self) -> dict[str, Any]:
        """Run a forward and backward pass, and return its times and micro-ops."""
        self._trace.clear()
        self._model.zero_grad()
        dist.barrier()
        began_s = time.monotonic()
        loss = self._model(self._input).square().mean()
        turned_s = time.monotonic()
        loss.backward()
        ended_s = time.monotonic()
        return {
            "began_s": began_s,
            "turned_s": turned_s,
            "ended_s": ended_s,
            "micro_ops": [asdict(record) for record in self._trace],
        }


class _Layer(nn.Module):
    """A dense network, then experts; both residual."""

    def __init__(self, shape: ModelShape, experts: ParallelExperts, drawn: torch.Generator) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.dense, bias=False)
        self.down = nn.Linear(shape.dense, shape.hidden, bias=False)
        self.experts = experts
        first = torch.randint(shape.experts, (shape.tokens,), generator=drawn)
        chosen = torch.cat([first, (first + 1) % shape.experts])
        order = chosen.argsort(stable=True)
        self._tokens = torch.arange(shape.tokens).repeat(2)[order]
        self._counts = torch.bincount(chosen, minlength=shape.experts)

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows + self.down(torch.relu(self.up(rows)))
        outputs: Tensor = self.experts(rows.index_select(0, self._tokens), self._counts)
        return rows.index_add(0, self._tokens, outputs, alpha=0.5)


class _Experts(nn.Module):
    """The two-layer networks of a rank."""

    def __init__(self, count: int, shape: ModelShape) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, shape.hidden, shape.inner) / shape.hidden**0.5)
        self.down = nn.Parameter(torch.randn(count, shape.inner, shape.hidden) / shape.inner**0.5)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        parts = rows.split(counts.tolist())
        return torch.cat(
            [torch.relu(part @ self.up[each]) @ self.down[each] for each, part in enumerate(parts)]
        )
