"""Sequence classifiers as base models: what the engine computes is what transformers and PEFT compute."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from executors.lora.base_model import BaseModelError, load_base
from executors.lora.dataset import Cursor, DatasetError, DatasetRoot, next_indices
from executors.lora.engine import FusedEngine
from executors.lora.lora_task import LoraTask
from executors.lora.shared_base import SharedBase
from tests.support.checkpoints import load, save
from tests.support.classifiers import (
    FAMILIES,
    LONGEST_TOKENS,
    NAMES,
    TARGETS,
    write_classifier,
    write_labelled,
)

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}

MakeTask = Callable[..., LoraTask]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("classifiers")
    return {family: write_classifier(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> DatasetRoot:
    folder = tmp_path_factory.mktemp("labelled")
    write_labelled(folder / "colours.jsonl")
    write_labelled(folder / "more.jsonl", seed=6)
    return DatasetRoot(folder)


@pytest.fixture(scope="module")
def make_classifier(make_task: MakeTask) -> Callable[..., LoraTask]:
    def make(job_id: str, family: str, **fields: object) -> LoraTask:
        defaults = {"dataset": "colours.jsonl", "batch_size": 5, "target_modules": TARGETS[family]}
        return make_task(job_id, **(defaults | fields))

    return make


def plain_batch(directory: Path, base: SharedBase, task: LoraTask, labelled: DatasetRoot, done: int) -> dict:
    """The batch that the task takes after so many samples, padded, as a user of transformers has it."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    with labelled.open(task.dataset, form=base.objective.records) as dataset:
        indices, _ = next_indices(len(dataset), task.seed, Cursor(0, done), task.batch_size)
        records = [dataset[index] for index in indices]
    encoded = tokenizer(
        [record.text for record in records],
        truncation=True,
        max_length=task.sequence_length,
        padding=True,
        return_tensors="pt",
    )
    return {**encoded, "labels": torch.tensor([record.label for record in records])}


