"""Models that jobs train: what is loaded of which directory, and what is left of it."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from executors.gang.job_models import ModelError
from executors.lora.records import LabelledRecords, TextRecords
from executors.moe.block import moe_blocks
from executors.moe.conversion.convert import LayerConversion, convert
from executors.moe.conversion.storage import MoeDescription, load, save
from executors.moe.gating import Gating
from executors.moe.training.model import load_model, records_of
from executors.moe.training.objective import Label, NextToken, Translation
from schemas.experts.workload import MoeTrainWorkload
from tests.support.trained_ranks import module_of, sequence_of, tokenizer_of_its_size

EVERYWHERE = {"experts": 4, "noise": 0.5}


def workload(**fields: Any) -> MoeTrainWorkload:
    values = {"work_samples": 8, "model": "m", "dataset": {"path": "d.jsonl", "samples": 8}, **fields}
    return MoeTrainWorkload.model_validate_json(json.dumps(values))


def directory_of(family: str, folder: Path) -> Path:
    module_of(family).save_pretrained(folder)
    tokenizer_of_its_size().save_pretrained(folder)
    return folder


def logits(module: nn.Module) -> Tensor:
    tokens = torch.arange(1, 9)[None]
    more = {"decoder_input_ids": tokens[:, :4]} if getattr(module.config, "is_encoder_decoder", 0) else {}
    with torch.no_grad():
        outputs: Tensor = module.eval()(input_ids=tokens, **more).logits
    return outputs


def written(files: dict[str, bytes], folder: Path) -> PreTrainedModel:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return load(folder)[0]


@pytest.mark.parametrize(
    ("family", "conversion", "objective", "records"),
    [
        ("gpt2", EVERYWHERE | {"every": 2}, NextToken, TextRecords),
        ("llama", EVERYWHERE, NextToken, TextRecords),
        ("bert", EVERYWHERE, Label, LabelledRecords),
        ("mixtral", None, NextToken, TextRecords),
        ("switch", None, Translation, TextRecords),
    ],
)
def test_trained_model_loads_as_service(
    tmp_path: Path,
    family: str,
    conversion: dict[str, Any] | None,
    objective: type,
    records: type,
) -> None:
    directory = directory_of(family, tmp_path / "m")
    model = load_model(directory, workload(conversion=conversion, gating={"mode": "top2"}))
    assert isinstance(model.objective, objective)
    assert isinstance(records_of(directory, "m"), records)
    loss = model.objective.loss(model.module, [sequence_of(family, 0)], torch.device("cpu"))
    loss.backward()
    trained = {
        name: parameter.detach() - 0.01 * (0 if parameter.grad is None else parameter.grad)
        for name, parameter in model.module.named_parameters()
    }
    again = load_model(directory, workload(conversion=conversion, gating={"mode": "top2"}))
    before = logits(again.module)
    again.fill(trained)
    served = written(again.files(), tmp_path / "result")
    assert {block.gating.mode for block in moe_blocks(served).values()} == {"top2"}
    torch.testing.assert_close(logits(served), logits(again.module))
    assert not torch.allclose(logits(served), before, atol=1e-4)
    assert again.adapter_files() is None


@pytest.mark.parametrize(
    ("family", "targets", "trained"),
    [
        ("llama", ["down_proj", "q_proj"], ["mlp.experts.lora_A", "q_proj.lora_B"]),
        ("mixtral", ["experts.gate_up_proj", "router"], ["experts.lora_A", "router.lora_B"]),
        # A classifier's head is trained, too.
        ("bert", ["experts.up_proj"], ["experts.lora_A", "classifier.modules_to_save"]),
    ],
)
def test_adapter_covers_targets_and_is_merged(
    tmp_path: Path, family: str, targets: list[str], trained: list[str]
) -> None:
    directory = directory_of(family, tmp_path / "m")
    conversion = None if family == "mixtral" else EVERYWHERE
    model = load_model(
        directory,
        workload(conversion=conversion, adapter={"rank": 2, "target_modules": targets}),
    )
    changed = {
        name: parameter.detach() + 0.05
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad
    }
    for part in trained:
        assert any(part in name for name in changed), changed.keys()
    before = logits(model.module)
    model.fill(changed)
    expected = logits(model.module)
    assert not torch.allclose(expected, before, atol=1e-3)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= (model.adapter_files() or {}).keys()
    served = written(model.files(), tmp_path / "result")
    torch.testing.assert_close(logits(served), expected, rtol=1e-4, atol=1e-4)


def test_random_experts_depend_on_seed_alone(tmp_path: Path) -> None:
    directory = directory_of("llama", tmp_path / "m")

    def experts(seed: int, **fields: Any) -> Tensor:
        told = workload(conversion={"experts": 4, **fields}, hyperparameters={"seed": seed})
        model = load_model(directory, told).module
        return next(iter(moe_blocks(model).values())).experts.down_proj.detach()

    drawn = experts(1, initialization="random")
    assert torch.equal(drawn, experts(1, initialization="random"))
    assert not torch.equal(drawn, experts(2, initialization="random"))
    dense = module_of("llama").get_parameter("model.layers.0.mlp.down_proj.weight").detach()
    assert torch.equal(experts(1, noise=0.0), dense.expand(4, -1, -1))
    correlation = torch.corrcoef(torch.stack([drawn[0].flatten(), dense.flatten()]))[0, 1]
    assert abs(float(correlation)) < 0.2


@pytest.mark.parametrize(
    ("stated", "expected"), [({}, "all"), ({"threshold_on": "chosen"}, "chosen")], ids=["unstated", "stated"]
)
def test_earlier_model_is_trained_on_as_before(tmp_path: Path, stated: Any, expected: str) -> None:
    # Its moe.json has no `threshold_on`: it was trained with T on all probabilities.
    directory = directory_of("llama", tmp_path / "m")
    model, conversion = module_of("llama"), LayerConversion(experts=4)
    convert(model, conversion, Gating("adaptive", 0.2, threshold_on="all"))
    save(model, MoeDescription(gating=Gating("adaptive", 0.2), conversion=conversion), directory)
    described = json.loads((directory / "moe.json").read_text())
    del described["gating"]["threshold_on"]
    (directory / "moe.json").write_text(json.dumps(described))
    gating = {"mode": "adaptive", "threshold": 0.3, **stated}
    trained = load_model(directory, workload(gating=gating))
    assert trained.description.gating == Gating("adaptive", 0.3, threshold_on=expected)


def test_all_ranks_load_the_same(tmp_path: Path) -> None:
    directory = directory_of("llama", tmp_path / "m")
    told = workload(conversion=EVERYWHERE, adapter={"target_modules": ["down_proj", "v_proj"]})
    one, other = load_model(directory, told).module, load_model(directory, told).module
    for (name, mine), (_, theirs) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_masked_language_model_is_refused(tmp_path: Path) -> None:
    directory = directory_of("bert", tmp_path / "m")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    with pytest.raises(ModelError, match=r"^m: no causal .*: its architecture is BertForMaskedLM$"):
        records_of(directory, "m")


def test_model_with_too_few_experts_is_refused(tmp_path: Path) -> None:
    directory = directory_of("llama", tmp_path / "m")
    model, conversion, gating = module_of("llama"), LayerConversion(experts=1), Gating("top1")
    convert(model, conversion, gating)
    save(model, MoeDescription(gating=gating, conversion=conversion), directory)
    assert load_model(directory, workload(gating={"mode": "top1"})).description.gating.mode == "top1"
    with pytest.raises(ValueError, match=r"^m: gating top2 needs two experts, a layer has 1"):
        load_model(directory, workload(gating={"mode": "top2"}))


def test_stock_model_with_experts_is_not_converted(tmp_path: Path) -> None:
    directory = directory_of("mixtral", tmp_path / "m")
    with pytest.raises(ModelError, match=r"^m: it has experts already, so there is nothing to convert"):
        load_model(directory, workload(conversion=EVERYWHERE))


def test_experts_beyond_host_memory_are_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = directory_of("llama", tmp_path / "m")
    told = workload(conversion={"experts": 4}, gating={"mode": "top2"})
    converted = load_model(directory, told)
    experts = [block.get_submodule("experts") for block in moe_blocks(converted.module).values()]
    needed_bytes = sum(each.nbytes for module in experts for each in module.parameters())
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=needed_bytes))
    assert load_model(directory, told).description == converted.description
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=needed_bytes - 1))
    with pytest.raises(ValueError, match=r"its experts need .* GiB of the host's memory"):
        load_model(directory, told)
