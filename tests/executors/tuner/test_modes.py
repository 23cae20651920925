"""Normal, temporal and spatial tasks, against what a hand-written loop would come to."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from executors.lora.adapter import initial_parameters
from executors.lora.shared_base import SharedBase
from executors.tuner.checkpoints import lora_task
from executors.tuner.data import annealing_exponent, draw_sources, shares
from schemas.fleet import RunFinished, RunStarted
from schemas.merging.commands import JobOrder
from schemas.merging.reports import TaskEvaluated
from tests.support.nodes import CELL
from tests.support.tuner_nodes import Fleet, assigned, order, workload
from tests.support.tuner_tasks import LoneWorker, reports_of

_TOLERANCE = {"rtol": 1e-3, "atol": 1e-5}


class HandWritten:
    """PEFT, padded batches of one sequence, and torch's optimizer."""

    def __init__(self, worker: LoneWorker, first: JobOrder) -> None:
        self._worker = worker
        self._first = first.workload.hyperparameters
        config = LoraConfig(
            r=self._first.rank,
            lora_alpha=self._first.alpha,
            target_modules=list(self._first.target_modules),
            task_type="CAUSAL_LM",
        )
        reference = AutoModelForCausalLM.from_pretrained(worker.base.directory)
        self.model = get_peft_model(reference, config).eval()
        task = lora_task(first.job_id, first.workload)
        layout = worker.base.layout(task)
        self._load(layout.split(initial_parameters(layout, task.seed)))
        self.fresh_optimizer()

    def _load(self, matrices: dict[str, Tensor]) -> None:
        own = dict(self.model.named_parameters())
        for name, matrix in matrices.items():
            own[f"base_model.model.{name}".replace(".weight", ".default.weight")].data.copy_(matrix)

    def fresh_optimizer(self) -> None:
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=self._first.learning_rate, weight_decay=0.0)

    def step(self, sequences: list) -> None:
        self.optimizer.zero_grad()
        tokens = sum(each.loss_tokens for each in sequences)
        for each in sequences:
            ids = torch.tensor([each.token_ids])
            labels = ids.clone()
            labels[0, : each.loss_start] = -100
            loss = self.model(input_ids=ids, labels=labels, use_cache=False).loss
            (loss * each.loss_tokens / tokens).backward()
        trained = [each for each in self.model.parameters() if each.requires_grad]
        torch.nn.utils.clip_grad_norm_(trained, self._first.max_gradient_norm)
        self.optimizer.step()

    def train(self, job: JobOrder, iterations: int) -> None:
        loader = self._worker.loaders.open(job.workload)
        size = job.workload.hyperparameters.batch_size
        for number in range(iterations):
            records = loader.stream.indices(number * size, size)
            self.step([loader.training[record] for record in records])

    def adapter(self) -> dict[str, Tensor]:
        return {
            name.replace(".default.", "."): parameter.detach()
            for name, parameter in self.model.named_parameters()
            if "lora_" in name
        }


def published(worker: LoneWorker, job_id: str) -> dict[str, Tensor]:
    return load_file(worker.root / "output" / CELL / "u" / job_id / "adapter_model.safetensors")


def test_single_job_matches_plain_loop(worker: LoneWorker) -> None:
    job = order("a", workload(12))
    reports = worker.run(assigned("n1", job))
    loop = HandWritten(worker, job)
    loop.train(job, 12)
    torch.testing.assert_close(published(worker, "a"), loop.adapter(), **_TOLERANCE)
    (started,), (finished,) = reports_of(reports, RunStarted), reports_of(reports, RunFinished)
    assert (started.dataset_samples, finished.samples_done) == (48, 72)


def test_receiver_starts_from_donor_with_fresh_optimizer(worker: LoneWorker) -> None:
    donor, receiver = order("a", workload(9)), order("b", workload(7, dataset="other.jsonl"))
    worker.run(assigned("n1", donor, receiver, mode="temporal"))
    loop = HandWritten(worker, donor)
    loop.train(donor, 9)
    torch.testing.assert_close(published(worker, "a"), loop.adapter(), **_TOLERANCE)
    loop.fresh_optimizer()
    loop.train(receiver, 7)
    torch.testing.assert_close(published(worker, "b"), loop.adapter(), **_TOLERANCE)


