"""A job that trains on nodes, by the cell's commands: what it reports, what it leaves, and how it goes on."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from executors.gang.folder import JobFolder
from executors.moe.conversion.convert import convert
from executors.moe.conversion.storage import MoeDescription, load
from executors.node.places import job_folder
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunStarted
from tests.support.listening import places
from tests.support.moe_nodes import DENSE, EXPERTS, LAYERS, MODEL, Fleet, service, training
from tests.support.nodes import CELL, is_end

BOTH = [("n1", 1), ("n2", 1)]
LONG = 150
"""Samples of a job that takes so long that it can be interrupted."""


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


@pytest.fixture(scope="session")
def alone(moe_settings: Any, fork_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Result of `training(1, LONG)` on one rank without disturbances."""
    fleet = Fleet(tmp_path_factory.mktemp("alone"), moe_settings)
    fleet.add("n1")
    fleet.assign("alone", [("n1", 1)], training(1, LONG))
    fleet.until(fleet.is_over("alone", "n1"))
    assert not fleet.reports(RunFailed)
    return fleet.result("alone")


def test_job_on_two_nodes_reports_and_leaves_model(fleet: Fleet, alone: Path) -> None:
    fleet.assign("j", BOTH, training(2, LONG), report_interval_s=1e-6)
    fleet.until(fleet.is_over("j", "n1", "n2"))
    started = fleet.reports(RunStarted)
    assert [(each.node, each.samples_done, each.dataset_samples) for each in started] == [
        ("n1", 0, 24),
        ("n2", 0, 24),
    ]
    (finished,) = fleet.reports(RunFinished)
    assert (finished.node, finished.samples_done, finished.adapter_path) == ("n1", LONG, None)
    assert finished.loss is not None
    assert [each.node for each in fleet.reports(RunProgressed) if is_end(each)] == ["n2"]
    assert not fleet.reports(ExpertsProfiled)
    routed = fleet.reports(ExpertsRouted)
    assert sum(each.batches for each in routed) == LONG // 6
    assert {each.revision for each in routed} == {0}
    for report in routed:
        assert [len(layer.tokens) for layer in report.layers] == [EXPERTS] * LAYERS
        # Each layer routes the same tokens, some of them twice.
        assert len({sum(layer.tokens) - layer.doubles for layer in report.layers}) == 1
    assert sum(layer.doubles for report in routed for layer in report.layers) > 0
    assert {path.name for path in fleet.result("j").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "moe.json",
        "tokenizer.json",
    }
    assert_same(weights(alone), weights(fleet.result("j")))
    _, description = load(fleet.result("j"))
    assert (description.gating.mode, description.gating.threshold) == ("adaptive", 0.1)
    assert AutoTokenizer.from_pretrained(fleet.result("j")).encode("def")
    assert not fleet.checkpoints("j")


def test_what_two_ranks_have_trained_two_ranks_serve(fleet: Fleet) -> None:
    fleet.assign("j", BOTH, training())
    fleet.until(fleet.is_over("j", "n1", "n2"))
    for name in ("n1", "n2"):
        fleet.add(name, model_root=fleet.root / "output")
    fleet.assign("k", BOTH, service(model="c/u/j"))
    fleet.until(fleet.is_over("k", "n1", "n2"), 240.0)  # where nothing is compiled yet
    (finished,) = fleet.reports(RunFinished, "k")
    assert finished.samples_done == 60
    assert fleet.reports(ExpertsProfiled, "k")


@pytest.mark.long
def test_a_model_with_experts_is_trained_on(fleet: Fleet) -> None:
    work = training(work_samples=12, model=MODEL, conversion=None, gating={"mode": "top1"})
    fleet.assign("j", BOTH, work)
    fleet.until(fleet.is_over("j", "n1", "n2"))
    assert not fleet.reports(RunFailed)
    before, after = load(fleet.settings.model_root / MODEL), load(fleet.result("j"))
    assert after[1].conversion == before[1].conversion
    assert after[1].gating.mode == "top1"
    assert not torch.equal(
        *(model.get_parameter("model.layers.0.mlp.experts.down_proj") for model in (before[0], after[0]))
    )


