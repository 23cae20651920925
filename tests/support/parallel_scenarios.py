"""What the ranks of expert-parallel layers do in tests."""

from dataclasses import asdict
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.network.ranks import Rank
from executors.moe.parallel.packing import Packing
from tests.support.parallel_experts import Block, SmallExperts, connected, model_of, tokens_of


def train(rank: Rank) -> dict[str, Any]:
    """Two backward passes; outputs, and gradients beside those of a model that hosts all experts."""
    told = rank.arguments
    packing = Packing(rank.world, told["experts"], told["per_device"])
    hidden, layers, counts = told["hidden"], told["layers"], told["tokens"]
    with connected(rank) as ranks:
        model, spread = model_of(ranks, packing, layers, hidden, told["chunks"], told["partition_bytes"])
        whole = nn.Sequential(
            *(
                Block(hidden, packing.experts, SmallExperts(range(packing.experts), hidden, layer), layer)
                for layer in range(layers)
            )
        )
        plain = DistributedDataParallel(whole, find_unused_parameters=True)
        differences = []
        for step in range(2):
            rows = tokens_of(rank.rank, step, counts[rank.rank], hidden)
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
