"""The experts of a layer taken apart: their tensors by expert, and a module of a part of them."""

from typing import cast

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from executors.moe.block import MoeBlock, moe_blocks
from executors.moe.conversion.convert import LayerConversion, convert
from executors.moe.experts import Experts
from executors.moe.gating import Gating
from executors.moe.parallel.packing import ExpertBytes
from executors.moe.training.hosting import LayerExperts
from tests.support.live_bytes import LiveBytes
from tests.support.parallel_experts import CPU

EXPERTS = 4
ADAPTED = ["experts.gate_up_proj", "experts.down_proj"]


def layer_of(adapted: list[str]) -> tuple[str, MoeBlock, nn.Module]:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    model: nn.Module = LlamaForCausalLM(config)
    convert(model, LayerConversion(experts=EXPERTS, initialization="random"), Gating("top2"))
    if adapted:
        model = get_peft_model(model, LoraConfig(r=3, target_modules=[], target_parameters=adapted))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter)
    ((name, block),) = moe_blocks(model).items()
    return name, block, model


def rows_of(counts: list[int]) -> tuple[Tensor, Tensor]:
    return torch.randn(sum(counts), 16, generator=torch.Generator().manual_seed(1)), torch.tensor(counts)


@pytest.mark.parametrize("adapted", [[], ADAPTED, ADAPTED[1:]], ids=["all weights", "adapter", "one factor"])
def test_hosted_experts_match_whole_model(adapted: list[str]) -> None:
    name, block, _ = layer_of(adapted)
    rows, counts = rows_of([0, 3, 2, 0])
    expected = block.experts(rows, counts)
    layer = LayerExperts(name, block)
    hosted, _ = layer.host(
        {part: tensor[1:3].clone() for part, tensor in layer.remove_tensors().items()}, 2, CPU
    )
    torch.testing.assert_close(hosted(rows, counts[1:3]), expected)
    assert (layer.count, layer.hidden) == (EXPERTS, 16)


@pytest.mark.parametrize("adapted", [[], ADAPTED], ids=["all weights", "adapter"])
def test_tensors_keep_names_and_form_of_model(
    adapted: list[str],
) -> None:
    name, block, model = layer_of(adapted)
    expected = {key: each.detach().clone() for key, each in model.named_parameters() if ".experts." in key}
    trained = {key for key, each in model.named_parameters() if ".experts." in key and each.requires_grad}
    layer = LayerExperts(name, block)
    taken = layer.remove_tensors()
    assert {each.name for each in layer.tensors} == set(expected)
    assert {each.name for each in layer.tensors if each.is_trained} == trained
    for each in layer.tensors:
        assert len(taken[each.part]) == EXPERTS
        assert torch.equal(each.whole(taken[each.part]), expected[each.name])
        assert each.shape == tuple(expected[each.name].shape)
    assert not any(".experts." in key for key, _ in model.named_parameters())


@pytest.mark.parametrize("adapted", [[], ADAPTED], ids=["all weights", "adapter"])
@pytest.mark.parametrize("resident", [0, 2, EXPERTS])
def test_exchanged_rows_keep_type_under_autocast(adapted: list[str], resident: int) -> None:
    name, block, _ = layer_of(adapted)
    layer = LayerExperts(name, block)
    hosted, parameters = layer.host(
        {part: tensor.clone() for part, tensor in layer.remove_tensors().items()}, resident, CPU
    )
    rows, counts = rows_of([1, 3, 2, 1])
    rows.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = hosted(rows, counts)
    trained = [piece for pieces in parameters.values() for piece in pieces if piece.requires_grad]
    gradients = torch.autograd.grad(outputs.sum(), [rows, *trained])
    assert {each.dtype for each in (outputs, *gradients)} == {torch.float32}


