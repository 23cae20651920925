"""Tiny random sequence classifiers, and texts with labels that they can learn."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

NAMES = ("red", "green", "blue")
"""Names of the labels."""
TOPICS = (("rose", "blood", "brick"), ("grass", "leaf", "moss"), ("sky", "sea", "ice"))
"""Words that only texts of one label have."""
TARGETS = {
    "llama": ("q_proj", "v_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj"),
    "bert": ("query", "value", "dense"),
    "roberta": ("query", "value", "dense"),
}
"""Layers to adapt, by family. The last of an encoder also matches layers that get no adapter."""
FAMILIES = tuple(TARGETS)
LONGEST_TOKENS = 40

_NOISE = tuple(f"word{number}" for number in range(20))
_SPECIAL = {
    "llama": {"pad_token": "<pad>", "unk_token": "<unk>"},
    "gpt2": {"pad_token": "<pad>", "unk_token": "<unk>"},
    "bert": {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"},
    "roberta": {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "cls_token": "<s>",
        "sep_token": "</s>",
    },
}


def write_classifier(
    directory: Path, family: str, layers: int = 2, seed: int = 1, **settings: object
) -> Path:
    """Save a random classifier of three labels, whose head is large enough to matter."""
    tokenizer = _tokenizer(family)
    torch.manual_seed(seed)
    model = _model(family, layers, tokenizer, settings)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def write_labelled(
    path: Path, records: int = 48, seed: int = 5, topics: Sequence[Sequence[str]] = TOPICS
) -> None:
    """Write texts of noise with a few words that determine their label; some labels by number, others by
    name."""
    draw = random.Random(seed)
    lines = []
    for _ in range(records):
        number = draw.randrange(len(topics))
        text = draw.choices(_NOISE, k=draw.randint(1, 5)) + draw.choices(topics[number], k=3)
        draw.shuffle(text)
        label = number if draw.random() < 0.5 else NAMES[number]
        lines.append(json.dumps({"text": " ".join(text), "label": label}) + "\n")
    path.write_text("".join(lines))


def _tokenizer(family: str) -> PreTrainedTokenizerFast:
    special = _SPECIAL[family]
    words = [*dict.fromkeys(special.values()), *_NOISE, *(word for topic in TOPICS for word in topic)]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, special["unk_token"])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if "cls_token" in special:
        first, last = special["cls_token"], special["sep_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            special_tokens=[(first, words.index(first)), (last, words.index(last))],
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def _model(
    family: str, layers: int, tokenizer: PreTrainedTokenizerFast, settings: dict[str, object]
) -> PreTrainedModel:
    common = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "id2label": dict(enumerate(NAMES)),
        "label2id": {name: number for number, name in enumerate(NAMES)},
        "initializer_range": 0.3,
        **settings,
    }
    wide = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": layers, "num_attention_heads": 2}
    config: PretrainedConfig
    match family:
        case "llama":
            config = LlamaConfig(**wide, max_position_embeddings=LONGEST_TOKENS, **common)
            return LlamaForSequenceClassification(config)
        case "gpt2":
            ends = {"bos_token_id": None, "eos_token_id": None}
            config = GPT2Config(
                n_embd=16, n_layer=layers, n_head=2, n_positions=LONGEST_TOKENS, **common, **ends
            )
            return GPT2ForSequenceClassification(config)
        case "bert":
            config = BertConfig(**wide, max_position_embeddings=LONGEST_TOKENS, **common)
            return BertForSequenceClassification(config)
        case "roberta":
            # The first position is the one behind the padding token's number.
            positions = LONGEST_TOKENS + tokenizer.pad_token_id + 1
            config = RobertaConfig(**wide, max_position_embeddings=positions, **common)
            return RobertaForSequenceClassification(config)
    raise AssertionError(family)