@pytest.mark.long
def test_shared_run_is_one_adapter_on_both(worker: LoneWorker) -> None:
    first = order("a", workload(8))
    second = order("b", workload(14, dataset="other.jsonl", hyperparameters={"batch_size": 3}))
    worker.run(assigned("n1", first, second, mode="spatial"))
    loop = HandWritten(worker, first)
    loaders = [worker.loaders.open(job.workload) for job in (first, second)]
    drawn = [0, 0]
    for number in range(8):
        exponent = annealing_exponent(number * 9 // 78, epochs=2)  # 14 steps of 9, of 78 records
        sequences = []
        for source in draw_sources(0, number, 9, shares([48, 30], exponent)):
            (record,) = loaders[source].stream.indices(drawn[source], 1)
            drawn[source] += 1
            sequences.append(loaders[source].training[record])
        loop.step(sequences)
    torch.testing.assert_close(published(worker, "a"), loop.adapter(), **_TOLERANCE)
    assert min(drawn) > 0
    # When the first is done, the other goes on alone with the adapter and its optimizer.
    for number in range(6):
        records = loaders[1].stream.indices(drawn[1] + 3 * number, 3)
        loop.step([loaders[1].training[record] for record in records])
    torch.testing.assert_close(published(worker, "b"), loop.adapter(), **_TOLERANCE)


def test_adapter_with_frozen_layers_loads_in_peft(worker: LoneWorker) -> None:
    worker.run(assigned("n1", order("a", workload(6, hyperparameters={"frozen_layers": 1}))))
    model = AutoModelForCausalLM.from_pretrained(worker.base.directory)
    adapted = PeftModel.from_pretrained(model, worker.root / "output" / CELL / "u" / "a")
    matrices = {name: each for name, each in adapted.named_parameters() if "lora_" in name}
    assert {name.split(".")[4] for name in matrices} == {"1"}
    assert all(float(each.abs().max()) > 0 for each in matrices.values())


def test_workers_on_two_nodes_train_what_one_does(fleet: Fleet) -> None:
    fleet.add("n2")
    members = (("n1", 2), ("n2", 1))
    fleet.assign(order("one", workload(20, hyperparameters={"dropout": 0.1})))
    fleet.until_over("one/1")
    fleet.assign(order("three", workload(20, hyperparameters={"dropout": 0.1})), members=members)
    fleet.until_over("three/1")
    torch.testing.assert_close(fleet.adapter("three"), fleet.adapter("one"), **_TOLERANCE)
    one, three = (fleet.reports(TaskEvaluated, job_id) for job_id in ("one", "three"))
    assert [each.iterations for each in three] == [each.iterations for each in one]
    assert three[0].loss == pytest.approx(one[0].loss, rel=1e-3)
    assert (three[0].step.gpus, three[0].step.nodes, three[0].step.micro_batch_size) == (3, 2, 2)
    # The leader's node reports for all.
    assert {each.node for each in three} == {"n1"}
    assert not fleet.nodes["n2"].reports


@pytest.mark.long
def test_two_workers_match_one_for_merged_task(fleet: Fleet) -> None:
    for jobs, gpus in ((("a", "b"), 1), (("c", "d"), 2)):
        first, second = (
            order(job_id, workload(8 + 6 * index, dataset=data))
            for index, (job_id, data) in enumerate(zip(jobs, ("pairs.jsonl", "other.jsonl"), strict=True))
        )
        fleet.assign(first, second, mode="spatial", members=(("n1", gpus),))
        fleet.until_over(*(f"{job_id}/1" for job_id in jobs))
    for one, two in (("a", "c"), ("b", "d")):
        torch.testing.assert_close(fleet.adapter(two), fleet.adapter(one), **_TOLERANCE)


def test_published_adapters_lie_apart_by_user(fleet: Fleet, base: SharedBase, tmp_path: Path) -> None:
    fleet.assign(order("a", workload(2)).model_copy(update={"user": "someone"}))
    fleet.until_over("a/1")
    (finished,) = fleet.reports(RunFinished)
    assert finished.adapter_path == f"{CELL}/someone/a"
    assert (tmp_path / "output" / finished.adapter_path / "adapter_config.json").is_file()
