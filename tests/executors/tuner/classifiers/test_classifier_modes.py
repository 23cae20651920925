"""Jobs of a classifier, alone and merged, compared with a hand-written loop."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from executors.tuner.data import annealing_exponent, draw_sources, shares
from schemas.fleet import RunFinished
from schemas.merging.commands import JobOrder, TaskAssigned
from schemas.merging.reports import TaskEvaluated
from schemas.merging.workload import TuningWorkload
from tests.support.classifier_loop import ClassifierLoop, assert_trained_alike
from tests.support.examples import long
from tests.support.nodes import CELL
from tests.support.tuner_nodes import Fleet, assigned, order
from tests.support.tuner_tasks import LoneWorker, reports_of

MakeWorker = Callable[[str], LoneWorker]
MakeWork = Callable[..., TuningWorkload]

DECODER_AND_ENCODER = ["llama", "bert", *long("gpt2", "roberta")]


def folder(worker: LoneWorker, job_id: str) -> Path:
    return worker.root / "output" / CELL / "u" / job_id


def published(worker: LoneWorker, job_id: str) -> dict[str, Tensor]:
    return load_file(folder(worker, job_id) / "adapter_model.safetensors")


def split_head(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Low-rank matrices, and the head."""
    matrices = {name: each for name, each in tensors.items() if "lora_" in name}
    return matrices, {name: each for name, each in tensors.items() if name not in matrices}


@pytest.mark.parametrize("family", DECODER_AND_ENCODER)
def test_single_job_matches_plain_loop(family: str, worker_of: MakeWorker, work_of: MakeWork) -> None:
    worker, job = worker_of(family), order("a", work_of(family))
    worker.run(assigned("n1", job))
    loop = ClassifierLoop(worker, job)
    loop.train(job, 12)
    assert_trained_alike(published(worker, "a"), loop.adapter())


@pytest.mark.long
@pytest.mark.parametrize("family", DECODER_AND_ENCODER)
def test_receiver_starts_with_donor_matrices_and_base_head(
    family: str, worker_of: MakeWorker, work_of: MakeWork
) -> None:
    worker = worker_of(family)
    donor, receiver = order("a", work_of(family, 9)), order("b", work_of(family, 7, other=True))
    reports = worker.run(assigned("n1", donor, receiver, mode="temporal"))
    loop = ClassifierLoop(worker, donor)
    loop.train(donor, 9)
    assert_trained_alike(published(worker, "a"), loop.adapter())
    loop.begin_next()
    loop.train(receiver, 7)
    assert_trained_alike(published(worker, "b"), loop.adapter())
    # Before its own head is trained, the receiver's accuracy would show nothing about the donor's weights.
    evaluations = reports_of(reports, TaskEvaluated)
    assert {(each.job_id, each.phase) for each in evaluations} == {("a", "own"), ("b", "own")}


