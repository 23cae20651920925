"""Faults of a job that trains: its data, its model, its ranks. The node lives, and runs the next."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from executors.node.places import job_folder
from schemas.fleet import RunFailed, RunFinished
from tests.support.moe_nodes import DENSE, MODEL, Fleet, service, training
from tests.support.nodes import CELL

BOTH = [("n1", 1), ("n2", 1)]


def write_deeper_model(root: Path) -> None:
    """A model whose configuration has a layer more than its weights."""
    shutil.copytree(root / DENSE, root / "deeper", dirs_exist_ok=True)
    config = json.loads((root / DENSE / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (root / "deeper" / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "none"}, "none: no Hugging Face model directory (config.json is missing)"),
        (
            {"model": "deeper"},
            "deeper: model.safetensors: 9 weights of LlamaForCausalLM are",
        ),
        ({"model": MODEL}, "it has experts already, so there is nothing to convert: leave conversion out"),
        (
            {"conversion": None},
            "a model of type 'llama' has no experts, as mixtral, switch_transformers models",
        ),
        ({"conversion": {"experts": 4, "every": 3}}, "has 2 dense layers, of which none is to be converted"),
        ({"dataset": {"path": "none.jsonl", "samples": 1}}, "'none.jsonl': no such dataset"),
        (
            {"dataset": {"path": "bad.jsonl", "samples": 1}},
            'label: expected {"text": ...}, {"prompt": ..., "completion": ...}',
        ),
        ({"hyperparameters": {"sequence_length": 4_096}}, "takes 128 tokens, the job's sequences have 4096"),
        (
            {"conversion": {"experts": 4}, "experts_per_device": 3},
            "4 experts cannot be dealt out by 3 to a device",
        ),
        (
            {"conversion": {"experts": 8}, "experts_per_device": 2},
            "8 experts, 2 on a device, are on 4 ranks, and 2 ranks cannot be cut into groups of that size",
        ),
        ({"adapter": {"target_modules": ["q_proj", "none"]}}, "no layer is called none"),
        (
            {"adapter": {"target_modules": ["experts.down_proj"], "dropout": 0.1}},
            "does not work with lora_dropout",
        ),
    ],
    ids=[
        "no_model",
        "missing_weights",
        "experts_already",
        "no_experts",
        "nothing_to_convert",
        "no_dataset",
        "bad_record",
        "too_long",
        "uneven_packing",
        "too_few_ranks",
        "no_such_layer",
        "dropout_on_experts",
    ],
)
def test_untrainable_job_fails_permanently(fleet: Fleet, fields: dict[str, Any], error: str) -> None:
    (fleet.settings.dataset_root / "bad.jsonl").write_text('{"text": "a"}\n{"text": "a", "label": 1}\n')
    write_deeper_model(fleet.settings.model_root)
    fleet.assign("j", BOTH, training(**fields))
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed)
    assert [failure.permanent for failure in failures] == [True, True]
    assert all(error in failure.error for failure in failures), failures


def test_failed_job_leaves_nothing_on_node(fleet: Fleet) -> None:
    fleet.assign("j", [("n1", 1)], training(ranks=1, model="none"))
    fleet.until(fleet.is_over("j", "n1"))
    assert [failure.permanent for failure in fleet.reports(RunFailed)] == [True]
    assert not job_folder(fleet.root / "state", CELL, "j").exists()


def test_a_training_that_diverges_fails_on_all_nodes(fleet: Fleet) -> None:
    spoiled = fleet.settings.model_root / "spoiled"
    if not spoiled.exists():
        shutil.copytree(fleet.settings.model_root / DENSE, spoiled)
        tensors = load_file(spoiled / "model.safetensors")
        tensors["model.norm.weight"][3] = float("nan")
        save_file(tensors, spoiled / "model.safetensors", metadata={"format": "pt"})
    fleet.assign("j", BOTH, training(model="spoiled"))
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed)
    assert [failure.permanent for failure in failures] == [True, True]
    assert all("the training has diverged: loss nan" in failure.error for failure in failures)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_threshold_outside_0_and_1_is_refused(threshold: float) -> None:
    with pytest.raises(ValidationError, match="threshold"):
        training(gating={"mode": "adaptive", "threshold": threshold})


def test_batch_smaller_than_ranks_is_refused() -> None:
    with pytest.raises(ValidationError, match="a global batch of 1 has no sample for each of 2 ranks"):
        training(hyperparameters={"global_batch_size": 1})


@pytest.mark.parametrize(
    ("ranks", "work_samples", "fields"),
    [
        (1, 3, {"hyperparameters": {"global_batch_size": 1}}),
        (2, 7, {}),
        (2, 12, {"conversion": {"experts": 64}, "hyperparameters": {"sequence_length": 2}}),
    ],
    ids=["a_batch_of_one", "a_last_batch_of_one", "more_experts_than_tokens"],
)
def test_what_is_small_is_trained_all_the_same(
    fleet: Fleet, ranks: int, work_samples: int, fields: dict[str, Any]
) -> None:
    fleet.assign("j", BOTH[:ranks], training(ranks, work_samples, **fields))
    fleet.until(fleet.is_over("j", *("n1", "n2")[:ranks]))
    (finished,) = fleet.reports(RunFinished)
    assert finished.samples_done == work_samples


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("lost", ["n1", pytest.param("n2", marks=pytest.mark.long)], ids=["leader", "other"])
def test_lost_rank_fails_run_and_next_trains(fleet: Fleet, lost: str, number: int) -> None:
    fleet.add("n1", peer_timeout_s=2.0)
    fleet.add("n2", peer_timeout_s=2.0)
    fleet.assign("j", BOTH, training(work_samples=10**6))
    fleet.until(fleet.has_begun("j", "n1", "n2"))
    other = "n2" if lost == "n1" else "n1"
    began_s = time.monotonic()
    os.kill(fleet.pids(lost)[0], number)
    fleet.until(fleet.is_over("j", other))
    assert time.monotonic() - began_s < 2.0 + 6.0
    (failure,) = (failure for failure in fleet.reports(RunFailed) if failure.node == other)
    assert not failure.permanent
    assert "rank" in failure.error
    assert any(word in failure.error for word in ("gone", "stopped", "within 2 s")), failure.error
    fleet.release("j", "node_lost")
    fleet.until(fleet.is_over("j", "n1", "n2"))
    fleet.assign("k", BOTH, training(work_samples=6))
    fleet.until(fleet.is_over("k", "n1", "n2"))
    assert [report.job_id for report in fleet.reports(RunFinished)] == ["k"]


def test_job_without_its_other_node_fails_in_time(fleet: Fleet) -> None:
    fleet.add("n1", join_timeout_s=0.5)
    fleet.assign("j", BOTH, training(), only=["n1"])
    fleet.until(fleet.is_over("j", "n1"))
    (failure,) = fleet.reports(RunFailed)
    assert not failure.permanent
    assert failure.error == "not all 2 ranks of generation 1 have joined in 0.5 s"


def test_ranks_with_other_data_or_model_refuse(fleet: Fleet, tmp_path: Any) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"text": "class value"}\n')
    fleet.add("n2", dataset_root=tmp_path)
    fleet.assign("j", BOTH, training())
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed)
    assert [each.error for each in failures] == ["the dataset of ranks [1] differs from that of rank 0"] * 2


def test_ranks_with_other_jobs_do_not_train_together(fleet: Fleet) -> None:
    fleet.assign("j", BOTH, training(), only=["n1"])
    fleet.assign("j", BOTH, training(hyperparameters={"micro_op_mb": 1.0, "seed": 1}), only=["n2"])
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed)
    assert [each.error for each in failures] == ["the model of ranks [1] differs from that of rank 0"] * 2


def test_too_little_memory_fails_job_and_next_trains(fleet: Fleet) -> None:
    fleet.add("n2", expert_memory_gib=2**-20)
    fleet.assign("j", BOTH, training())
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed)
    assert [each.permanent for each in failures] == [True, True]
    needed = f"{2 * fleet.expert_bytes / 2**30:.3g} GiB of a device's memory while it computes"
    for failure in failures:
        assert f"an expert needs {needed}, and experts may take 9.54e-07 GiB" in failure.error
        assert "raise MILLRACE_EXPERT_MEMORY_GIB" in failure.error
    fleet.assign("s", BOTH, service())
    fleet.until(fleet.is_over("s", "n1", "n2"))
    assert [report.job_id for report in fleet.reports(RunFinished)] == ["s"]


def test_refused_checkpoint_fails_run(fleet: Fleet) -> None:
    for name in ("n1", "n2"):
        fleet.add(name, checkpoint_s=1e-3)
    blocked = fleet.root / "state" / "c" / "checkpoints"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("no folder")
    fleet.assign("j", BOTH, training())
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed)
    assert [each.permanent for each in failures] == [False, False]
    assert not fleet.reports(RunFinished)
