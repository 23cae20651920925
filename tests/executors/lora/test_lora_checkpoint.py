"""A task goes on from its checkpoint, and what is in it is PEFT's own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM

from executors.lora.base_model import load_base
from executors.lora.dataset import Cursor, DatasetRoot, next_indices
from executors.lora.engine import FusedEngine
from executors.lora.lora_task import LoraTask
from executors.lora.shared_base import SharedBase
from executors.lora.task_files import encode_state
from schemas.lora import ALL_LINEAR
from tests.support.checkpoints import load, save

MakeTask = Callable[..., LoraTask]


def test_a_resumed_task_goes_on_to_the_bit(
    base: SharedBase, datasets: DatasetRoot, make_task: MakeTask, tmp_path: Path
) -> None:
    task = make_task("job", dropout=0.25, weight_decay=0.01, dataset="ragged.jsonl", batch_size=5)
    engine = FusedEngine(base, datasets)
    engine.attach(task)
    for _ in range(7):
        engine.step()
    save(tmp_path, base, engine.state("job"), token=3)
    expected = [engine.step() for _ in range(4)]

    state = load(tmp_path, base, "job")
    resumed = FusedEngine(base, datasets)
    resumed.attach(task, state)
    assert resumed.samples_done("job") == 35
    assert [resumed.step() for _ in range(4)] == expected
    assert torch.equal(resumed.state("job").parameters, engine.state("job").parameters)


@pytest.mark.parametrize("all_linear", [False, True], ids=["named", "all-linear"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_peft_gives_same_logits_with_adapter(
    family: str,
    all_linear: bool,
    datasets: DatasetRoot,
    make_task: MakeTask,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    directory = request.getfixturevalue(f"{family}_directory")
    base = load_base(directory)
    targets = {"target_modules": ("c_attn", "c_fc")} if family == "gpt2" else {}
    if all_linear:
        targets = {"target_modules": (ALL_LINEAR,)}
    task = make_task("job", **targets)
    engine = FusedEngine(base, datasets)
    engine.attach(make_task("other", seed=1, dataset="ragged.jsonl", **targets))
    engine.attach(task)
    for _ in range(3):
        engine.step()
    path = save(tmp_path, base, engine.state("job"))
    seen: list[torch.Tensor] = []
    hook = base.model.get_output_embeddings().register_forward_hook(lambda *call: seen.append(call[2]))
    engine.step(["other", "job"])
    hook.remove()

    plain = AutoModelForCausalLM.from_pretrained(directory).eval()
    with datasets.open(task.dataset) as dataset, torch.no_grad():
        indices, _ = next_indices(len(dataset), task.seed, Cursor(0, 6), 2)
        input_ids = torch.tensor(
            [dataset[i].tokenize(base.tokenizer, task.sequence_length).token_ids for i in indices]
        )
        untuned = plain(input_ids=input_ids).logits[:, :-1].flatten(0, 1)
        tuned = PeftModel.from_pretrained(plain, path)(input_ids=input_ids).logits[:, :-1].flatten(0, 1)
    assert (tuned - untuned).abs().max() > 0.1
    torch.testing.assert_close(seen[0].flatten(0, -2)[-len(tuned) :], tuned, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gpt2", "grouped_query"])
def test_all_linear_layers_are_those_of_peft(
    family: str, make_task: MakeTask, request: pytest.FixtureRequest
) -> None:
    directory = request.getfixturevalue(f"{family}_directory")
    layout = load_base(directory).layout(make_task("job", target_modules=(ALL_LINEAR,)))
    config = LoraConfig(r=4, target_modules=ALL_LINEAR, task_type="CAUSAL_LM")
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(directory), config)
    names = {
        name.removeprefix("base_model.model.")
        for name, module in adapted.named_modules()
        if isinstance(module, LoraLayer)
    }
    assert set(layout.sites) == names


def test_adapter_names_base_by_users_address(
    llama_directory: Path, make_task: MakeTask, datasets: DatasetRoot
) -> None:
    for address, named in (("acme/tiny-llama", "acme/tiny-llama"), (None, llama_directory.name)):
        base = load_base(llama_directory, address=address)
        engine = FusedEngine(base, datasets)
        engine.attach(make_task("job"))
        files = encode_state(engine.state("job"), base)
        assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == named
        assert not any(str(llama_directory.parent).encode() in content for content in files.values())


def test_no_file_is_a_pickle(
    base: SharedBase, engine: FusedEngine, make_task: MakeTask, tmp_path: Path
) -> None:
    engine.attach(make_task("job"))
    path = save(tmp_path, base, engine.state("job"))
    assert sorted(file.name for file in path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
        "optimizer.safetensors",
        "training_state.json",
    ]
    for file in path.glob("*.json"):
        json.loads(file.read_text())


def test_a_checkpoint_of_another_base_is_refused(
    base: SharedBase,
    grouped_query_directory: Path,
    engine: FusedEngine,
    make_task: MakeTask,
    tmp_path: Path,
) -> None:
    engine.attach(make_task("job"))
    save(tmp_path, base, engine.state("job"))
    with pytest.raises(ValueError, match="do not fit the base model"):
        load(tmp_path, load_base(grouped_query_directory), "job")
