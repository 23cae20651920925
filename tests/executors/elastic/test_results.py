"""Results of a finished job: a model that transformers loads, or an adapter that PEFT loads."""

import json
from hashlib import blake2b

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from schemas.fleet import RunFinished
from tests.support.elastic_nodes import MODEL, Fleet, workload
from tests.support.nodes import CELL


@pytest.mark.long
def test_a_job_of_all_weights_leaves_a_model(fleet: Fleet) -> None:
    fleet.assign("j", 1, [("n1", 1)], workload(16))
    fleet.until(fleet.is_over("j", "n1"))
    (finished,) = fleet.reports(RunFinished)
    assert (finished.adapter_path, finished.adapter_digest) == (None, None)
    model = AutoModelForCausalLM.from_pretrained(fleet.result("j"))
    before = AutoModelForCausalLM.from_pretrained(fleet.settings.model_root / MODEL)
    assert any(
        not torch.equal(mine, theirs)
        for mine, theirs in zip(model.parameters(), before.parameters(), strict=True)
    )
    assert AutoTokenizer.from_pretrained(fleet.result("j")).encode("def")


@pytest.mark.long
def test_adapter_is_equal_on_any_worker_count(fleet: Fleet) -> None:
    work = workload(
        400, adapter={"rank": 4, "target_modules": ("q_proj", "down_proj")}, hyperparameters={"seed": 7}
    )
    fleet.assign("one", 1, [("n2", 1)], work)
    fleet.assign("more", 1, [("n1", 1)], work)
    fleet.until(fleet.has_started("more", 1, "n1"))
    with fleet.slowed("n1"):
        fleet.assign("more", 2, [("n1", 2)], work)
        fleet.until(fleet.has_started("more", 2, "n1"))
    fleet.until(fleet.is_over("one", "n2"))
    fleet.until(fleet.is_over("more", "n1"))
    adapters = {}
    for finished in fleet.reports(RunFinished):
        assert isinstance(finished, RunFinished)
        assert finished.adapter_path == f"{CELL}/u/{finished.job_id}"
        content = (fleet.result(finished.job_id) / "adapter_model.safetensors").read_bytes()
        assert finished.adapter_digest == blake2b(content, digest_size=32).hexdigest()
        config = json.loads((fleet.result(finished.job_id) / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == MODEL
        base = AutoModelForCausalLM.from_pretrained(fleet.settings.model_root / MODEL)
        model = PeftModel.from_pretrained(base, fleet.result(finished.job_id))
        adapters[finished.job_id] = {
            name: parameter for name, parameter in model.named_parameters() if "lora_" in name
        }
    assert adapters["one"].keys() == adapters["more"].keys()
    assert all(float(matrix.abs().max()) > 0 for matrix in adapters["one"].values())
    for name, matrix in adapters["one"].items():
        torch.testing.assert_close(adapters["more"][name], matrix, rtol=1e-4, atol=1e-5)
