"""Small models of any architecture: its own configuration with small numbers in it."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel

VOCABULARY = 256
LAYERS = 4
MOST_PARAMETERS = 20_000_000
_DEVIATION = 0.2
"""Standard deviation of weights. With transformers' own, 0.02, all scores are nearly zero and attention is
nearly even, which hides soft caps and sinks."""

_SIZES: dict[str, int] = {
    # widths
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "embedding_size", "emb_dim"), 64
    ),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "d_inner"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "mlp_hidden_size"), 32),
    **dict.fromkeys(("block_ff_dim", "shared_intermediate_size", "dense_intermediate_size"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 96),
    # heads
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads",), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"), 2),
    **dict.fromkeys(
        ("head_dim", "global_head_dim", "attention_head_dim", "v_head_dim", "qk_nope_head_dim"), 16
    ),
    **dict.fromkeys(("rotary_dim", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank"), 16),
    # depth
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), LAYERS),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_encoder_layers"), LAYERS),
    # words and places
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "n_words", "entity_vocab_size"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"), 64),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "original_max_position_embeddings"), 16),
    **dict.fromkeys(("attention_window", "local_attention", "window_size"), 16),
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_groups"), 1),
    **dict.fromkeys(("hidden_size_per_layer_input", "per_layer_input_dim"), 16),
    **dict.fromkeys(
        ("n_shared_experts", "num_shared_experts", "num_kv_shared_layers", "first_k_dense_replace"), 1
    ),
    **dict.fromkeys(("expert_ffn_hidden_size", "entity_emb_size"), 32),
    **dict.fromkeys(("attn_layer_period", "expert_layer_period"), 2),
    **dict.fromkeys(("attn_layer_offset", "expert_layer_offset"), 1),
    # recurrences and convolutions
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("linear_num_key_heads", "mamba_n_groups", "n_groups"), 2),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size", "time_step_rank"), 8),
    **dict.fromkeys(("mamba_dt_rank", "chunk_size", "mamba_chunk_size"), 8),
    **dict.fromkeys(("lru_width", "attention_hidden_size"), 64),
    # tokens with a meaning, which default to places in the original's vocabulary
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "mask_token_id": 3,
    "sep_token_id": 2,
    "cls_token_id": 1,
    "image_token_id": 4,
    "image_token_index": 4,
    "video_token_id": 5,
    "audio_token_id": 6,
    "decoder_start_token_id": 1,
}

_VARIED: Mapping[str, Mapping[str, Any]] = {
    "full_attn_idxs": {"full_attn_idxs": [1, 3], "layer_types": ["conv", "full_attention"] * 2},
    "attn_layer_indices": {"attn_layer_indices": [1]},
    "index_local_blocks": {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "mlp_layer_types": ["dense", "sparse"] * 2,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_block_size": 4,
        "index_topk_blocks": 1,
    },
    "attention_types": {"attention_types": [[["global", "local"], LAYERS // 2]]},
}
"""Fields that give a small model each kind of layer, if its default for few layers would not, by a field that
such configurations have."""

_FULL = {
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}
_RECURRENT = {
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 32),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 4),
    "mamba_expand": 2,
    "mamba_d_ssm": 128,
}

_ATTEMPTS: tuple[dict[str, Any], ...] = (
    {},
    _FULL | {"head_dim": 16, "num_key_value_heads": 2},
    _FULL | {"head_dim": 8},
    _FULL | {"head_dim": 8, "num_key_value_heads": 4},
    {"num_key_value_heads": 4, "num_kv_heads": 4, "n_head_kv": 4, "n_kv_heads": 4, "vocab_size": VOCABULARY},
    _RECURRENT,
    _RECURRENT | {"layer_types": ["mamba", "attention"] * 2},
    {"layer_types": ["conv", "full_attention"] * 2},
    {"attention_hidden_size": 128, "attention_head_dim": 32, "num_key_value_heads": 4, "head_dim": 32},
    {"num_key_value_heads": 1},
    {"num_heads": 8, "state_size": 16, "head_dim": 32, "rotary_dim": 16},
    {"intermediate_size": 128, "num_experts_per_tok": 1},
    {"n_group": 2, "topk_group": 2},
)
"""Changes of the sizes, tried in turn if a model cannot be built with them."""


class CannotBuildError(Exception):
    """No small model of an architecture can be made from its configuration; the message states why."""


def small_model(model_type: str, architecture: Any, *, seed: int, **fields: Any) -> PreTrainedModel:
    """Build a model with random weights, float32.

    Args:
        architecture: the class of the model.
        fields: further fields of its configuration.

    Raises:
        CannotBuildError: it cannot be built, or not small.
    """
    first: Exception | None = None
    for config in _configs(model_type, fields):
        try:
            if isinstance(config, Exception):
                raise config
            if not isinstance(config, architecture.config_class):
                config = config.get_text_config()
            with torch.device("meta"):
                size = architecture(config).num_parameters()
            if size > MOST_PARAMETERS:
                raise ValueError(f"the smallest has {size} parameters")
            torch.manual_seed(seed)
            model: PreTrainedModel = architecture(config).float().eval()
            _draw(model, seed)
            with torch.no_grad():
                model(input_ids=torch.tensor([[*range(8, 19), 2]]))
        except Exception as error:
            first = first or error
        else:
            return model
    raise CannotBuildError(f"{type(first).__name__}: {first}") from first


def _configs(model_type: str, fields: Mapping[str, Any]) -> Iterator[PretrainedConfig | Exception]:
    kind = CONFIG_MAPPING[model_type]
    for attempt in _ATTEMPTS:
        try:
            yield _shrunken(kind, attempt, fields)
        except Exception as error:
            yield error


def _shrunken(
    kind: type[PretrainedConfig], forced: Mapping[str, Any], fields: Mapping[str, Any]
) -> PretrainedConfig:
    plain = kind()
    has = {
        name: value
        for name, value in plain.to_dict().items()
        if not isinstance(getattr(kind, name, None), property)
    }
    depth = next((has[name] for name in ("num_hidden_layers", "n_layer") if has.get(name)), None)
    small: dict[str, Any] = {"initializer_range": _DEVIATION} if "initializer_range" in has else {}
    for name, value in has.items():
        if name in kind.sub_configs:
            sub = getattr(plain, name)
            if isinstance(sub, PretrainedConfig):
                small[name] = _shrunken(type(sub), forced, {}).to_dict()
        elif name.endswith("_token_id") and name in _SIZES and (value is not None or name == "pad_token_id"):
            small[name] = _SIZES[name]
        elif type(value) is int and name in _SIZES:
            small[name] = min(_SIZES[name], value)
        elif isinstance(value, list) and depth and len(value) == depth:
            small[name] = _varied(value)
        elif isinstance(value, dict) and "original_max_position_embeddings" in value:
            small[name] = value | {"original_max_position_embeddings": 16}
    for name in _VARIED.keys() & has.keys():
        small |= _VARIED[name]
    small |= {name: value for name, value in forced.items() if name in has}
    return kind(**(small | dict(fields)))


def _varied(layers: list[Any]) -> list[Any]:
    """As few layers as the small model has, with each kind that there is."""
    kinds = [value for number, value in enumerate(layers) if value not in layers[:number]]
    return (kinds * LAYERS)[:LAYERS]


def _draw(model: PreTrainedModel, seed: int) -> None:
    """Give weights that began as zeros, or the same for all, random numbers as well: biases, sinks."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.numel() > 1:
                if not bool(parameter.isfinite().all()):
                    parameter.zero_()
                if float(parameter.std()) == 0.0:
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * _DEVIATION / 2)
