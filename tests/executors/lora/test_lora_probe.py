"""A base model is taken only if its packed passes are proven right, and refused with the reason otherwise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    Llama4TextConfig,
    LlamaConfig,
    Phi3Config,
    Qwen2MoeConfig,
    RecurrentGemmaConfig,
    RobertaConfig,
)

from executors.lora.adapter import inject
from executors.lora.base_model import BaseModelError, load_base
from executors.lora.fused_layers import FusedLinear
from executors.lora.packed_attention import PACKED_ATTENTION, UnknownAttentionArgumentError, packed_attention
from executors.lora.probe.deviation import UnprovenBaseError
from executors.lora.probe.passes import in_float32
from executors.lora.probe.prove import compared_tokens, prove
from executors.lora.shared_base import UNLIMITED_TOKENS, SharedBase, longest_sequence_tokens

MANY = 20
"""Tokens: the packed batch of the probe has more, and each of its sequences fewer."""

Change = Callable[[Tensor], Tensor]


def mixes_tokens(hidden: Tensor) -> Tensor:
    return hidden + 0.1 * hidden.roll(1, dims=1)


def mixes_tokens_backwards(hidden: Tensor) -> Tensor:
    # By two: what a sequence's last token becomes bears no loss.
    return hidden + 0.1 * hidden.roll(-2, dims=1)


def counts_tokens(hidden: Tensor) -> Tensor:
    return hidden * (1 + 0.01 * hidden.shape[1])


def loses_gradient_where_packed(hidden: Tensor) -> Tensor:
    return hidden.detach() if hidden.shape[1] > MANY else hidden


def raises_where_packed(hidden: Tensor) -> Tensor:
    if hidden.shape[1] > MANY:
        raise IndexError("no such token")
    return hidden


def raises_alone(hidden: Tensor) -> Tensor:
    if hidden.shape[1] <= MANY:
        raise IndexError("no such token")
    return hidden


def overflows(hidden: Tensor) -> Tensor:
    return hidden * float("inf")


@contextmanager
def changed(base: SharedBase, change: Change) -> Iterator[None]:
    """The last layer gets other inputs."""
    layer = base.model.get_submodule("model.layers.1")
    hook = layer.register_forward_pre_hook(lambda _module, inputs: (change(inputs[0]), *inputs[1:]))
    try:
        yield
    finally:
        hook.remove()


def test_a_right_base_is_proven_to_the_bit(base: SharedBase) -> None:
    proof = prove(base)
    assert proof.bit_identical
    assert (proof.adapted_layers, proof.partial_layers) == (2 * 7, 0)
    assert proof.longest_tokens == base.longest_sequence_tokens == 128
    for deviation in (proof.values, proof.gradients):
        assert 0 < deviation.found <= deviation.allowed <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason", "detail"),
    [
        (mixes_tokens, "leaks", "logits of one task move by"),
        (mixes_tokens_backwards, "leaks", "logits of one task move by"),
        (counts_tokens, "values_differ", "packed logits differ from transformers' by"),
        (loses_gradient_where_packed, "gradients_differ", "packed gradients differ from PEFT's by"),
        (raises_where_packed, "packed_raises", "IndexError: no such token"),
        (raises_alone, "eager_raises", "IndexError: no such token"),
        (overflows, "not_finite", "not finite"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_base_wrong_when_packed_is_refused_by_name(
    llama_directory: Path, change: Change, reason: str, detail: str, dtype: torch.dtype
) -> None:
    base = load_base(llama_directory)
    base.model.to(dtype)
    with changed(base, change), pytest.raises(UnprovenBaseError, match=detail) as refused:
        prove(base)
    assert refused.value.reason == reason
    assert f"{llama_directory}: LlamaForCausalLM cannot be trained in packed batches" in str(refused.value)
    assert isinstance(refused.value, BaseModelError)
    assert prove(base).longest_tokens == 128


def test_a_base_without_layers_to_adapt_is_refused(base: SharedBase) -> None:
    with pytest.raises(UnprovenBaseError) as refused:
        prove(replace(base, sites={}))
    assert refused.value.reason == "no_layers"


def test_bfloat16_base_is_proven_and_unchanged(
    llama_directory: Path,
) -> None:
    base = load_base(llama_directory)
    base.model.to(torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in base.model.state_dict().items()}
    proof = prove(base)
    assert proof.bit_identical
    assert 1e-3 < proof.values.found <= proof.values.allowed < 0.1
    for name, tensor in base.model.state_dict().items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, before[name])
    with in_float32(base.model):
        assert {tensor.dtype for tensor in base.model.parameters()} == {torch.float32}


def test_a_probe_leaves_no_trace(base: SharedBase) -> None:
    before = torch.get_rng_state()
    prove(base)
    assert torch.equal(torch.get_rng_state(), before)
    assert base.model.config._attn_implementation == "millrace_packed"
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    assert all(site.batch is None for site in base.sites.values())
    assert not any(module._forward_hooks for module in base.model.modules())


@pytest.mark.parametrize("argument", ["position_bias", "indices", "something_new"])
def test_unknown_attention_argument_is_kept(argument: str) -> None:
    states = [torch.randn(1, 2, 5, 4) for _ in range(3)]
    with pytest.raises(UnknownAttentionArgumentError, match=f"passes '{argument}' to attention"):
        packed_attention(nn.Identity(), *states, None, sequence_runs=((5, 1),), **{argument: torch.ones(1)})
    packed_attention(nn.Identity(), *states, None, sequence_runs=((5, 1),), **{argument: None})


def test_own_mask_of_model_is_kept() -> None:
    states = [torch.randn(1, 2, 5, 4) for _ in range(3)]
    with pytest.raises(UnknownAttentionArgumentError, match="passes 'attention_mask'"):
        packed_attention(nn.Identity(), *states, torch.zeros(1, 1, 5, 5), sequence_runs=((5, 1),))


@pytest.mark.parametrize(
    ("family", "argument"), [("gemma2", "softcap"), ("gpt_oss", "s_aux")], ids=["soft caps", "sinks"]
)
def test_probe_notices_attention_arguments(
    family: str, argument: str, request: pytest.FixtureRequest
) -> None:
    base = load_base(request.getfixturevalue(f"{family}_directory"))
    assert base.proof is not None
    assert base.proof.values.found <= 1e-4

    def without(*arguments: object, **named: object) -> object:
        return packed_attention(*arguments, **(named | {argument: None}))

    AttentionInterface.register(PACKED_ATTENTION, without)
    try:
        with pytest.raises(UnprovenBaseError) as refused:
            prove(base)
    finally:
        AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    assert refused.value.reason == "values_differ"


def test_nominally_linear_layer_gets_no_adapter() -> None:
    class Router(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).softmax(-1)

    model = nn.ModuleDict({"plain": nn.Linear(4, 4), "router": Router(4, 4)})
    assert list(inject(model, ())) == ["plain"]
    assert isinstance(model["plain"], FusedLinear)
    assert isinstance(model["router"], Router)


DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("config", "offset", "longest"),
    [
        (LlamaConfig(max_position_embeddings=64), 0, 64),
        (RobertaConfig(max_position_embeddings=64), 2, 62),
        (Phi3Config(max_position_embeddings=64, sliding_window=16), 0, 16),
        # It is 0 without a window, which was mistaken for a window of no tokens.
        (Qwen2MoeConfig(max_position_embeddings=64, use_sliding_window=False, sliding_window=0), 0, 64),
        (Llama4TextConfig(max_position_embeddings=64, attention_chunk_size=8), 0, 8),
        # A longer neighbour would change the frequencies.
        (
            Phi3Config(
                max_position_embeddings=64,
                original_max_position_embeddings=32,
                hidden_size=32,
                num_attention_heads=4,
                num_key_value_heads=4,
                sliding_window=None,
                rope_parameters=LONG_ROPE,
            ),
            0,
            32,
        ),
        (
            LlamaConfig(max_position_embeddings=64, rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
            0,
            64,
        ),
        # Nothing in its configuration limits it.
        (RecurrentGemmaConfig(attention_window_size=UNLIMITED_TOKENS), 0, UNLIMITED_TOKENS),
    ],
)
def test_longest_sequence_fits_all_length_limits(config: object, offset: int, longest: int) -> None:
    assert longest_sequence_tokens(config, offset) == longest


@pytest.mark.parametrize(
    ("parameters", "tokens"),
    [(30_000, 8_192), (1_000_000, 500), (20_000_000, 256), (135_000_000, 148), (7 * 10**9, 2)],
)
def test_longest_sequence_is_affordable_on_cpu(parameters: int, tokens: int) -> None:
    assert compared_tokens("cpu", parameters) == tokens
