"""Work of the ranks of expert-parallel layers in tests."""

import os
import signal
import time
from dataclasses import asdict
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.network import Rank
from executors.gang.group import DisagreementError
from executors.moe.parallel.exchange import agreed_budget, agreed_plan, agreed_times, exchange_experts
from executors.moe.parallel.expert_groups import Lanes
from executors.moe.parallel.gradients import GradientAverage
from executors.moe.parallel.packing import MicroOpTimes, Packing
from executors.moe.parallel.planning import PlannedOrder, StepPlan, measured_step, plan_step
from executors.moe.parallel.scheduler import failures_named
from tests.support.parallel_experts import Block, Ranks, SmallExperts, connected, model_of, tokens_of


def device_of(rank: Rank) -> tuple[torch.device, str]:
    """The CPU and Gloo by default; of CUDA devices each rank has its own."""
    if rank.arguments.get("device") == "cuda":
        torch.cuda.set_device(rank.rank)
        return torch.device("cuda", rank.rank), "nccl"
    return torch.device("cpu"), "gloo"


def train(rank: Rank) -> dict[str, Any]:
    """Two backward passes; outputs, and gradients against those of a model that hosts all experts."""
    told = rank.arguments
    packing = Packing(rank.world, told["experts"], told["per_device"])
    hidden, layers, counts = told["hidden"], told["layers"], told["tokens"]
    device, backend = device_of(rank)
    with connected(rank, backend=backend) as ranks:
        model, spread = model_of(
            ranks, packing, layers, hidden, told["chunks"], told["partition_bytes"], device
        )
        whole = nn.Sequential(
            *(
                Block(hidden, packing.experts, SmallExperts(range(packing.experts), hidden, layer), layer)
                for layer in range(layers)
            )
        ).to(device)
        plain = DistributedDataParallel(whole)
        differences = []
        for step in range(2):
            rows = tokens_of(rank.rank, step, counts[rank.rank], hidden).to(device)
            mine, theirs = model(rows), plain(rows)
            differences.append((mine - theirs).abs().max().item() if len(rows) else 0.0)
            # The mean over tokens has no value on a rank without any.
            (mine.square().sum() / max(len(rows), 1)).backward()
            (theirs.square().sum() / max(len(rows), 1)).backward()
        gradients = []
        for own, reference in zip(model.module, whole, strict=True):
            for name in ("dense.weight", "dense.bias", "router.weight", "router.bias"):
                pair = own.get_parameter(name).grad, reference.get_parameter(name).grad
                gradients.append((pair[0] - pair[1]).abs().max().item())
        hosted = packing.hosted(rank.rank)
        for layer, reference in zip(spread, whole, strict=True):
            for name in ("up", "down"):
                expected = reference.experts.get_parameter(name).grad[hosted.start : hosted.stop]
                gradients.append((layer.experts.get_parameter(name).grad - expected).abs().max().item())
        size = max(parameter.grad.abs().max().item() for parameter in whole.parameters())
        return {
            "outputs": max(differences),
            "gradients": max(gradients),
            "largest_gradient": size,
            "trace": [asdict(record) for record in ranks.trace],
        }


def lose_a_rank(rank: Rank) -> dict[str, Any]:
    """The last rank stops, by the signal `signal`, after a step; the others train on until they notice, and
    then meet again without it."""
    told = rank.arguments
    packing = Packing(rank.world, rank.world, 1)
    found: dict[str, Any] = {}
    with connected(rank, told["peer_timeout_s"]) as ranks:
        model, _ = model_of(ranks, packing, layers=2, hidden=8, chunks=2, partition_bytes=256)
        for _ in range(3):  # in the second, DistributedDataParallel has collectives of its own
            _step(ranks, model, rank.rank)
        if rank.rank == rank.world - 1:
            os.kill(os.getpid(), signal.Signals[told["signal"]])
        began_s = time.monotonic()
        try:
            while True:
                _step(ranks, model, rank.rank)
        except Exception as error:
            found = {"type": type(error).__name__, "text": str(error)}
        found["after_s"] = time.monotonic() - began_s
        del model
    with connected(rank, 20.0, generation=2, world=rank.world - 1) as ranks:
        total = torch.ones(3)
        ranks.scheduler.allreduce(total, ranks.everyone, "once more").wait()
        found["total"] = total.tolist()
    return found


def disagree(rank: Rank) -> dict[str, Any]:
    """The last rank has its own terms, or its own size of micro-ops; returns each rank's error."""
    told = rank.arguments
    is_last = rank.rank == rank.world - 1
    try:
        with connected(rank, told["peer_timeout_s"], told["terms"] if is_last else "") as ranks:
            packing = Packing(rank.world, rank.world, 1)
            size = told["partition_bytes"] if is_last else 256
            model, _ = model_of(ranks, packing, layers=2, hidden=8, chunks=1, partition_bytes=size)
            _step(ranks, model, rank.rank)
    except Exception as error:
        return {"type": type(error).__name__, "text": str(error)}
    return {}


def average_staged(rank: Rank) -> dict[str, Any]:
    """A gradient in the host's memory is averaged by way of copies on the device; it, and the trace."""
    device, backend = device_of(rank)
    with connected(rank, backend=backend) as ranks:
        average = GradientAverage(ranks.scheduler, ranks.everyone, ranks.world, partition_bytes=32)
        gradient = torch.arange(10.0) * (1 + rank.rank)
        average.average(gradient, "staged", through=device).wait()
        return {"gradient": gradient.tolist(), "trace": [asdict(record) for record in ranks.trace]}


