"""Hugging Face models with experts: what they compute, and that they come back from files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
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
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)

from executors.lora.model_kind import BaseModelError
from executors.moe.block import auxiliary_loss, moe_blocks, pop_passes, set_gating
from executors.moe.conversion.convert import LayerConversion, convert
from executors.moe.conversion.drop_in import adopt
from executors.moe.conversion.storage import MoeDescription, load, save
from executors.moe.gating import Gating
from tests.support.unfit_models import FAULTS, Harm, cast, configure


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=4, n_head=2, n_positions=32))


def bert() -> PreTrainedModel:
    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    return BertForSequenceClassification(config)


def llama() -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        tie_word_embeddings=True,
        mlp_bias=True,
    )
    return LlamaForCausalLM(config)


def mixtral() -> PreTrainedModel:
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=2,
        initializer_range=0.3,
    )
    return MixtralForCausalLM(config)


def switch() -> PreTrainedModel:
    config = SwitchTransformersConfig(
        vocab_size=64,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_sparse_encoder_layers=1,
        num_decoder_layers=2,
        num_sparse_decoder_layers=1,
        num_heads=2,
        num_experts=4,
        expert_capacity=1000,
        decoder_start_token_id=0,
    )
    return SwitchTransformersForConditionalGeneration(config)


MakeModel = Callable[[], PreTrainedModel]
DENSE = pytest.mark.parametrize("make", [gpt2, bert, llama])
SPARSE = pytest.mark.parametrize("make", [mixtral, switch])


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(11)


def tokens(sequences: int = 3, length: int = 9) -> Tensor:
    return torch.randint(1, 64, (sequences, length), generator=torch.Generator().manual_seed(12))


def logits(model: PreTrainedModel, padded: bool = False) -> Tensor:
    """Return the logits of the tokens of three sequences; `padded` pads the last two at the end."""
    mask = torch.ones(3, 9, dtype=torch.long)
    if padded:
        mask[1, 5:] = mask[2, 1:] = 0
    inputs = {"input_ids": tokens(), "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(3, 4)
    with torch.no_grad():
        outputs: Tensor = model(**inputs).logits
    return outputs[mask.bool()] if outputs.shape[:2] == mask.shape else outputs


@DENSE
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mode", ["top1", "top2", "adaptive"])
def test_converted_experts_match_dense_model(make: MakeModel, mode: str, padded: bool) -> None:
    model = make().eval()
    dense = logits(model, padded)
    convert(model, LayerConversion(experts=4, noise=0.0), Gating(mode))

    torch.testing.assert_close(logits(model, padded), dense)
    assert len(pop_passes(model)) == 4


@DENSE
def test_padding_is_not_routed(make: MakeModel) -> None:
    model = make().eval()
    convert(model, LayerConversion(experts=4), Gating("top1"))
    logits(model, padded=True)

    for routed in pop_passes(model).values():
        assert routed.tokens_of_sequences.tolist() == [9, 5, 1]


def test_cached_generation_routes_only_new_tokens() -> None:
    model = gpt2().eval()
    convert(model, LayerConversion(experts=4, noise=0.0), Gating("top2"))
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, :4] = 0
    generated = model.generate(
        tokens(), attention_mask=mask, max_new_tokens=3, do_sample=False, pad_token_id=0
    )

    assert generated.shape == (3, 12)
    assert all(routed.tokens_of_sequences.tolist() == [1, 1, 1] for routed in pop_passes(model).values())


@DENSE
def test_every_second_layer_can_be_converted(make: MakeModel) -> None:
    model = make()
    convert(model, LayerConversion(experts=2, layers="alternate"), Gating("top1"))
    numbers = [[int(part) for part in name.split(".") if part.isdigit()] for name in moe_blocks(model)]
    assert numbers == [[1], [3]]


@pytest.mark.parametrize("initialization", ["dense", "random"])
def test_experts_are_drawn_from_the_seed(initialization: str) -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(11)
        model = gpt2()
        convert(model, LayerConversion(experts=4, initialization=initialization, seed=seed), Gating("top1"))
        return model.get_parameter("transformer.h.2.mlp.experts.up_proj").detach()

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert not torch.equal(weights(1)[0], weights(1)[1])


def test_split_experts_stay_near_replaced_network() -> None:
    model = gpt2()
    dense = model.get_parameter("transformer.h.2.mlp.c_fc.weight").detach().t().clone()
    convert(model, LayerConversion(experts=4, noise=0.01), Gating("top1"))
    experts = model.get_parameter("transformer.h.2.mlp.experts.up_proj").detach()
    assert float((experts - dense).std() / dense.std()) == pytest.approx(0.01, rel=0.1)

    model = gpt2()
    convert(model, LayerConversion(experts=4, initialization="random"), Gating("top1"))
    experts = model.get_parameter("transformer.h.2.mlp.experts.up_proj").detach()
    assert float(experts.std()) == pytest.approx(model.config.initializer_range, rel=0.1)


@SPARSE
@pytest.mark.parametrize("padded", [False, True])
def test_adopted_layers_match_their_outputs(make: MakeModel, padded: bool) -> None:
    model = make().eval()
    own = logits(model, padded)
    adopt(model, Gating("top2" if make is mixtral else "top1"))

    torch.testing.assert_close(logits(model, padded), own)
    assert len(pop_passes(model)) == 2


def test_adopted_layers_match_their_gradients() -> None:
    def gradients(adopted: bool) -> dict[str, Tensor]:
        torch.manual_seed(11)
        model = mixtral()
        if adopted:
            adopt(model, Gating("top2"))
        model(input_ids=tokens(), labels=tokens()).loss.backward()
        return {
            name.replace("router", "gate"): parameter.grad for name, parameter in model.named_parameters()
        }

    torch.testing.assert_close(gradients(True), gradients(False))


@pytest.mark.parametrize("make", [gpt2, bert, llama, mixtral, switch])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_comes_back_from_files(make: MakeModel, dtype: torch.dtype, tmp_path: Path) -> None:
    model = make().eval()
    for parameter in model.parameters():  # and not the buffers, which stay in float32 when a model is loaded
        parameter.data = parameter.data.to(dtype)
    gating = Gating("adaptive", 0.25)
    conversion = None
    if make in (mixtral, switch):
        adopt(model, gating)
    else:
        conversion = LayerConversion(experts=4, layers="alternate", noise=0.5)
        convert(model, conversion, gating)
    save(model, MoeDescription(gating=gating, conversion=conversion), tmp_path)
    loaded, description = load(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} - {"generation_config.json"} == {
        "config.json",
        "model.safetensors",
        "moe.json",
    }
    assert description == MoeDescription(gating=gating, conversion=conversion)
    assert loaded.dtype == dtype
    assert torch.equal(logits(loaded), logits(model))
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter), name


@SPARSE
def test_stock_model_is_taken_without_description(make: MakeModel, tmp_path: Path) -> None:
    own = make().eval()
    own.save_pretrained(tmp_path)
    model, description = load(tmp_path)

    assert description.gating.mode == ("top2" if make is mixtral else "top1")
    assert len(moe_blocks(model)) == 2
    torch.testing.assert_close(logits(model), logits(own))


def test_stock_model_of_three_choices_is_refused(tmp_path: Path) -> None:
    mixtral().save_pretrained(tmp_path)
    configure(tmp_path, num_experts_per_tok=3)
    with pytest.raises(
        BaseModelError, match=rf"^{tmp_path}: config\.json: num_experts_per_tok is 3: a token may have one"
    ):
        load(tmp_path)


def test_directory_of_dense_model_is_refused(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    error = r"since it has no moe\.json, and its type 'llama' has no experts .*: mixtral, switch_transformers"
    with pytest.raises(BaseModelError, match=f"^{tmp_path}: no model with gated experts, {error}"):
        load(tmp_path)


def test_earlier_description_keeps_its_threshold(tmp_path: Path) -> None:
    # Files without `threshold_on` are of models that were trained with T on all probabilities.
    saved(gpt2, tmp_path)
    described = json.loads((tmp_path / "moe.json").read_text())
    for mode, expected in (("adaptive", "all"), ("top2", Gating("top2").threshold_on)):
        earlier = {"mode": mode, "threshold": 0.1, "weights": "normalized"}
        (tmp_path / "moe.json").write_text(json.dumps({**described, "gating": earlier}))
        model, description = load(tmp_path)
        assert description.gating.threshold_on == expected
        assert {block.gating for block in moe_blocks(model).values()} == {description.gating}


@SPARSE
def test_hugging_face_loads_saved_model(make: MakeModel, tmp_path: Path) -> None:
    model = make().eval()
    adopt(model, Gating("top2" if make is mixtral else "top1"))
    save(model, MoeDescription(gating=Gating("top2")), tmp_path)

    own = type(model).from_pretrained(tmp_path).eval()
    assert not moe_blocks(own)
    torch.testing.assert_close(logits(own), logits(model))


def saved(make: MakeModel, folder: Path) -> Path:
    """A model of a kind with experts, or of a dense one that was converted."""
    model, gating = make(), Gating("top1")
    conversion = None if make in (mixtral, switch) else LayerConversion(experts=4)
    if conversion is None:
        adopt(model, gating)
    else:
        convert(model, conversion, gating)
    save(model, MoeDescription(gating=gating, conversion=conversion), folder)
    return folder


def test_a_damaged_description_is_named(tmp_path: Path) -> None:
    saved(gpt2, tmp_path)
    described = json.loads((tmp_path / "moe.json").read_text())
    for damage, error in (
        ({"gating": {**described["gating"], "threshold": 3}}, r"moe\.json: gating: .*threshold"),
        ({"conversion": {**described["conversion"], "experts": 0}}, r"moe\.json: conversion\.experts: "),
        ({"conversion": None}, r"moe\.json: a model of type 'gpt2' has no experts"),
        (
            {"conversion": {**described["conversion"], "experts": 5}},
            r"model\.safetensors: \d+ weights have other shapes",
        ),
        (
            {"conversion": {**described["conversion"], "layers": "alternate"}},
            r"model\.safetensors: \d+ weights of GPT2LMHeadModel are missing, such as transformer\.h\.0\.mlp",
        ),
    ):
        (tmp_path / "moe.json").write_text(json.dumps({**described, **damage}))
        with pytest.raises(BaseModelError, match=f"^{tmp_path}: {error}"):
            load(tmp_path)
    (tmp_path / "moe.json").unlink()
    with pytest.raises(BaseModelError, match=rf"^{tmp_path}: no model with gated experts, .* no moe\.json"):
        load(tmp_path)


@pytest.mark.parametrize("make", [llama, mixtral])
@pytest.mark.parametrize(("harm", "error"), FAULTS.values(), ids=FAULTS.keys())
def test_experts_with_unfit_weights_are_refused(
    make: MakeModel, harm: Harm, error: str, tmp_path: Path
) -> None:
    directory = saved(make, tmp_path / "model")
    (directory / "tokenizer.json").touch()
    harm(directory)
    with pytest.raises(BaseModelError, match=f"^{directory}: {error}"):
        load(directory)


EXPERT_FAULTS: dict[str, tuple[Harm, str]] = {
    "integers": (
        lambda folder: cast(folder, "_proj.weight", torch.int8),
        r"model\.safetensors: \d+ weights are not floating point numbers, such as model\.layers\.0\.",
    ),
    "another activation": (
        lambda folder: configure(folder, hidden_act="nonsense"),
        r"config\.json: describes no model that can be built: KeyError: 'nonsense'",
    ),
    "too few layers": (
        lambda folder: configure(folder, num_hidden_layers=1),
        r"model\.safetensors: has \d+ weights that \w+ does not have",
    ),
    "too many layers": (
        lambda folder: configure(folder, num_hidden_layers=5),
        r"model\.safetensors: \d+ weights of \w+ are missing, such as model\.layers\.",
    ),
    "other widths": (
        lambda folder: configure(folder, vocab_size=65),
        r"model\.safetensors: \d+ weights have other shapes than config\.json describes",
    ),
    "no configuration": (
        lambda folder: (folder / "config.json").write_text("[]"),
        r"config\.json: is a JSON list, not an object",
    ),
}


@pytest.mark.parametrize("make", [llama, mixtral])
@pytest.mark.parametrize(("harm", "error"), EXPERT_FAULTS.values(), ids=EXPERT_FAULTS.keys())
def test_experts_with_unfit_files_are_refused(
    make: MakeModel, harm: Harm, error: str, tmp_path: Path
) -> None:
    directory = saved(make, tmp_path / "model")
    harm(directory)
    with pytest.raises(BaseModelError, match=f"^{directory}: {error}"):
        load(directory)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_experts_are_adapted_by_peft(make: MakeModel, tmp_path: Path) -> None:
    def converted() -> PreTrainedModel:
        torch.manual_seed(11)
        model = make().eval()
        convert(model, LayerConversion(experts=4), Gating("adaptive", 0.1))
        return model

    inward = next(iter(moe_blocks(converted()).values())).experts.inward_name
    config = LoraConfig(r=2, target_modules=[], target_parameters=[f"experts.{inward}", "experts.down_proj"])
    adapted = get_peft_model(converted(), config)
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(20):
        loss = adapted(input_ids=tokens(), labels=tokens()).loss
        losses.append(float(loss.detach()))
        (loss + 0.01 * auxiliary_loss(pop_passes(adapted))).backward()
        optimizer.step()
        optimizer.zero_grad()
    adapted.save_pretrained(tmp_path)

    assert losses[-1] < losses[0] - 0.1
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in tmp_path.iterdir()}
    again = PeftModel.from_pretrained(converted(), tmp_path)
    assert torch.equal(logits(again), logits(adapted))
    torch.testing.assert_close(logits(again.merge_and_unload()), logits(adapted), rtol=1e-4, atol=1e-5)


def test_gating_can_be_changed_for_inference() -> None:
    model = gpt2().eval()
    convert(model, LayerConversion(experts=4), Gating("top2"))
    set_gating(model, Gating("top1"))
    logits(model)
    assert all(not routed.routing.is_double.any() for routed in pop_passes(model).values())


def test_unconvertible_model_is_refused() -> None:
    config = OPTConfig(vocab_size=64, hidden_size=16, ffn_dim=24, num_hidden_layers=1, num_attention_heads=2)
    opt = OPTForCausalLM(config)
    with pytest.raises(
        ValueError, match="'opt' cannot be converted to experts; these can: bert, gpt2, llama"
    ):
        convert(opt, LayerConversion(), Gating("top1"))
    with pytest.raises(ValueError, match="'opt' has no experts, as mixtral, switch_transformers models have"):
        adopt(opt, Gating("top1"))
    with pytest.raises(ValueError, match="top2 gating needs at least 2 experts, not 1"):
        convert(gpt2(), LayerConversion(experts=1), Gating("top2"))
