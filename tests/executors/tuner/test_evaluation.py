"""Jobs are evaluated, and end at their target or limit."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from schemas.fleet import RunFinished
from schemas.merging.reports import TaskEvaluated
from tests.support.nodes import CELL
from tests.support.tuner_nodes import VALIDATION, assigned, order, workload
from tests.support.tuner_tasks import LoneWorker, reports_of


def test_accuracy_is_share_of_right_loss_tokens(worker: LoneWorker) -> None:
    work = workload(10)
    last = reports_of(worker.run(assigned("n1", order("a", work))), TaskEvaluated)[-1]
    model = AutoModelForCausalLM.from_pretrained(worker.base.directory)
    adapted = PeftModel.from_pretrained(model, worker.root / "output" / CELL / "u" / "a").eval()
    right = total = 0
    validation = worker.loaders.open(work).validation
    for index in range(len(validation)):
        sequence = validation[index]
        ids = torch.tensor([sequence.token_ids])
        with torch.no_grad():
            predicted = adapted(input_ids=ids).logits[0].argmax(-1)
        labels = ids[0, sequence.loss_start :]
        right += int((predicted[sequence.loss_start - 1 : -1] == labels).sum())
        total += len(labels)
    assert last.iterations == 10
    assert last.accuracy == pytest.approx(right / total)


def test_job_is_measured_after_epochs_and_at_end(worker: LoneWorker) -> None:
    lone = LoneWorker(worker.base, worker.root, worker.settings.model_copy(update={"evaluation_share": 0.0}))
    evaluated = reports_of(lone.run(assigned("n1", order("a", workload(21)))), TaskEvaluated)
    # 48 records in batches of six; the first quarter is measured before any time was taken.
    assert [each.iterations for each in evaluated] == [2, 8, 16, 21]
    assert [each.epochs for each in evaluated] == [0.25, 1.0, 2.0, 2.625]
    assert all(each.phase == "own" and each.partner is None for each in evaluated)
    assert evaluated[-1].step.accumulation_steps == 1


def test_time_allowing_it_is_measured_within_epochs(worker: LoneWorker) -> None:
    lone = LoneWorker(worker.base, worker.root, worker.settings.model_copy(update={"evaluation_share": 1.0}))
    evaluated = reports_of(lone.run(assigned("n1", order("a", workload(16)))), TaskEvaluated)
    assert {2, 8, 16} <= {each.iterations for each in evaluated} <= {2, 4, 6, 8, 10, 12, 14, 16}


def test_a_job_is_done_at_its_target_accuracy(worker: LoneWorker) -> None:
    reports = worker.run(assigned("n1", order("a", workload(2_000, accuracy=0.3))))
    evaluated, (finished,) = reports_of(reports, TaskEvaluated), reports_of(reports, RunFinished)
    assert evaluated[-1].accuracy >= 0.3
    assert all(each.accuracy < 0.3 for each in evaluated[:-1])
    assert finished.samples_done == 6 * evaluated[-1].iterations < 12_000


@pytest.mark.long
def test_shared_job_keeps_adapter_of_its_target(worker: LoneWorker) -> None:
    first = order("a", workload(2_000, accuracy=0.3, validation=VALIDATION))
    second = order("b", workload(400, dataset="other.jsonl"))
    reports = worker.run(assigned("n1", first, second, mode="spatial"))
    finished = {each.job_id: each for each in reports_of(reports, RunFinished)}
    assert finished["a"].samples_done < finished["b"].samples_done == 2_400
    assert finished["a"].adapter_digest != finished["b"].adapter_digest
    shared = [each for each in reports_of(reports, TaskEvaluated, "b") if each.partner == "a"]
    assert len(shared) == len(reports_of(reports, TaskEvaluated, "b"))


def test_receiver_is_measured_in_watched_epochs(worker: LoneWorker) -> None:
    orders = order("a", workload(32)), order("b", workload(8, dataset="other.jsonl"))
    reports = worker.run(assigned("n1", *orders, mode="temporal", watched_epochs=2))
    evaluated = reports_of(reports, TaskEvaluated, "b")
    donor = [each for each in evaluated if each.phase == "donor"]
    assert {1.0, 2.0} <= {each.epochs for each in donor}
    assert max(each.epochs for each in donor) == 2.0
    assert all((each.iterations, each.loss, each.step) == (0, None, None) for each in donor)
    own = [each for each in evaluated if each.phase == "own"]
    assert own[-1].iterations == 8
    assert reports.index(donor[-1]) < reports.index(own[0])


def test_epochs_of_merge_count_from_its_start(worker: LoneWorker) -> None:
    worker.run(assigned("n1", order("a", workload(80))), 40)
    watched = []
    # The merge begins after five epochs of the donor, and goes on with other GPUs within its first.
    for generation, done, steps in ((2, 40, 6), (3, 46, 20)):
        merged = order("a", workload(80), generation, done), order("b", generation=generation)
        command = assigned("n1", *merged, mode="temporal", generation=generation, watched_epochs=1)
        reports = worker.run(command, steps)
        watched += [each.epochs for each in reports_of(reports, TaskEvaluated, "b")]
    assert len(watched) > 1
    assert max(watched) == 1.0


def test_a_job_without_validation_data_is_only_trained(worker: LoneWorker) -> None:
    work = workload(9, validation=None, sharing=False)
    reports = worker.run(assigned("n1", order("a", work)))
    assert not reports_of(reports, TaskEvaluated)
    assert reports_of(reports, RunFinished)[0].samples_done == 54
