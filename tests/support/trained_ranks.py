"""Work of the ranks of a job that trains in tests: tiny models in float64, against one process."""

import json
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)

from bench.network import Rank
from executors.gang.group import ProcessGroup
from executors.lora.batch import LabelledSequence, TextSequence, TokenSequence
from executors.moe.block import LayerPass, auxiliary_loss, moe_blocks, pop_passes
from executors.moe.conversion.convert import LayerConversion, convert
from executors.moe.conversion.drop_in import adopt
from executors.moe.conversion.storage import MoeDescription
from executors.moe.gating import Gating, route
from executors.moe.parallel.micro_ops import CollectiveKind, MicroOpRecord
from executors.moe.parallel.offloading import OffloadedExperts
from executors.moe.parallel.packing import Packing, PackingController, begin_packing
from executors.moe.training.model import MoeModel, adapt, objective_of
from executors.moe.training.ordering import PlannedSteps
from executors.moe.training.profiling import TrainedPaths
from executors.moe.training.samples import order_of
from executors.moe.training.spread import Connections, SpreadModel
from executors.moe.training.trainer import ExpertTrainer
from schemas.experts.workload import MoeTrainWorkload
from tests.support.parallel_experts import meet

VOCABULARY = 48
SAMPLES = 14


def workload(setup: dict[str, Any]) -> MoeTrainWorkload:
    """Return a job of the tiny model, with the fields that a test sets."""
    hyperparameters = {
        "global_batch_size": 6,
        "sequence_length": 12,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "max_gradient_norm": 0.5,
        "balance_weight": 0.05,
        "micro_op_mb": 0.01,
        "seed": 3,
    } | setup.get("hyperparameters", {})
    fields = {
        "work_samples": setup.get("work_samples", 31),
        "model": "tiny",
        "dataset": {"path": "d.jsonl", "samples": SAMPLES},
        "gating": setup.get("gating", {"mode": "top2"}),
        "hyperparameters": hyperparameters,
        "ranks": 1,
        "adapter": setup.get("adapter"),
    }
    return MoeTrainWorkload.model_validate_json(json.dumps(fields))


def sequence_of(family: str, number: int) -> TokenSequence:
    """A sample, the same on all ranks."""
    generator = torch.Generator().manual_seed(1_000 + number)
    length = int(torch.randint(4, 12, (1,), generator=generator))
    tokens = torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()
    if family == "bert":
        return LabelledSequence(tokens, 0, number % 3)
    return TextSequence(tokens, 1 + number % 3)


