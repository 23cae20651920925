"""A base model that is unfit is refused at start, by the file that is at fault and with what to do."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, MistralConfig, MistralForCausalLM

from executors.gang.job_models import ModelError, model_directory
from executors.lora.base_model import BaseModelError, load_base
from tests.support.unfit_models import (
    CONFIGURATIONS,
    FAULTS,
    NO_VOCABULARY,
    Harm,
    cast,
    configure,
    cut,
    make_folder,
    remove_tokenizer,
)

BROKEN_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}\n{% for x in %}"
STRICT_TEMPLATE = (
    """{% if messages[0].role != "system" %}{{ raise_exception("needs a system turn") }}{% endif %}"""
)


@pytest.fixture
def directory(llama_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama_directory, tmp_path / "model"))


@pytest.fixture
def sharded(llama_directory: Path, tmp_path: Path) -> Path:
    """The model in several files."""
    folder = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(llama_directory).save_pretrained(folder, max_shard_size="40KB")
    AutoTokenizer.from_pretrained(llama_directory).save_pretrained(folder)
    return folder


def set_template(folder: Path, template: object) -> None:
    fields = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(fields | {"chat_template": template}))


@pytest.mark.parametrize(("harm", "error"), FAULTS.values(), ids=FAULTS.keys())
def test_weights_that_are_not_whole_or_quantised(directory: Path, harm: Harm, error: str) -> None:
    harm(directory)
    with pytest.raises(BaseModelError, match=f"^{directory}: {error}"):
        load_base(directory)
    # The error of a job that names its model states this too, but not the executor's path to it.
    with pytest.raises(ModelError, match=f"^model: {error}"):
        model_directory(directory.parent, "model")


def test_a_missing_shard(sharded: Path) -> None:
    assert load_base(sharded).layers == 2
    shards = sorted(sharded.glob("model-*.safetensors"))
    assert len(shards) > 1
    shards[1].unlink()
    error = (
        rf"{shards[1].name}: is missing, 1 of the {len(shards)} shards that model\.safetensors\.index\.json"
    )
    with pytest.raises(BaseModelError, match=error):
        load_base(sharded)


def test_a_shard_cut_short(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[-1]
    cut(shard, shard.stat().st_size - 1)
    with pytest.raises(BaseModelError, match=f"{shard.name}: is cut short"):
        load_base(sharded)


def test_an_index_without_shards(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(BaseModelError, match=r"model\.safetensors\.index\.json: names no shards"):
        load_base(sharded)


OTHER_FILES = (
    "../../../etc/passwd",
    "/etc/passwd",
    "..",
    "",
    "a\\b",
    "shards/model.safetensors",
    300 * "a",
    "a\0b",
    5,
)


@pytest.mark.parametrize("name", OTHER_FILES, ids=lambda name: json.dumps(name)[:24])
def test_index_naming_other_files_is_refused(sharded: Path, name: object) -> None:
    index = sharded / "model.safetensors.index.json"
    fields = json.loads(index.read_text())
    fields["weight_map"]["lm_head.weight"] = name
    index.write_text(json.dumps(fields))
    error = r"model\.safetensors\.index\.json: names .*, which is not the name of a file in its own folder"
    with pytest.raises(BaseModelError, match=f"^{sharded}: {error}"):
        load_base(sharded)


def test_a_folder_for_a_shard(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[-1]
    make_folder(shard)
    with pytest.raises(BaseModelError, match=f"{shard.name}: is a folder, not a file: download it again$"):
        load_base(sharded)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_matrices_of_integers_without_a_quantisation_config(directory: Path, dtype: torch.dtype) -> None:
    cast(directory, "_proj.weight", dtype)
    name = {torch.int8: "I8", torch.uint8: "U8", torch.int32: "I32"}[dtype]
    error = (
        r"model\.safetensors: 14 weights are not floating point numbers, such as "
        rf"model\.layers\.0\.mlp\.down_proj\.weight, which is {name}: quantised weights cannot be trained: "
        "use the model's own, in bfloat16 or float32$"
    )
    with pytest.raises(BaseModelError, match=f"^{directory}: {error}"):
        load_base(directory)


def test_integer_bias_is_refused(gpt2_directory: Path, tmp_path: Path) -> None:
    """GPT-2's attention has a mask that is called `bias`, which older versions saved."""
    folder = Path(shutil.copytree(gpt2_directory, tmp_path / "gpt2"))
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 128, 128, dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert load_base(folder).layers == 2
    cast(folder, "c_attn.bias", torch.int8)
    with pytest.raises(BaseModelError, match=r"2 weights are not .* transformer\.h\.0\.attn\.c_attn\.bias, "):
        load_base(folder)


def test_floating_point_weights_of_any_width(directory: Path) -> None:
    cast(directory, "_proj.weight", torch.float16)
    cast(directory, "norm.weight", torch.float64)
    assert load_base(directory).layers == 2


