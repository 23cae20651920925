"""Input that cannot be trained is refused with the field's name, and harms no other job."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import Lfm2ForCausalLM

from executors.lora.batch import TokenSequence
from executors.lora.faults import is_permanent
from executors.node.runner import UnfitError
from executors.tuner import FineTuning
from executors.tuner.checkpoints import TuningCheckpoints
from executors.tuner.data import TokenizedFile
from executors.tuner.runner import TunerRunner
from executors.tuner.settings import TunerSettings
from executors.tuner.training import Trainer, TrainingStep
from schemas.fleet import RunFailed, RunFinished
from schemas.lora import Dataset
from tests.support.base_models.small import small_model
from tests.support.base_models.survey import small_tokenizer
from tests.support.tuner_nodes import Fleet, assigned, order, profile_of, workload
from tests.support.tuner_tasks import LoneWorker, reports_of

_WILD = {"learning_rate": 10.0, "max_gradient_norm": 1e6, "weight_decay": 10.0}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"dataset": "none.jsonl"}, "dataset.path: 'none.jsonl': no such dataset"),
        ({"dataset": "bad.jsonl"}, "dataset.path: bad.jsonl, line 1: not JSON"),
        ({"validation": "bad.jsonl"}, "validation_path: bad.jsonl, line 1: not JSON"),
        (
            {"hyperparameters": {"target_modules": ("nowhere",)}},
            "hyperparameters.target_modules: a: no layer",
        ),
        (
            {"hyperparameters": {"frozen_layers": 2}},
            "hyperparameters.frozen_layers: 2 layers cannot be frozen",
        ),
        ({"hyperparameters": {"sequence_length": 4_096}}, "hyperparameters.sequence_length: 4096 tokens"),
        ({"hyperparameters": _WILD, "iterations": 3_000}, "the training has diverged"),
    ],
)
def test_a_job_that_cannot_be_trained_anywhere(
    worker: LoneWorker, fields: dict[str, object], error: str
) -> None:
    reports = worker.run(assigned("n1", order("a", workload(**fields))))
    (failed,) = reports_of(reports, RunFailed)
    assert failed.permanent
    assert error in failed.error


def test_partner_of_unfit_job_may_run_alone(worker: LoneWorker) -> None:
    orders = order("a", workload(dataset="bad.jsonl")), order("b")
    reports = worker.run(assigned("n1", *orders, mode="spatial"))
    failures = {each.job_id: each for each in reports_of(reports, RunFailed)}
    assert (failures["a"].permanent, failures["b"].permanent) == (True, False)
    assert failures["b"].error.startswith("a, with which it is merged: dataset.path: bad.jsonl")


@pytest.mark.parametrize("mode", ["normal", "temporal", "spatial"])
@pytest.mark.parametrize(
    "error", [TypeError("not a text"), IndexError("out of range"), RuntimeError("shapes")]
)
def test_whatever_a_job_raises_is_its_own_failure(
    worker: LoneWorker, monkeypatch: pytest.MonkeyPatch, mode: str, error: Exception
) -> None:
    read = TokenizedFile.__getitem__

    def read_or_raise(data: TokenizedFile, index: int) -> TokenSequence:
        if data.dataset.name == "bad-later.jsonl" and index > 40:
            raise error
        return read(data, index)

    monkeypatch.setattr(TokenizedFile, "__getitem__", read_or_raise)
    shutil.copy(
        worker.settings.dataset_root / "pairs.jsonl", worker.settings.dataset_root / "bad-later.jsonl"
    )
    orders = order("a", workload(dataset="bad-later.jsonl")), order("b")
    reports = worker.run(assigned("n1", *(orders[:1] if mode == "normal" else orders), mode=mode))
    failures = {each.job_id: each for each in reports_of(reports, RunFailed)}
    assert str(error) in failures["a"].error
    assert failures["a"].permanent == is_permanent(error)
    if mode != "normal":
        assert failures["b"].error.startswith("a, with which it is merged: ")
        assert not failures["b"].permanent


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_training_error_of_merge_spares_partner(
    worker: LoneWorker, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    step = Trainer.step

    def step_or_raise(trainer: Trainer, own, number: int, *rest) -> TrainingStep:
        if number == 2:
            raise IndexError("out of range in self")
        return step(trainer, own, number, *rest)

    monkeypatch.setattr(Trainer, "step", step_or_raise)
    reports = worker.run(assigned("n1", order("a"), order("b"), mode=mode))
    failures = {each.job_id: each for each in reports_of(reports, RunFailed)}
    assert all("IndexError: out of range in self" in each.error for each in failures.values())
    assert failures["a"].permanent == (mode == "temporal")
    assert not failures["b"].permanent


@pytest.mark.parametrize("name", ["save", "finish"])
def test_unwritable_state_fails_run(worker: LoneWorker, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*_: object) -> None:
        raise TypeError("not a tensor")

    monkeypatch.setattr(TuningCheckpoints, name, refuse)
    steps = 2 if name == "save" else None
    reports = worker.run(assigned("n1", order("a", workload(3))), steps)
    assert not reports_of(reports, RunFinished)
    if name == "finish":
        (failed,) = reports_of(reports, RunFailed)
        assert (failed.error, failed.permanent) == ("TypeError: not a tensor", True)


@pytest.mark.parametrize("mode", ["temporal", "spatial"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("rank", 8), ("alpha", 8.0), ("target_modules", ("q_proj",)), ("frozen_layers", 1)],
)
def test_adapters_of_other_shapes_are_not_merged(
    worker: LoneWorker, mode: str, field: str, value: object
) -> None:
    orders = order("a"), order("b", workload(hyperparameters={field: value}))
    reports = worker.run(assigned("n1", *orders, mode=mode))
    assert [each.job_id for each in reports] == ["a", "b"]
    assert all(each.error.startswith(f"hyperparameters.{field}: ") for each in reports)
    # Each may run alone.
    assert not any(each.permanent for each in reports)


def test_data_that_changed_since_the_checkpoint(worker: LoneWorker) -> None:
    path = worker.settings.dataset_root / "changing.jsonl"
    path.write_text(json.dumps({"text": "def first"}) + "\n")
    work = workload(dataset="changing.jsonl")
    worker.run(assigned("n1", order("a", work)), 3)
    path.write_text(json.dumps({"text": "def second"}) + "\n")
    command = assigned("n1", order("a", work, 2, 3), generation=2)
    (failed,) = worker.run(command)
    assert failed.permanent
    assert failed.error.startswith("dataset.path: changing.jsonl has changed")


def test_a_diverging_profile_run_fails(fleet: Fleet) -> None:
    wild = workload(hyperparameters=_WILD)
    fleet.send(profile_of("n1", order("a", wild), iterations=1_024))
    fleet.until_over("a/1")
    (failed,) = fleet.reports(RunFailed)
    assert failed.permanent
    assert "the training has diverged" in failed.error


def test_what_this_node_does_not_train(fleet: Fleet) -> None:
    fleet.assign(order("a", workload(model="another")))
    fleet.until_over("a/1")
    (failed,) = fleet.reports(RunFailed)
    assert failed.error == "model: the node holds base model tiny, not another"
    assert not failed.permanent
    # The workers are unharmed.
    fleet.assign(order("d", workload(2)))
    fleet.until_over("d/1")
    assert len(fleet.reports(RunFinished)) == 1


def test_a_profile_run_that_has_no_time_fails(fleet: Fleet) -> None:
    fleet.send(profile_of("n1", order("a"), limit_s=1e-6))
    fleet.until_over("a/1")
    (failed,) = fleet.reports(RunFailed)
    assert failed.error.startswith("limit_s: ")
    assert not failed.permanent


def test_node_without_base_or_data_stays_offline(
    tuner_settings: TunerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_DATASET_ROOT", str(tmp_path / "none"))
    with pytest.raises(UnfitError, match=r"dataset root .*none is not a folder"):
        FineTuning()
    monkeypatch.setenv("MILLRACE_DATASET_ROOT", str(tmp_path))
    monkeypatch.setenv("MILLRACE_BASE_MODEL_DIR", str(tmp_path))
    with pytest.raises(UnfitError, match=r"base_model_dir .*: no Hugging Face model directory"):
        FineTuning()


def test_directory_without_causal_model_is_refused(
    fleet: Fleet, tuner_settings: TunerSettings, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "resnet"}))
    (folder / "model.safetensors").write_bytes(b"")
    settings = tuner_settings.model_copy(update={"base_model_dir": folder})
    with pytest.raises(UnfitError, match="base_model_dir: "):
        TunerRunner.started(fleet.context("n9", []), settings, 1)


def test_a_base_whose_sequences_leak_is_refused(
    fleet: Fleet, tuner_settings: TunerSettings, tmp_path: Path
) -> None:
    small_model("lfm2", Lfm2ForCausalLM, seed=1).save_pretrained(tmp_path / "lfm2")
    small_tokenizer().save_pretrained(tmp_path / "lfm2")
    settings = tuner_settings.model_copy(update={"base_model_dir": tmp_path / "lfm2"})
    with pytest.raises(UnfitError, match=r"Lfm2ForCausalLM cannot be trained in packed batches: .*\(leaks\)"):
        TunerRunner.started(fleet.context("n9", []), settings, 1)


def test_unwritable_result_fails_run(worker: LoneWorker) -> None:
    (worker.root / "output").write_text("in the way")
    reports = worker.run(assigned("n1", order("a", workload(3))))
    (failed,) = reports_of(reports, RunFailed)
    assert not failed.permanent
    assert not reports_of(reports, RunFinished)


def test_wrongly_stated_dataset_size_is_counted(worker: LoneWorker) -> None:
    work = workload(2).model_copy(update={"dataset": Dataset(path="pairs.jsonl", samples=7)})
    reports = worker.run(assigned("n1", order("a", work)))
    assert reports[0].dataset_samples == 48