def tokenizer_of_its_size() -> PreTrainedTokenizerFast:
    """A tokenizer of as many tokens as the models have."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), unk_token="w0", eos_token="w1"
    )


def module_of(family: str, hidden: int = 16) -> PreTrainedModel:
    """A tiny model without dropout, dense or with experts; a GPT-2 may be less tiny."""
    torch.manual_seed(7)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    if family == "gpt2":
        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=hidden,
            n_layer=3,
            n_head=2,
            n_positions=16,
            initializer_range=0.3,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
        return GPT2LMHeadModel(config)
    if family == "bert":
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertForSequenceClassification(
            BertConfig(**sizes, **dropout, num_hidden_layers=2, num_labels=3, initializer_range=0.3)
        )
    if family == "mixtral":
        return MixtralForCausalLM(
            MixtralConfig(
                **sizes,
                num_hidden_layers=2,
                num_key_value_heads=1,
                num_local_experts=4,
                initializer_range=0.3,
            )
        )
    if family == "switch":
        return SwitchTransformersForConditionalGeneration(
            SwitchTransformersConfig(
                vocab_size=VOCABULARY,
                d_model=16,
                d_kv=8,
                d_ff=24,
                num_layers=2,
                num_sparse_encoder_layers=1,
                num_decoder_layers=2,
                num_sparse_decoder_layers=1,
                num_heads=2,
                num_experts=4,
                dropout_rate=0.0,
                decoder_start_token_id=0,
                pad_token_id=0,
            )
        )
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_hidden_layers=2, num_key_value_heads=1, initializer_range=0.3)
    )


def model_of(setup: dict[str, Any]) -> MoeModel:
    """Return a whole model, in float64 by default, with the adapter that a test sets."""
    job, family = workload(setup), setup.get("family", "gpt2")
    gating = Gating(job.gating.mode, job.gating.threshold or 0.0)
    dtype = getattr(torch, setup.get("dtype", "float64"))
    module = module_of(family, setup.get("hidden", 16)).to(dtype).train()
    module.config.architectures = [type(module).__name__]
    conversion = None
    if family in ("mixtral", "switch"):
        adopt(module, gating)
    else:
        conversion = LayerConversion(experts=setup.get("experts", 4), initialization="random", seed=5)
        convert(module, conversion, gating)
        with torch.no_grad():
            for block in moe_blocks(module).values():
                block.router.get_parameter("weight").mul_(setup.get("decisiveness", 1.0))
    objective = objective_of(module.config)
    adapted = module
    if job.adapter is not None:
        torch.manual_seed(11)
        adapted = adapt(module, job.adapter, family == "bert", "tiny")
        with torch.no_grad():  # not zero, so that both factors have gradients at once
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0.0, 0.1)
    description = MoeDescription(gating=gating, conversion=conversion)
    return MoeModel(adapted.train(), None, objective, description)  # type: ignore[arg-type]


def reference(setup: dict[str, Any]) -> dict[str, Any]:
    """Train the job in one process, by torch and Hugging Face alone; losses and parameters."""
    job, family, model = workload(setup), setup.get("family", "gpt2"), model_of(setup)
    hyperparameters = job.hyperparameters
    order = order_of(job, SAMPLES, len(moe_blocks(model.module)))
    trained = {name: each for name, each in model.module.named_parameters() if each.requires_grad}
    optimizer = torch.optim.AdamW(
        trained.values(), lr=hyperparameters.learning_rate, weight_decay=hyperparameters.weight_decay
    )
    losses, doubles, done = [], [], 0
    while samples := order.batch(done):
        sequences = [sequence_of(family, sample) for sample in samples]
        loss = model.objective.loss(model.module, sequences, torch.device("cpu"))
        loss = loss / sum(sequence.loss_tokens for sequence in sequences)
        passes = pop_passes(model.module)
        optimizer.zero_grad()
        (loss + hyperparameters.balance_weight * auxiliary_loss(passes)).backward()
        norm = torch.stack([each.grad.square().sum() for each in trained.values()]).sum().sqrt()
        if norm > hyperparameters.max_gradient_norm:
            for parameter in trained.values():
                parameter.grad.mul_(hyperparameters.max_gradient_norm / norm)
        optimizer.step()
        layers = list(passes.values())
        order.record(
            samples,
            torch.stack([layer.double_ratio_of_sequences for layer in layers]).numpy(),
            layers[0].tokens_of_sequences.numpy(),
        )
        losses.append(loss.item())
        doubles.append([int(layer.routing.is_double.sum()) for layer in layers])
        done += len(samples)
    return {"losses": losses, "doubles": doubles, "parameters": _listed(trained)}


@contextmanager
def trainer_of(
    rank: Rank,
    setup: dict[str, Any],
    generation: int = 1,
    world: int | None = None,
    trace: list[MicroOpRecord] | None = None,
) -> Iterator[ExpertTrainer]:
    """A rank's trainer, connected with the others."""
    torch.set_num_threads(1)
    world = world or rank.world
    timeout_s = setup.get("timeout_s", 20.0)
    job, family, model = workload(setup), setup.get("family", "gpt2"), model_of(setup)
    device = torch.device(setup.get("device", "cpu"))
    group = ProcessGroup.form(meet(rank, generation, world), device, timeout_s)
    connections = Connections(rank.rank, world, device, rank.host, timeout_s, setup.get("ordering"), trace)
    experts = len(next(iter(moe_blocks(model.module).values())).router.get_parameter("weight"))
    packing = begin_packing(world, experts, setup.get("per_device"))
    memory_bytes = setup.get("memory_bytes")
    memory_gib = None if memory_bytes is None else memory_bytes / 2**30
    spread = SpreadModel(model.module, connections, packing, job.hyperparameters.micro_op_mb, 200, memory_gib)
    yield ExpertTrainer(
        job.hyperparameters,
        model,
        order_of(job, SAMPLES, len(spread.layers)),
        lambda sample: sequence_of(family, sample),
        spread,
        connections,
        group,
    )
    connections.close()
    group.close()


