"""The experts of a layer taken apart: their tensors by expert, and a module of a part of them."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from executors.moe.block import MoeBlock, moe_blocks
from executors.moe.conversion.convert import Conversion, convert
from executors.moe.gating import Gating
from executors.moe.training.hosting import LayerExperts

EXPERTS = 4
ADAPTED = ["experts.gate_up_proj", "experts.down_proj"]


def layer_of(adapted: list[str]) -> tuple[str, MoeBlock, nn.Module]:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    model: nn.Module = LlamaForCausalLM(config)
    convert(model, Conversion(experts=EXPERTS, initialization="random"), Gating("top2"))
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
def test_hosted_experts_compute_what_they_did_in_the_whole_model(adapted: list[str]) -> None:
    name, block, _ = layer_of(adapted)
    rows, counts = rows_of([0, 3, 2, 0])
    expected = block.experts(rows, counts)
    layer = LayerExperts(name, block)
    hosted, _ = layer.host({part: tensor[1:3].clone() for part, tensor in layer.take().items()})
    torch.testing.assert_close(hosted(rows, counts[1:3]), expected)
    assert (layer.count, layer.hidden) == (EXPERTS, 16)


@pytest.mark.parametrize("adapted", [[], ADAPTED], ids=["all weights", "adapter"])
def test_tensors_are_named_and_trained_as_in_the_whole_model_and_come_back_in_its_form(
    adapted: list[str],
) -> None:
    name, block, model = layer_of(adapted)
    expected = {key: each.detach().clone() for key, each in model.named_parameters() if ".experts." in key}
    trained = {key for key, each in model.named_parameters() if ".experts." in key and each.requires_grad}
    layer = LayerExperts(name, block)
    taken = layer.take()
    assert {each.name for each in layer.tensors} == set(expected)
    assert {each.name for each in layer.tensors if each.is_trained} == trained
    for each in layer.tensors:
        assert len(taken[each.part]) == EXPERTS
        assert torch.equal(each.whole(taken[each.part]), expected[each.name])
        assert each.shape == tuple(expected[each.name].shape)
    assert not any(".experts." in key for key, _ in model.named_parameters())


@pytest.mark.parametrize("adapted", [[], ADAPTED], ids=["all weights", "adapter"])
def test_outputs_and_gradients_travel_in_the_type_of_the_rows_under_autocast(adapted: list[str]) -> None:
    name, block, _ = layer_of(adapted)
    layer = LayerExperts(name, block)
    hosted, parameters = layer.host({part: tensor.clone() for part, tensor in layer.take().items()})
    rows, counts = rows_of([1, 3, 2, 1])
    rows.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = hosted(rows, counts)
    trained = [each for each in parameters.values() if each.requires_grad]
    gradients = torch.autograd.grad(outputs.sum(), [rows, *trained])
    assert {each.dtype for each in (outputs, *gradients)} == {torch.float32}