@pytest.mark.long
def test_adapter_on_experts_is_kept_with_model(fleet: Fleet) -> None:
    adapter = {"rank": 2, "target_modules": ["gate_up_proj", "experts.down_proj", "v_proj"]}
    fleet.assign("j", BOTH, training(adapter=adapter))
    fleet.until(fleet.is_over("j", "n1", "n2"))
    (finished,) = fleet.reports(RunFinished)
    assert finished.adapter_path == "c/u/j/adapter"
    assert finished.adapter_digest is not None
    merged, description = load(fleet.result("j"))
    assert description.conversion is not None
    base = AutoModelForCausalLM.from_pretrained(fleet.settings.model_root / DENSE)
    convert(base, description.conversion, description.gating)
    adapted = PeftModel.from_pretrained(base, fleet.result("j") / "adapter").eval()
    tokens = torch.arange(1, 20)[None]
    with torch.no_grad():
        expected = adapted(input_ids=tokens).logits
        torch.testing.assert_close(merged(input_ids=tokens).logits, expected, rtol=1e-4, atol=1e-4)
        without = adapted.unload()(input_ids=tokens).logits
    assert not torch.allclose(expected, without, atol=1e-3)


def interrupted(fleet: Fleet) -> int:
    """Preempt a job halfway, restart the nodes, and return its progress."""
    for name in ("n1", "n2"):
        fleet.add(name, checkpoint_s=1e-3, progress_s=1e-3)
    fleet.assign("j", BOTH, training(2, LONG))
    fleet.until(lambda: any(each.samples_done >= 12 for each in fleet.reports(RunProgressed)))
    fleet.release("j", "preempted")
    fleet.until(fleet.is_over("j", "n1", "n2"))
    assert not fleet.reports(RunFailed)
    done = [each.samples_done for each in fleet.reports(RunProgressed) if is_end(each)]
    assert len(set(done)) == 1
    for name in ("n1", "n2"):
        fleet.add(name)
    return done[0]


@pytest.mark.parametrize("ranks", [1, 2], ids=["one", "two"])
def test_preempted_job_resumes_with_any_ranks(fleet: Fleet, alone: Path, ranks: int) -> None:
    done = interrupted(fleet)
    assert 12 <= done < LONG
    members = [("n2", 1), ("n1", 1)][:ranks]
    fleet.assign("j", members, training(ranks, LONG), generation=2, resume_samples=done)
    fleet.until(fleet.is_over("j", "n2", generation=2))
    assert [each.samples_done for each in fleet.reports(RunStarted) if each.run_id == "2/j"] == [done] * ranks
    assert_same(weights(alone), weights(fleet.result("j")))