def agree_on_a_budget(rank: Rank) -> dict[str, Any]:
    """Return the common budget of all ranks."""
    with connected(rank):
        return {"agreed": [agreed_budget(own[rank.rank]) for own in rank.arguments["budgets"]]}


def communicate_at_random(rank: Rank) -> dict[str, Any]:
    """Many collectives of both kinds, which each rank submits at times of its own; the trace."""
    random = Random(rank.rank)
    device, backend = device_of(rank)
    with connected(rank, backend=backend) as ranks:
        lanes = Lanes(ranks.everyone)
        gradients, parcels = [], []
        for number in range(rank.arguments["count"]):
            time.sleep(random.uniform(0.0, 0.004))
            if number % 3:
                total = torch.full((30_000,), float(rank.rank), device=device)
                gradients.append((total, ranks.scheduler.allreduce(total, ranks.everyone, f"r{number}")))
            else:
                rows = torch.full((6_000, 1), float(rank.rank), device=device)
                arrived = torch.empty_like(rows)
                each = [6_000 // rank.world] * rank.world
                pending = ranks.scheduler.all_to_all(arrived, rows, each, each, lanes, f"a{number}")
                parcels.append(arrived)
                pending.wait()
        for _, pending in gradients:
            pending.wait()
        return {
            "sums": sorted({value for total, _ in gradients for value in total.unique().tolist()}),
            "arrived": [arrived.unique().tolist() for arrived in parcels],
            "trace": [asdict(record) for record in ranks.trace],
        }


def pack_again(rank: Rank) -> dict[str, Any]:
    """Experts, each filled with its number, move from one packing to others; what each rank then hosts."""
    packings = [Packing(rank.world, 4, per_device) for per_device in rank.arguments["per_device"]]
    hosted = torch.tensor([float(expert) for expert in packings[0].hosted(rank.rank)])
    with connected(rank):
        tensors = [hosted[:, None, None].expand(-1, 2, 3).clone(), hosted[:, None].expand(-1, 5).clone()]
        for old, new in pairwise(packings):
            tensors = exchange_experts(tensors, old, new, rank.rank)
        times = agreed_times(MicroOpTimes(rank.rank, 1.0))
        return {
            "experts": [tensor.flatten(1)[:, 0].tolist() for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
            "spread": [tensor.flatten(1).std(1).max().item() for tensor in tensors],
            "times": asdict(times),
        }


def train_by_plan(rank: Rank) -> dict[str, Any]:
    """Steps without a plan, by one made of a measured step, and by a given one; gradients and orders."""
    packing = Packing(rank.world, rank.world, 1)
    planned = PlannedOrder()
    with connected(rank, order=planned) as ranks:
        model, _ = model_of(ranks, packing, layers=3, hidden=8, chunks=2, partition_bytes=256)
        plan = StepPlan(())
        gradients, orders = [], []
        for number in range(4):
            ranks.trace.clear()
            began_s = time.monotonic()
            planned.begin_step(plan)
            model.zero_grad()
            _step(ranks, model, rank.rank)
            gradients.append([each.grad.flatten().tolist() for each in model.parameters()])
            orders.append([record.kind for record in ranks.trace])
            if number == 1:
                gaps_s, allreduces = measured_step(ranks.trace, began_s)
                plan = agreed_plan(plan_step(gaps_s, allreduces), len(gaps_s))
            if number == 2:
                own = StepPlan((rank.arguments["after"],) * len(plan.all_to_alls_before))
                plan = agreed_plan(own, len(gaps_s))
        return {"gradients": gradients, "orders": orders}


def record(rank: Rank) -> dict[str, Any]:
    """Micro-ops before, in and behind a recording; on a CUDA device, the one in it waits for much work."""
    device, backend = device_of(rank)
    with connected(rank, order=PlannedOrder(), backend=backend) as ranks:
        rows = torch.randn(1_024, 1_024, device=device)
        ranks.scheduler.allreduce(rows.clone(), ranks.everyone, "before").wait()
        with ranks.scheduler.recording(device) as recording:
            work = _keep_busy(rows) if device.type == "cuda" else None
            ranks.scheduler.allreduce(rows, ranks.everyone, "in it").wait()
        ranks.scheduler.allreduce(rows.clone(), ranks.everyone, "behind").wait()
        recorded = [asdict(each) for each in recording.records()]
        return {
            "began_s": recording.began_s,
            "worked_s": work and work[0].elapsed_time(work[1]) / 1e3,
            "recorded": recorded,
            "host": asdict(ranks.trace[1]),
        }


def _keep_busy(rows: Tensor) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(2_000):
        rows = rows @ rows / 64
    end.record()
    return begin, end


def disagree_on_a_plan(rank: Rank) -> dict[str, Any]:
    """The last rank has more micro-ops than the others."""
    told, is_last = rank.arguments, rank.rank == rank.world - 1
    with connected(rank):
        try:
            agreed_plan(
                StepPlan((0,) * (4 + told["allreduces"] * is_last)), 6 + told["all_to_alls"] * is_last
            )
        except DisagreementError as error:
            return {"text": str(error)}
    return {}


def _step(ranks: Ranks, model: DistributedDataParallel, seed: int) -> None:
    with failures_named(ranks.scheduler):
        model(tokens_of(seed, 0, 12, 8)).square().mean().backward()
