"""Work of the ranks of a service in tests: a tiny model, served by all, against one process."""

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from bench.network import Rank
from executors.gang.batches import share
from executors.gang.group import ProcessGroup
from executors.moe.conversion.convert import LayerConversion, convert
from executors.moe.gating import Gating
from executors.moe.serving.exchange import RankExchange
from executors.moe.serving.model import ServingModel
from executors.moe.serving.service import ExpertService, ServiceTerms, warm_up
from schemas.experts.commands import LayerPlacement
from solvers.experts.paths import PathProfile
from solvers.experts.schemes import SCHEMES
from tests.support.parallel_experts import meet

VOCABULARY = 64


def model_of(setup: dict[str, Any]) -> PreTrainedModel:
    """A tiny model with experts that differ much, in float64; `dead` experts are never chosen."""
    torch.manual_seed(setup.get("seed", 3))
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=setup["layers"],
        n_head=2,
        n_positions=32,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).double()
    conversion = LayerConversion(experts=setup["experts"], initialization="random", seed=setup.get("seed", 3))
    convert(model, conversion, Gating(setup.get("gating", "top1")))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("router.weight"):
                parameter[list(setup.get("dead", []))] = 0.0
                parameter.mul_(5.0)
    return model.eval()


def requests_of(batch: int, size: int) -> list[list[int]]:
    """Return the requests of a batch, equal on all ranks."""
    generator = torch.Generator().manual_seed(batch)
    lengths = torch.randint(1, 24, (size,), generator=generator).tolist()
    return [torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


@dataclass
class Served:
    """A rank of a service."""

    rank: int
    world: int
    model: ServingModel
    service: ExpertService

    def answer(self, sequences: list[list[int]]) -> torch.Tensor | None:
        """This rank's part of a batch."""
        part = share(len(sequences), self.rank, self.world)
        return self.model.answer(sequences[part.start : part.stop])


def terms_of(setup: dict[str, Any]) -> ServiceTerms:
    """Return the terms by which experts are placed."""
    return ServiceTerms(
        SCHEMES[setup.get("scheme", "balanced")],
        setup.get("most", 4),
        setup.get("length", 3),
        setup.get("profile_batches", 2),
    )


def trained_paths(setup: dict[str, Any]) -> PathProfile | None:
    """Sample paths of a training in which all tokens went to expert 0, if there was one."""
    if not setup.get("trained_tokens"):
        return None
    profile = PathProfile(setup["experts"], setup["layers"], setup.get("length", 3))
    profile.add(np.zeros((setup["trained_tokens"], setup["layers"]), np.int64))
    return profile


def device_of(rank: Rank) -> torch.device:
    """The CPU by default; of CUDA devices each rank has its own."""
    if rank.arguments.get("device") == "cuda":
        torch.cuda.set_device(rank.rank)
        return torch.device("cuda")
    return torch.device("cpu")


def connected(rank: Rank, timeout_s: float) -> RankExchange:
    """All ranks, connected, once none has anything to compile."""
    torch.set_num_threads(1)
    device = device_of(rank)
    warm_up(terms_of(rank.arguments), rank.world, rank.arguments["experts"])
    meeting = meet(rank)
    group = ProcessGroup.form(meeting, device, timeout_s)
    return RankExchange.connect(group, device, timeout_s)


def begin(rank: Rank, exchange: RankExchange) -> Served:
    """Begin the service that the arguments describe."""
    setup = rank.arguments
    model = ServingModel(model_of(setup))
    terms = terms_of(setup)
    layers = model.detach_experts(terms.most_experts_per_device, device_of(rank))
    service = ExpertService(exchange, layers, terms, trained_paths(setup))
    model.serve_by(service)
    return Served(rank.rank, rank.world, model, service)


def serve(rank: Rank) -> dict[str, Any]:
    """Serve some batches; how far answers are from those of one process, and how layers were passed."""
    setup = rank.arguments
    whole = model_of(setup)
    exchange = connected(rank, 20.0)
    served = begin(rank, exchange)
    difference, largest, passages = 0.0, 0.0, []
    for batch, size in enumerate(setup["sizes"]):
        for when, placements in setup.get("placements", []):
            if when == batch:
                served.service.stand(
                    [
                        LayerPlacement(layer=layer, devices=tuple(map(tuple, devices)))
                        for layer, devices in placements
                    ]
                )
        sequences = requests_of(batch, size)
        answers = served.answer(sequences)
        passages.append(
            [
                {
                    "tokens": each.tokens.tolist(),
                    "doubles": each.doubles,
                    "as_forecast": each.is_as_forecast,
                    "revised": each.is_revised,
                    "loads": each.loads,
                    "busiest": each.busiest_tokens,
                }
                for each in served.service.passages
            ]
        )
        part = share(size, rank.rank, rank.world)
        for row, place in enumerate(part):
            with torch.inference_mode():
                expected = whole(input_ids=torch.tensor([sequences[place]])).logits[0, -1]
            assert answers is not None
            difference = max(difference, (answers[row].cpu() - expected).abs().max().item())
            largest = max(largest, expected.abs().max().item())
    served.service.close()
    profiled = served.service.profiled
    return {
        "difference": difference,
        "largest": largest,
        "passages": passages,
        "accuracy": None if profiled is None else profiled.accuracy,
        "paths": None if profiled is None else profiled.paths,
    }


def lose(rank: Rank) -> dict[str, Any]:
    """Rank 1 stops, dies or decides otherwise, after a batch; what the others see, and after how long."""
    setup = rank.arguments
    exchange = connected(rank, setup["timeout_s"])
    served = begin(rank, exchange)
    served.answer(requests_of(0, 4))
    if rank.rank == 1:
        if setup["how"] == "disagrees":
            exchange.note(b"another plan")
        elif setup["how"] == "dies_between_batches":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            number = {"stops": signal.SIGSTOP, "dies": signal.SIGKILL}[setup["how"]]
            original = served.service.apply

            def apply(layer: int, *rest: torch.Tensor) -> torch.Tensor:
                if layer == 1:
                    os.kill(os.getpid(), number)
                return original(layer, *rest)

            served.service.apply = apply  # type: ignore[method-assign]
    began_s = time.monotonic()
    try:
        served.answer(requests_of(1, 4))
    except RuntimeError as error:
        return {"kind": type(error).__name__, "message": str(error), "after_s": time.monotonic() - began_s}
    return {"kind": None}