@pytest.mark.long
def test_nodes_offload_experts_and_train_the_same(
    fleet: Fleet, alone: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    # One of each layer with gradients and moments, a gradient more, and one that comes, with its gradient.
    room_bytes = (1 * (4 * LAYERS + 1) + 2) * fleet.expert_bytes
    fleet.add("n2", expert_memory_gib=(room_bytes + 0.5) / 2**30)
    fleet.assign("j", BOTH, training(2, LONG, experts_per_device=2))
    fleet.until(fleet.is_over("j", "n1", "n2"))
    assert not fleet.reports(RunFailed)
    assert_same(weights(alone), weights(fleet.result("j")))
    started = [each.message for each in caplog.records if each.message.startswith("run started")]
    assert len(started) == 2
    assert all("experts_per_device=2 resident_experts=1" in each for each in started)


@pytest.mark.long
def test_damaged_checkpoint_falls_back_to_former(fleet: Fleet, alone: Path) -> None:
    done = interrupted(fleet)
    before, newest = fleet.checkpoints("j")
    assert int(newest.name.partition("-")[2]) == done
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    for name in ("n1", "n2"):
        fleet.add(name, checkpoint_wait_s=0.1)
    fleet.assign("j", BOTH, training(2, LONG), generation=2, resume_samples=done)
    fleet.until(fleet.is_over("j", "n1", "n2", generation=2))
    resumed = {each.samples_done for each in fleet.reports(RunStarted) if each.run_id == "2/j"}
    assert resumed == {int(before.name.partition("-")[2])}
    assert_same(weights(alone), weights(fleet.result("j")))


@pytest.mark.long
def test_job_at_its_beginning_starts_again(fleet: Fleet, alone: Path) -> None:
    interrupted(fleet)
    fleet.assign("j", BOTH, training(2, LONG), generation=2)
    fleet.until(fleet.is_over("j", "n1", "n2", generation=2))
    assert {each.samples_done for each in fleet.reports(RunStarted) if each.run_id == "2/j"} == {0}
    assert_same(weights(alone), weights(fleet.result("j")))


@pytest.mark.long
def test_a_replaced_writer_keeps_nothing(fleet: Fleet) -> None:
    done = interrupted(fleet)
    newest = fleet.checkpoints("j")[-1]
    for name in ("n1", "n2"):
        fleet.add(name, checkpoint_s=1e-3)
    fleet.assign("j", BOTH, training(2, LONG), generation=3, resume_samples=done)
    fleet.until(lambda: fleet.checkpoints("j")[-1].name.startswith("3-"))
    fleet.release("j", "preempted", generation=3)
    fleet.until(fleet.is_over("j", "n1", "n2", generation=3))
    assert not fleet.reports(RunFailed)
    kept = [path.name for path in fleet.checkpoints("j")]
    for name in ("n1", "n2"):
        fleet.add(name)
    fleet.assign("j", BOTH, training(2, LONG), generation=2, resume_samples=done)
    fleet.until(fleet.is_over("j", "n1", "n2", generation=2))
    failures = [each for each in fleet.reports(RunFailed) if each.run_id == "2/j"]
    assert [failure.permanent for failure in failures] == [False, False]
    assert all("was replaced by" in failure.error for failure in failures)
    assert [path.name for path in fleet.checkpoints("j")] == kept
    assert newest.name.startswith("1-")


@pytest.mark.long
def test_repeated_finished_job_is_reported_again(fleet: Fleet) -> None:
    fleet.assign("j", BOTH, training(work_samples=6))
    fleet.until(fleet.is_over("j", "n1", "n2"))
    fleet.assign("j", BOTH, training(work_samples=6), generation=2)
    fleet.until(fleet.is_over("j", "n1", "n2", generation=2))
    first, again = fleet.reports(RunFinished)
    assert (again.run_id, again.samples_done, again.loss) == ("2/j", 6, first.loss)


@pytest.mark.long
def test_a_withdrawn_job_leaves_nothing(fleet: Fleet) -> None:
    for name in ("n1", "n2"):
        fleet.add(name, checkpoint_s=1e-3)
    fleet.assign("j", BOTH, training(work_samples=10**6))
    fleet.until(lambda: fleet.checkpoints("j"))
    fleet.release("j", "withdrawn")
    fleet.until(fleet.is_over("j", "n1", "n2"))
    assert not fleet.reports(RunFailed)
    assert not fleet.checkpoints("j")
    assert not fleet.result("j").exists()


@pytest.mark.long
def test_a_result_is_described(fleet: Fleet) -> None:
    work = training(work_samples=6, conversion={"experts": EXPERTS, "every": 2}, gating={"mode": "top2"})
    fleet.assign("j", BOTH, work)
    fleet.until(fleet.is_over("j", "n1", "n2"))
    assert not fleet.reports(RunFailed)
    described = MoeDescription.model_validate_json((fleet.result("j") / "moe.json").read_bytes())
    assert described.conversion is not None
    assert described.conversion.layers == 2
    (finished,) = fleet.reports(RunFinished)
    assert np.isfinite(finished.loss)


@pytest.mark.long
def test_meeting_and_gloo_use_only_configured_address(fleet: Fleet) -> None:
    fleet.assign("j", [("n1", 1), ("n2", 1)], training(2, 10**6))
    fleet.until(fleet.has_begun("j", "n1", "n2"))
    leader, other = places(fleet.pids("n1")), places(fleet.pids("n2"))
    meeting = JobFolder(job_folder(fleet.root / "state", CELL, "j")).read_address(1)

    assert meeting is not None
    assert ("127.0.0.1", meeting.port) in leader
    assert {address for address, _ in leader | other} == {"127.0.0.1"}
    assert len(leader) == len(other) + 2, "Gloo in both"