def test_weights_without_tokenizer_files(directory: Path) -> None:
    remove_tokenizer(directory)
    with pytest.raises(BaseModelError, match=f"^{directory}: {NO_VOCABULARY}"):
        load_base(directory)


@pytest.mark.parametrize("called", ["LlamaTokenizer", "GPT2Tokenizer", "BertTokenizer", None])
def test_a_tokenizer_configuration_without_a_vocabulary(directory: Path, called: str | None) -> None:
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": called}))
    with pytest.raises(BaseModelError, match=f"^{directory}: {NO_VOCABULARY}"):
        load_base(directory)


SYNTAX_ERROR = "the chat template has a syntax error in line 2: .*: correct it, or use the base model's own"


def test_a_chat_template_with_a_syntax_error(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text(BROKEN_TEMPLATE)
    with pytest.raises(BaseModelError, match=rf"^{directory}: chat_template\.jinja: {SYNTAX_ERROR}"):
        load_base(directory)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        (BROKEN_TEMPLATE, SYNTAX_ERROR),
        ([{"name": "default", "template": BROKEN_TEMPLATE}], SYNTAX_ERROR),
        ("\n{{ messages | nonsense }}", SYNTAX_ERROR),
        (5, "the chat template is of type int, not text"),
    ],
    ids=["text", "named", "filter", "number"],
)
def test_an_invalid_chat_template_in_the_tokenizers_configuration(
    directory: Path, template: object, error: str
) -> None:
    set_template(directory, template)
    with pytest.raises(BaseModelError, match=rf"^{directory}: tokenizer_config\.json: {error}"):
        load_base(directory)


@pytest.mark.parametrize("template", [STRICT_TEMPLATE, "{{ messages[7].content }}", "{{ 1 / 0 }}"])
def test_a_valid_chat_template_may_refuse_chats(directory: Path, template: str) -> None:
    (directory / "chat_template.jinja").write_text(template)
    assert load_base(directory).layers == 2


def test_tokenizer_larger_than_embeddings_is_refused(directory: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save_pretrained(directory)
    with pytest.raises(BaseModelError, match="the tokenizer has 322 tokens, the model 320 embeddings"):
        load_base(directory)


def test_a_damaged_tokenizer(directory: Path) -> None:
    cut(directory / "tokenizer.json", 900)
    with pytest.raises(BaseModelError, match="the tokenizer cannot be loaded"):
        load_base(directory)


FIELDS: tuple[dict[str, object], ...] = (
    {"hidden_act": "nonsense"},
    {"hidden_act": None},
    {"rope_parameters": {"rope_type": "nonsense", "rope_theta": 10_000.0}},
    {"rope_parameters": 5},
    {"num_attention_heads": 0},
    {"num_attention_heads": -1},
    {"num_key_value_heads": 0},
    {"num_key_value_heads": 3},
    {"vocab_size": None},
    {"vocab_size": 0},
    {"vocab_size": "many"},
    {"hidden_size": 7},
    {"hidden_size": [16]},
    {"num_hidden_layers": -1},
    {"num_hidden_layers": 1},
    {"num_hidden_layers": 3},
    {"intermediate_size": 17},
    {"model_type": "nonsense"},
    {"model_type": 5},
    {"rms_norm_eps": "small"},
    {"head_dim": 0},
    {"max_position_embeddings": "long"},
    {"max_position_embeddings": 0},
    {"max_position_embeddings": 1},
    {"dtype": "nonsense"},
    {"id2label": 5},
    {"pad_token_id": 10**9},
)


@pytest.mark.parametrize(("harm", "error"), CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_a_configuration_of_no_model_or_another_one(directory: Path, harm: Harm, error: str) -> None:
    harm(directory)
    with pytest.raises(BaseModelError, match=f"^{directory}: {error}"):
        load_base(directory)


@pytest.mark.parametrize("fields", FIELDS, ids=[json.dumps(fields) for fields in FIELDS])
def test_a_configuration_with_a_bad_field(directory: Path, fields: dict[str, object]) -> None:
    configure(directory, **fields)
    with pytest.raises(BaseModelError, match=rf"^{directory}: .*config\.json"):
        load_base(directory)


@pytest.mark.parametrize("window", [0, 1])
def test_a_window_that_no_sequence_fits_into(tmp_path: Path, llama_directory: Path, window: int) -> None:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = MistralConfig(vocab_size=320, num_key_value_heads=2, sliding_window=window, **size)
    MistralForCausalLM(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(llama_directory).save_pretrained(tmp_path)
    with pytest.raises(BaseModelError, match=rf"config\.json: .*sliding_window {window}"):
        load_base(tmp_path)


def test_surplus_weights_that_transformers_ignores(directory: Path) -> None:
    """Older versions saved the frequencies of rotary positions with each layer."""
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    assert load_base(directory).layers == 2


def test_language_head_is_replaced_by_classifier_head(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    labels = {"0": "no", "1": "yes"}
    configure(directory, architectures=["LlamaForSequenceClassification"], id2label=labels)
    assert load_base(directory).objective.task_type == "SEQ_CLS"