@pytest.mark.parametrize("resident", [0, 1, 2])
@pytest.mark.parametrize("adapted", [[], ADAPTED], ids=["all weights", "adapter"])
def test_host_memory_experts_match_whole_model(adapted: list[str], resident: int) -> None:
    name, block, _ = layer_of(adapted)
    rows, counts = rows_of([0, 3, 2, 4])
    expected = block.experts(rows, counts)
    layer = LayerExperts(name, block)
    hosted, parameters = layer.host(
        {part: each[1:].clone() for part, each in layer.remove_tensors().items()}, resident, CPU
    )
    torch.testing.assert_close(hosted(rows, counts[1:]), expected)
    lengths = {tuple(len(piece) for piece in pieces) for pieces in parameters.values()}
    assert lengths == {(*([resident] if resident else []), *[1] * (3 - resident))}


def test_dropout_of_offloaded_expert_is_repeatable() -> None:
    found = []
    for resident in (0, 1):
        name, block, _ = layer_of([])
        cast(Experts, block.experts).dropout.p = 0.5
        layer = LayerExperts(name, block)
        hosted, parameters = layer.host(
            {part: each[:1].clone() for part, each in layer.remove_tensors().items()}, resident, CPU
        )
        rows, counts = rows_of([6])
        rows.requires_grad_()
        torch.manual_seed(5)
        outputs = hosted.train()(rows, counts)
        torch.rand(3)
        trained = [piece for pieces in parameters.values() for piece in pieces]
        found.append([outputs, *torch.autograd.grad(outputs.square().sum(), [rows, *trained])])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("adapted", "is_autocast", "expected"),
    [
        ([], False, ExpertBytes(kept=4 * 4608, computing=4608, visiting=2 * 4608)),
        ([], True, ExpertBytes(kept=4 * 4608 + 2 * 2304, computing=4608 + 2304, visiting=3 * 4608)),
        (ADAPTED, False, ExpertBytes(kept=5856 + 3 * 1248 + 2 * 4608, computing=5856, visiting=16320)),
    ],
    ids=["all weights", "in half precision", "adapter"],
)
def test_expert_memory_includes_its_training_state(
    adapted: list[str], is_autocast: bool, expected: ExpertBytes
) -> None:
    name, block, _ = layer_of(adapted)
    assert LayerExperts(name, block).bytes_of_one(2, is_autocast=is_autocast) == expected


@pytest.mark.parametrize("resident", [0, 1, 3])
@pytest.mark.parametrize("is_autocast", [False, True], ids=["float32", "half"])
@pytest.mark.parametrize("adapted", [[], ADAPTED], ids=["all weights", "adapter"])
def test_pass_stays_within_counted_memory(adapted: list[str], is_autocast: bool, resident: int) -> None:
    name, block, _ = layer_of(adapted)
    layer = LayerExperts(name, block)
    tensors = {part: tensor[:3].clone() for part, tensor in layer.remove_tensors().items()}
    hosted, parameters = layer.host(tensors, resident, CPU)
    counted = layer.bytes_of_one(1, is_autocast=is_autocast)
    copies_bytes = counted.kept - layer.bytes_of_one(0, is_autocast=is_autocast).kept
    trained = [piece for pieces in parameters.values() for piece in pieces if piece.requires_grad]
    of_one_bytes = sum(piece.nbytes for piece in trained) // 3
    rows, counts = rows_of([1, 1, 1])
    present = [rows.requires_grad_(), counts, *(piece for pieces in parameters.values() for piece in pieces)]
    with LiveBytes(present) as live:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            outputs = hosted(rows, counts)
        torch.autograd.grad(outputs.sum(), [rows, *trained])
    expected_bytes = resident * (counted.computing + copies_bytes)
    if resident < 3:
        # On a CPU, gradients in the host's memory are seen, too.
        expected_bytes += counted.visiting + (2 - resident) * of_one_bytes
    activations_bytes = 2_048
    assert expected_bytes / 3 < live.peak_bytes <= expected_bytes + activations_bytes