@pytest.mark.parametrize("family", DECODER_AND_ENCODER)
def test_shared_run_shares_matrices_with_own_heads(
    family: str, worker_of: MakeWorker, work_of: MakeWork
) -> None:
    worker = worker_of(family)
    first = order("a", work_of(family, 8))
    second = order("b", work_of(family, 14, other=True, hyperparameters={"batch_size": 3}))
    worker.run(assigned("n1", first, second, mode="spatial"))
    loop = ClassifierLoop(worker, first, jobs=2)
    loaders = [worker.loaders.open(job.workload) for job in (first, second)]
    drawn = [0, 0]
    for number in range(8):
        exponent = annealing_exponent(number * 9 // 78, epochs=2)  # 14 steps of 9, of 78 records
        sources, sequences = draw_sources(0, number, 9, shares([48, 30], exponent)), []
        for source in sources:
            (record,) = loaders[source].stream.indices(drawn[source], 1)
            drawn[source] += 1
            sequences.append(loaders[source].training[record])
        loop.step(sequences, sources)
    assert_trained_alike(published(worker, "a"), loop.adapter(0))
    for number in range(6):
        records = loaders[1].stream.indices(drawn[1] + 3 * number, 3)
        loop.step([loaders[1].training[record] for record in records], [1, 1, 1])
    assert_trained_alike(published(worker, "b"), loop.adapter(1))


@pytest.mark.long
def test_shared_run_learns_contradicting_tasks(worker_of: MakeWorker, work_of: MakeWork) -> None:
    worker = worker_of("roberta")
    batches = {"hyperparameters": {"batch_size": 16, "learning_rate": 5e-3}}
    first = order("a", work_of("roberta", 60, dataset="large.jsonl", **batches))
    second = order("b", work_of("roberta", 60, other=True, dataset="large-other.jsonl", **batches))
    reports = worker.run(assigned("n1", first, second, mode="spatial"))
    accuracies = [reports_of(reports, TaskEvaluated, job_id)[-1].accuracy for job_id in "ab"]
    assert min(accuracies) > 0.9
    (shared, one), (shared_too, two) = (split_head(published(worker, job_id)) for job_id in "ab")
    torch.testing.assert_close(shared, shared_too, rtol=0, atol=0)
    assert all(not torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("family", DECODER_AND_ENCODER)
def test_accuracy_is_share_of_right_records(
    family: str, worker_of: MakeWorker, work_of: MakeWork, directories: dict[str, Path]
) -> None:
    worker, large = worker_of(family), {"dataset": "large.jsonl", "hyperparameters": {"batch_size": 16}}
    work = work_of(family, 200, accuracy=0.9, **large)
    last = reports_of(worker.run(assigned("n1", order("a", work))), TaskEvaluated)[-1]
    assert last.accuracy >= 0.9
    model = AutoModelForSequenceClassification.from_pretrained(directories[family])
    adapted = PeftModel.from_pretrained(model, folder(worker, "a")).eval()
    validation = worker.loaders.open(work).validation
    right = 0
    for index in range(len(validation)):
        with torch.no_grad():
            logits = adapted(input_ids=torch.tensor([validation[index].token_ids])).logits
        right += int(logits.argmax(-1)) == validation[index].label
    assert last.accuracy == pytest.approx(right / len(validation))


def digest(reports: list, job_id: str) -> str:
    (finished,) = reports_of(reports, RunFinished, job_id)
    return str(finished.adapter_digest)


def job(work_of: MakeWork, job_id: str, generation: int, done: int, **fields: object) -> JobOrder:
    work = work_of("bert", hyperparameters={"dropout": 0.2}, **fields)
    return order(job_id, work, generation, resume_iterations=done)


def test_switched_job_gives_same_bits(worker_of: MakeWorker, work_of: MakeWork) -> None:
    worker = worker_of("bert")
    undisturbed = digest(worker.run(assigned("n1", job(work_of, "a", 1, 0))), "a")
    worker.run(assigned("n1", job(work_of, "c", 1, 0)), 5, settle=False)
    worker.run(assigned("n1", job(work_of, "d", 1, 0, other=True)), 3)
    last = worker.run(assigned("n1", job(work_of, "c", 2, 5), generation=2))
    assert digest(last, "c") == undisturbed


@pytest.mark.long
@pytest.mark.parametrize("steps", [3, *long(14)])
def test_a_shared_run_goes_on_as_one(worker_of: MakeWorker, work_of: MakeWork, steps: int) -> None:
    worker = worker_of("bert")

    def task(jobs: str, generation: int, done: int) -> TaskAssigned:
        orders = (
            job(work_of, jobs[0], generation, min(done, 12)),
            job(work_of, jobs[1], generation, done, other=True, iterations=18),
        )
        return assigned("n1", *orders, mode="spatial", generation=generation)

    whole = worker.run(task("ab", 1, 0))
    before = worker.run(task("cd", 1, 0), steps)
    after = worker.run(task("cd", 2, steps))
    assert digest(after, "d") == digest(whole, "b")
    finished = before if steps > 12 else after
    assert digest(finished, "c") == digest(whole, "a")


def test_a_shared_run_needs_the_newer_checkpoint_alone(worker_of: MakeWorker, work_of: MakeWork) -> None:
    """A worker may be killed between the checkpoints of both jobs."""
    worker = worker_of("bert")

    def task(jobs: str, generation: int, done: int) -> TaskAssigned:
        orders = (
            job(work_of, jobs[0], generation, done),
            job(work_of, jobs[1], generation, done, other=True),
        )
        return assigned("n1", *orders, mode="spatial", generation=generation)

    whole = worker.run(task("ab", 1, 0))
    worker.run(task("cd", 1, 0), 4)
    worker.files.store.remove("d")
    after = worker.run(task("cd", 2, 4))
    assert [digest(after, job_id) for job_id in "cd"] == [digest(whole, job_id) for job_id in "ab"]


@pytest.mark.parametrize("steps", [4, *long(12, 15)])
def test_chain_resumes_from_donor_or_receiver(worker_of: MakeWorker, work_of: MakeWork, steps: int) -> None:
    worker = worker_of("bert")

    def task(jobs: str, generation: int, done: int) -> TaskAssigned:
        orders = (
            job(work_of, jobs[0], generation, min(done, 12)),
            job(work_of, jobs[1], generation, max(done - 12, 0), other=True, iterations=8),
        )
        return assigned("n1", *orders, mode="temporal", generation=generation)

    whole = worker.run(task("ab", 1, 0))
    worker.run(task("cd", 1, 0), steps)
    assert digest(worker.run(task("cd", 2, steps)), "d") == digest(whole, "b")


@pytest.mark.long
def test_two_workers_match_one_for_merged_jobs(classifiers: Fleet, work_of: MakeWork) -> None:
    for jobs, gpus in (("ab", 1), ("cd", 2)):
        orders = order(jobs[0], work_of("roberta", 8)), order(jobs[1], work_of("roberta", 14, other=True))
        classifiers.assign(*orders, mode="spatial", members=(("n1", gpus),))
        classifiers.until_over(*(f"{job_id}/1" for job_id in jobs))
    for one, two in (("a", "c"), ("b", "d")):
        assert_trained_alike(classifiers.adapter(two), classifiers.adapter(one))
