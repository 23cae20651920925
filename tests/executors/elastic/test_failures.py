"""Faults of a job: its data, its model, its workers, its nodes."""

import json
import os
import shutil
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

from executors.elastic.settings import ElasticSettings
from executors.gang.folder import JobFolder
from executors.node.places import job_folder
from schemas.fleet import RunFailed
from schemas.lora import Dataset
from tests.support.doomed_node import DoomedNode
from tests.support.elastic_nodes import DATASET, MODEL, Fleet, workload
from tests.support.executors import write_dataset
from tests.support.nodes import CELL
from tests.support.processes import is_gone_within


def test_killed_worker_fails_run_on_all_nodes(fleet: Fleet) -> None:
    fleet.add("n1", checkpoint_s=0.05)
    fleet.assign("j", 1, [("n1", 2), ("n2", 1)], workload(10**6))
    fleet.until(fleet.has_trained("j"))
    pids = fleet.pids("n1") + fleet.pids("n2")
    os.kill(pids[-1], signal.SIGKILL)
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed, "j")
    assert [(failure.node, failure.permanent) for failure in failures] == [("n1", False), ("n2", False)]
    assert failures[1].error == "a rank process has ended with signal 9 and no final message"
    # What the leader had learned is kept.
    assert f"1-{failures[0].samples_done}" in fleet.checkpoints("j")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_job_without_its_other_node_fails_in_time(fleet: Fleet) -> None:
    fleet.add("n3", join_timeout_s=0.5)
    fleet.assign("j", 1, [("n3", 1), ("n2", 1)], workload(), only=["n3"])
    fleet.until(fleet.is_over("j", "n3"))
    (failure,) = fleet.reports(RunFailed)
    assert not failure.permanent
    assert failure.error == "not all 2 ranks of generation 1 have joined in 0.5 s"


def write_unfit_models(root: Path) -> None:
    """Models whose weights were not fetched, that lack a tokenizer, or whose configuration does not fit."""
    for name in ("pointer", "bare", "garbled", "deeper"):
        (root / name).mkdir(exist_ok=True)
        for file in ("config.json", "model.safetensors"):
            shutil.copy(root / MODEL / file, root / name / file)
    (root / "pointer" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    config = json.loads((root / MODEL / "config.json").read_text())
    layers = config["num_hidden_layers"] + 1
    for name, harm in (("garbled", {"hidden_act": "none"}), ("deeper", {"num_hidden_layers": layers})):
        (root / name / "config.json").write_text(json.dumps(config | harm))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"dataset": Dataset(path="none.jsonl", samples=1)}, "'none.jsonl': no such dataset"),
        ({"dataset": Dataset(path="bad.jsonl", samples=1)}, "bad.jsonl, line 1: not JSON"),
        (
            {"dataset": Dataset(path="emoji.jsonl", samples=1)},
            "emoji.jsonl, line 1: text: has half of a surrogate pair",
        ),
        ({"model": "pointer"}, "pointer: model.safetensors: is a git-lfs pointer"),
        ({"model": "bare"}, "bare: "),
        ({"model": "garbled"}, "garbled: config.json: describes no model that can be built: "),
        ({"model": "deeper"}, "deeper: model.safetensors: 9 weights of LlamaForCausalLM are missing, "),
        ({"model": "none"}, "none: no Hugging Face model directory (config.json is missing)"),
        ({"model": f"{MODEL}/model.safetensors"}, "no Hugging Face model directory"),
        ({"model": "classifier"}, "classifier: a sequence classifier, and only causal"),
        ({"hyperparameters": {"sequence_length": 4_096}}, "takes 128 tokens, the job's sequences have 4096"),
        (
            {"adapter": {"target_modules": ("nowhere",)}},
            "no such adapter: Target modules {'nowhere'} not found",
        ),
    ],
)
def test_untrainable_job_fails_permanently(fleet: Fleet, fields: dict[str, object], error: str) -> None:
    (fleet.settings.dataset_root / "bad.jsonl").write_text("{\n")
    (fleet.settings.dataset_root / "emoji.jsonl").write_text('{"text": "cut \\ud83d"}\n')
    write_unfit_models(fleet.settings.model_root)
    fleet.assign("j", 1, [("n1", 1)], workload(**fields))
    fleet.until(fleet.is_over("j", "n1"))
    (failure,) = fleet.reports(RunFailed)
    assert failure.permanent
    assert error in failure.error


def test_members_report_same_cause_of_failure(fleet: Fleet, tmp_path: Path) -> None:
    # The data are missing on one node. The other waits for it, and reads why on the shared disk.
    fleet.add("n2", dataset_root=tmp_path)
    fleet.assign("j", 1, [("n1", 1), ("n2", 1)], workload())
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed, "j")
    assert [(failure.node, failure.permanent) for failure in failures] == [("n1", True), ("n2", True)]
    assert [failure.error for failure in failures] == [f"{DATASET!r}: no such dataset"] * 2


def test_members_with_other_data_do_not_train_together(fleet: Fleet, tmp_path: Path) -> None:
    write_dataset(tmp_path / DATASET, seed=6)
    fleet.add("n2", dataset_root=tmp_path)
    fleet.assign("j", 1, [("n1", 1), ("n2", 1)], workload())
    fleet.until(fleet.is_over("j", "n1", "n2"))
    for failure in fleet.reports(RunFailed, "j"):
        assert failure.permanent
        assert failure.error == f"{DATASET}: differs between the nodes of the job"


def test_a_job_that_diverges_fails_for_good(fleet: Fleet) -> None:
    wild = {"learning_rate": 10.0, "max_gradient_norm": 1e6, "weight_decay": 10.0}
    fleet.assign("j", 1, [("n1", 1), ("n2", 1)], workload(8 * 2_000, hyperparameters=wild))
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed, "j")
    assert [failure.permanent for failure in failures] == [True, True]
    assert "the training has diverged" in failures[0].error


def test_disconnected_worker_ends_without_blaming_others(fleet: Fleet) -> None:
    fleet.assign("j", 1, [("n1", 1)], workload(10**6, keeps=False))
    fleet.until(fleet.has_trained("j"))
    (job,) = fleet.nodes["n1"].runner.assignments
    (worker,) = job.processes.running
    # As if the node's process had ended, except for its end of the pipe: that alone would end the worker.
    with socket.socket(fileno=os.dup(worker.process._connection.fileno())) as end:
        end.shutdown(socket.SHUT_RD)
    fleet.until(fleet.is_over("j", "n1"))
    (failure,) = fleet.reports(RunFailed, "j")
    assert failure.error == "a rank process has ended with status 1 and no final message"
    assert JobFolder(job_folder(fleet.root / "state", CELL, "j")).read_failure(1) is None


def test_workers_of_killed_node_end_shortly(elastic_settings: ElasticSettings, tmp_path: Path) -> None:
    with closing(DoomedNode(tmp_path, elastic_settings)) as node:
        pids = node.workers()
        assert len(pids) == 2
        node.process.kill()
        assert all(is_gone_within(pid, 10.0) for pid in pids)