def reference_gradients(model: PeftModel) -> dict[str, Tensor]:
    return {
        name.removeprefix("base_model.model.").replace("modules_to_save.", "").replace(".default", ""): (
            parameter.grad
        )
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_match_transformers_and_peft(
    family: str,
    directories: dict[str, Path],
    labelled: DatasetRoot,
    make_classifier: MakeTask,
    tmp_path: Path,
) -> None:
    base = load_base(directories[family])
    engine = FusedEngine(base, labelled)
    task = make_classifier("job", family, max_gradient_norm=1e6)
    engine.attach(make_classifier("other", family, rank=2, seed=1, dataset="more.jsonl"))
    engine.attach(task)
    engine.step()
    checkpoint = save(tmp_path, base, engine.state("job"))
    loss = engine.step()["job"]

    plain = AutoModelForSequenceClassification.from_pretrained(
        directories[family], attn_implementation="eager"
    )
    reference = PeftModel.from_pretrained(plain, checkpoint, is_trainable=True).eval()
    expected = reference(**plain_batch(directories[family], base, task, labelled, task.batch_size)).loss
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    found = engine.gradients("job")
    assert any(name.startswith(base.objective.head_name) for name in found)
    torch.testing.assert_close(found, reference_gradients(reference), **TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_loads_adapter_with_head(
    family: str,
    directories: dict[str, Path],
    labelled: DatasetRoot,
    make_classifier: MakeTask,
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
) -> None:
    base = load_base(directories[family])
    engine = FusedEngine(base, labelled)
    task = make_classifier("job", family)
    engine.attach(task)
    for _ in range(3):
        engine.step()
    path = save(tmp_path, base, engine.state("job"))
    config = json.loads((path / "adapter_config.json").read_text())
    assert (config["task_type"], config["modules_to_save"]) == ("SEQ_CLS", [base.objective.head_name])
    seen: list[Tensor] = []
    hook = base.heads[0].register_forward_hook(lambda *call: seen.append(call[2].flatten(0, -2)))
    engine.step()
    hook.remove()

    plain = AutoModelForSequenceClassification.from_pretrained(directories[family]).eval()
    batch = plain_batch(directories[family], base, task, labelled, 3 * task.batch_size)
    with torch.no_grad():
        untuned = plain(**batch).logits
        recwarn.clear()
        tuned = PeftModel.from_pretrained(plain, path)(**batch).logits
    assert not [each for each in recwarn if "missing adapter keys" in str(each.message)]
    assert (tuned - untuned).abs().max() > 0.1
    torch.testing.assert_close(seen[0], tuned, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_task_has_a_head_of_its_own(
    family: str, directories: dict[str, Path], labelled: DatasetRoot, make_classifier: MakeTask
) -> None:
    base = load_base(directories[family])
    tasks = [
        make_classifier("one", family),
        make_classifier("two", family, seed=2, dataset="more.jsonl", batch_size=3, dropout=0.3),
    ]
    together = FusedEngine(base, labelled)
    for task in tasks:
        together.attach(task)
    losses = [together.step() for _ in range(3)]
    for task in tasks:
        alone = FusedEngine(base, labelled)
        alone.attach(task)
        for step in losses:
            assert step[task.job_id] == pytest.approx(alone.step()[task.job_id], rel=1e-5)
        torch.testing.assert_close(together.gradients(task.job_id), alone.gradients(task.job_id), **TOLERANCE)
    head = next(iter(base.head_tensors))
    states = [base.layout(task).split(together.state(task.job_id).parameters)[head] for task in tasks]
    assert not torch.equal(*states)
    assert not torch.equal(states[0], base.head_tensors[head])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_task_goes_on_to_the_bit(
    family: str,
    directories: dict[str, Path],
    labelled: DatasetRoot,
    make_classifier: MakeTask,
    tmp_path: Path,
) -> None:
    base = load_base(directories[family])
    task = make_classifier("job", family, dropout=0.25, weight_decay=0.01)
    engine = FusedEngine(base, labelled)
    engine.attach(task)
    for _ in range(3):
        engine.step()
    save(tmp_path, base, engine.state("job"))
    expected = [engine.step() for _ in range(3)]
    resumed = FusedEngine(base, labelled)
    resumed.attach(task, load(tmp_path, base, "job"))
    assert [resumed.step() for _ in range(3)] == expected
    assert torch.equal(resumed.state("job").parameters, engine.state("job").parameters)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_is_no_place_for_an_adapter(
    family: str, directories: dict[str, Path], make_classifier: MakeTask
) -> None:
    base = load_base(directories[family])
    assert not [name for name in base.sites if name.startswith(base.objective.plain)]
    assert len(base.sites) == {"llama": 7, "gpt2": 4, "bert": 6, "roberta": 6}[family] * 2
    assert base.longest_sequence_tokens == LONGEST_TOKENS
    with pytest.raises(ValueError, match="no layer is called"):
        base.layout(make_classifier("job", family, target_modules=(base.objective.head_name,)))


def test_long_text_is_cut_between_special_tokens(directories: dict[str, Path], labelled: DatasetRoot) -> None:
    base = load_base(directories["bert"])
    tokenizer = base.tokenizer
    record = base.objective.records.parse({"text": "sky " * 30, "label": 2})
    sequence = record.tokenize(tokenizer, 7)
    assert len(sequence.token_ids) == 7
    assert (sequence.token_ids[0], sequence.token_ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert (sequence.loss_rows, sequence.labels, sequence.loss_tokens) == (range(1), (2,), 1)


def test_decoder_pools_last_token_before_padding(directories: dict[str, Path]) -> None:
    base = load_base(directories["llama"])
    record = base.objective.records.parse({"text": "sky sea <pad>", "label": "blue"})
    sequence = record.tokenize(base.tokenizer, 24)
    assert len(sequence.token_ids) == 3
    assert (sequence.loss_rows, sequence.labels) == (range(1, 2), (2,))
    model = AutoModelForSequenceClassification.from_pretrained(directories["llama"])
    ids = torch.tensor([sequence.token_ids])
    with torch.no_grad():
        logits = base.objective.logits(base.model, model.model(ids).last_hidden_state[0, [1]])
        torch.testing.assert_close(logits, model(ids).logits)


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"text": "sky", "label": 3}, "label: 3 is not in 0 to 2"),
        ({"text": "sky", "label": -1}, "label: -1 is not in 0 to 2"),
        ({"text": "sky", "label": True}, "label: is true or false, expected a whole number, or the name"),
        (
            {"text": "sky", "label": 1.0},
            "label: is a number, expected a whole number, or the name of a label",
        ),
        ({"text": "sky", "label": None}, "label: is null, expected a whole number, or the name of a label"),
        ({"text": "sky", "label": 10**4_000}, "label: 1000000"),
        ({"text": "sky", "label": "\ud83d"}, "label: '\\ud83d' is not a label of the base model"),
        (
            {"text": "sky", "label": "grey"},
            "label: 'grey' is not a label of the base model; it has red, green",
        ),
        ({"text": "sky"}, 'label: is missing: expected {"text": ..., "label": ...}'),
        ({"text": "", "label": 1}, "text: is empty"),
        ({"text": None, "label": 1}, "text: is null, expected a string"),
        (
            {"text": "sky", "label": 1, "more": 2},
            "more: unknown field: remove it, or name the fields to read",
        ),
        ({"prompt": "sky", "completion": "blue"}, 'text: is missing: expected {"text": ..., "label": ...}'),
        (["sky", 1], 'is an array, expected a JSON object such as {"text": ..., "label": ...}'),
    ],
)
def test_unlearnable_record_names_line_and_field(
    record: object, error: str, directories: dict[str, Path], make_classifier: MakeTask, tmp_path: Path
) -> None:
    write_labelled(tmp_path / "bad.jsonl", records=2)
    with (tmp_path / "bad.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    engine = FusedEngine(load_base(directories["llama"]), DatasetRoot(tmp_path))
    with pytest.raises(DatasetError) as caught:
        engine.attach(make_classifier("job", "llama", dataset="bad.jsonl"))
    assert str(caught.value).startswith(f"bad.jsonl, line 3: {error}")


def test_a_language_model_takes_no_labels(
    base: SharedBase, labelled: DatasetRoot, make_task: MakeTask
) -> None:
    with pytest.raises(ValueError, match=r"line 1: label: expected .* the base model is a language model"):
        FusedEngine(base, labelled).attach(make_task("job", dataset="colours.jsonl"))


def test_missing_head_is_made_alike_each_time(tmp_path: Path) -> None:
    directory = write_classifier(tmp_path / "model", "roberta")
    weights = load_file(directory / "model.safetensors")
    body = {name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")}
    save_file(body, directory / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(3)
    one = load_base(directory).head_tensors
    torch.manual_seed(4)
    two = load_base(directory).head_tensors
    assert set(one) == set(weights) - set(body)
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert one["classifier.dense.weight"].std() == pytest.approx(0.3, rel=0.2)
    assert float(one["classifier.dense.bias"].abs().max()) == 0.0


def test_classifier_without_body_part_is_refused(tmp_path: Path) -> None:
    directory = write_classifier(tmp_path / "model", "bert")
    weights = load_file(directory / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BaseModelError, match=r"2 weights .* missing, such as bert\.pooler\.dense"):
        load_base(directory)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"problem_type": "regression"}, "problem_type regression, 3 labels: a classifier must choose one"),
        ({"problem_type": "multi_label_classification"}, "problem_type multi_label_classification, 3 labels"),
        ({"id2label": {"1": "a", "2": "b"}}, "id2label does not number the labels from 0 to 1"),
        ({"id2label": {"0": "only"}}, "problem_type single_label_classification, 1 labels"),
        (
            {"architectures": ["LlamaForTokenClassification"]},
            "its architecture is LlamaForTokenClassification",
        ),
        ({"architectures": ["LlamaModel"]}, "its architecture is LlamaModel"),
        ({"id2label": {str(number): str(number) for number in range(5)}}, "other shapes than config"),
    ],
)
def test_model_with_other_labels_is_refused(fields: dict[str, object], error: str, tmp_path: Path) -> None:
    directory = write_classifier(tmp_path / "model", "llama")
    config = json.loads((directory / "config.json").read_text()) | fields
    config.pop("label2id")
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(BaseModelError) as caught:
        load_base(directory)
    assert str(caught.value).startswith(f"{directory}: ")
    assert error in str(caught.value)


def test_an_encoder_is_no_language_model(tmp_path: Path) -> None:
    directory = write_classifier(tmp_path / "model", "roberta")
    config = json.loads((directory / "config.json").read_text())
    for architecture, error in (
        ("RobertaForMaskedLM", "its architecture is RobertaForMaskedLM"),
        ("RobertaForCausalLM", "RobertaForCausalLM looks ahead"),
    ):
        (directory / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
        with pytest.raises(BaseModelError, match=error):
            load_base(directory)


def test_a_toy_task_is_learned(
    directories: dict[str, Path], labelled: DatasetRoot, make_classifier: MakeTask
) -> None:
    base = load_base(directories["roberta"])
    engine = FusedEngine(base, labelled)
    engine.attach(make_classifier("job", "roberta", batch_size=12, total_samples=12 * 40))
    losses = [engine.step()["job"] for _ in range(40)]
    assert losses[0] > 1.0
    assert max(losses[-4:]) < 0.1


def test_names_of_labels_are_the_models(directories: dict[str, Path]) -> None:
    assert load_base(directories["gpt2"]).objective.records.names == NAMES