PATH_LAYERS, PATH_EXPERTS, PATH_TOKENS = 4, 3, 12
"""Sizes of the steps of `collect_paths`; their global batch has six samples."""


def passes_of_step(step: int, rank: int = 0, world: int = 1) -> list[LayerPass]:
    """A rank's part of the tokens of a step, routed at random."""
    generator = torch.Generator().manual_seed(step)
    logits = torch.randn(PATH_LAYERS, PATH_TOKENS, PATH_EXPERTS, generator=generator)
    own = logits[:, rank * PATH_TOKENS // world : (rank + 1) * PATH_TOKENS // world]
    sequence = torch.zeros(own.shape[1], dtype=torch.int64)
    return [LayerPass(route(layer, Gating("top2")), sequence, 1) for layer in own]


def collect_paths(rank: Rank) -> dict[str, list[int]]:
    """Paths of steps with these balance losses, collected at the end, and once before on request."""
    setup = rank.arguments
    job = workload({"work_samples": 6 * len(setup["balance"])})
    group = ProcessGroup.form(meet(rank), torch.device("cpu"), 20.0)
    paths = TrainedPaths(job, PATH_LAYERS, PATH_EXPERTS)
    for step, balance in enumerate(setup["balance"]):
        if step == setup.get("saved_at"):
            tensors = paths.collect(group)
            paths = TrainedPaths(job, PATH_LAYERS, PATH_EXPERTS)
            paths.load(tensors or {})
        paths.add(6 * step, passes_of_step(step, rank.rank, rank.world), balance)
    tensors = paths.collect(group)
    group.close()
    return {name: tensor.tolist() for name, tensor in (tensors or {}).items()}


def train(rank: Rank) -> dict[str, Any]:
    """Train all of a job, packed again after some steps if so set; losses and, of rank 0, parameters."""
    setup = rank.arguments
    losses, doubles = [], []
    with trainer_of(rank, setup) as trainer:
        first, resident, left = trainer.packing, [trainer.resident], []
        while not trainer.is_finished:
            if len(losses) in (packed := {int(key): each for key, each in setup.get("packed", {}).items()}):
                before = [
                    weakref.ref(each) for _, pieces in trainer._spread.trained_experts() for each in pieces
                ]
                trainer.pack(Packing(first.world, first.experts, packed[len(losses)]))
                resident.append(trainer.resident)
                left += [each for each in before if each() is not None]
            doubles.append(_step(trainer))
            losses.append(trainer.loss)
        whole = trainer.collect()
        per_device = trainer.packing.per_device
        taken = {"kept_bytes": _kept_bytes(trainer), "visiting_bytes": _visiting_bytes(trainer)}
    found = {"losses": losses, "doubles": doubles, "per_device": [first.per_device, per_device]}
    taken |= {"resident": resident, "left": len(left)}
    return found | taken | {"parameters": _listed(whole or {})}


def train_on_device(rank: Rank) -> dict[str, Any]:
    """All of a job on a CUDA device; losses, and the bytes that its allocator has given out, at the end and
    at most."""
    losses = []
    with trainer_of(rank, rank.arguments) as trainer:
        torch.cuda.reset_peak_memory_stats()
        while not trainer.is_finished:
            _step(trainer)
            losses.append(trainer.loss)
        torch.cuda.synchronize()
        return {
            "losses": losses,
            "resident": trainer.resident,
            "allocated_bytes": torch.cuda.memory_allocated(),
            "peak_bytes": torch.cuda.max_memory_allocated(),
        }


def train_by_plan(rank: Rank) -> dict[str, Any]:
    """Train all of a job whose collectives have a planned order, packed again after some steps; per step, its
    plan, and the number of all-to-alls issued before each allreduce."""
    losses, plans, orders = [], [], []
    trace: list[MicroOpRecord] = []
    with trainer_of(rank, rank.arguments, trace=trace) as trainer:
        steps = trainer._connections.steps
        assert isinstance(steps, PlannedSteps)
        while not trainer.is_finished:
            if str(len(losses)) in rank.arguments["packed"]:
                per_device = rank.arguments["packed"][str(len(losses))]
                trainer.pack(Packing(trainer.packing.world, trainer.packing.experts, per_device))
            plans.append(steps.plan.after)
            trace.clear()
            _step(trainer)
            losses.append(trainer.loss)
            orders.append(_before_allreduces([record.kind for record in trace]))
        whole = trainer.collect()
    return {"losses": losses, "plans": plans, "orders": orders, "parameters": _listed(whole or {})}


def resume(rank: Rank) -> dict[str, Any]:
    """Train some steps with all ranks, then resume with the first `world`: only rank 0 has the earlier
    steps."""
    setup = rank.arguments
    with trainer_of(rank, setup) as trainer:
        for _ in range(setup["steps"]):
            _step(trainer)
        whole, place = trainer.collect(), (trainer.samples_done, trainer.steps, trainer.loss)
    losses, doubles = [], []
    if rank.rank >= setup["again"]["world"]:
        return {}
    with trainer_of(rank, setup | setup["again"], 2, setup["again"]["world"]) as trainer:
        if whole is not None:
            trainer.check(whole)
        trainer.restore(whole or {})
        trainer.move_to(*place)
        resident = trainer.resident
        while not trainer.is_finished:
            doubles.append(_step(trainer))
            losses.append(trainer.loss)
        whole = trainer.collect()
    found = {"losses": losses, "doubles": doubles, "resident": resident}
    return found | {"parameters": _listed(whole or {})}


def adjust(rank: Rank) -> dict[str, Any]:
    """All of a job under a controller; how it was packed after which steps."""
    found: dict[str, Any] = {"packings": []}
    with trainer_of(rank, rank.arguments) as trainer:
        controller = PackingController(trainer.packing, is_fixed=False)
        step = 0
        while not trainer.is_finished:
            _step(trainer)
            step += 1
            packing = trainer.adjust(controller, step)
            if packing is not None:
                found["packings"].append([step, packing.per_device])
        found["is_settled"] = controller.is_settled
        found["parameters"] = _listed(trainer.collect() or {})
    return found


def _kept_bytes(trainer: ExpertTrainer) -> int:
    """Return the bytes of the experts that stay on the device: parameters, gradients and moments."""
    stay = [] if trainer.resident == 0 else [pieces[0] for _, pieces in trainer._spread.trained_experts()]
    return sum(
        tensor.nbytes
        for piece in stay
        for tensor in (piece, piece.grad, *trainer._moments[piece])
        if tensor is not None
    )


def _visiting_bytes(trainer: ExpertTrainer) -> int:
    """Return the most bytes at a time of parameters of experts that came from the host's memory."""
    experts = [parallel.experts for parallel in trainer._spread._parallel]
    return max(each.peak_bytes if isinstance(each, OffloadedExperts) else 0 for each in experts)


def _before_allreduces(kinds: list[CollectiveKind]) -> list[int]:
    places = [place for place, kind in enumerate(kinds) if kind is CollectiveKind.ALLREDUCE]
    return [kinds[:place].count(CollectiveKind.ALL_TO_ALL) for place in places]


def _step(trainer: ExpertTrainer) -> list[int]:
    own = trainer.share()
    counts = trainer._group.gather("a test", [own.loss_tokens])
    routing = trainer.step(own, sum(tokens for (tokens,) in counts))
    return [int(count) for count in routing.doubles]


def _listed(tensors: dict[str, Tensor]) -> dict[str, list[float]]:
    return {
        name: tensor.detach().double().flatten().tolist()
        for name, tensor in tensors.items()
        if not name.startswith(("exp_avg", "order."))
    }
