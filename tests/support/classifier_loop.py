"""Fine-tuning of a classifier by hand: PEFT, one sequence at a time, and torch's optimizer."""

from collections.abc import Mapping, Sequence

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

from executors.lora.adapter import initial_parameters
from executors.tuner.checkpoints import lora_task
from schemas.merging.commands import JobOrder
from tests.support.tuner_tasks import LoneWorker

_OWN = "modules_to_save.default."


class ClassifierLoop:
    """One set of low-rank matrices, and a head for each job."""

    def __init__(self, worker: LoneWorker, first: JobOrder, jobs: int = 1) -> None:
        self._worker = worker
        self._first = first.workload.hyperparameters
        config = LoraConfig(
            r=self._first.rank,
            lora_alpha=self._first.alpha,
            target_modules=list(self._first.target_modules),
            exclude_modules=["pooler.dense"],
            fan_in_fan_out=any(site.is_transposed for site in worker.base.sites.values()),
            task_type="SEQ_CLS",
        )
        plain = AutoModelForSequenceClassification.from_pretrained(worker.base.directory)
        self.model = get_peft_model(plain, config).eval()
        task = lora_task(first.job_id, first.workload)
        layout = worker.base.layout(task)
        parameters = dict(self.model.named_parameters())
        for name, value in layout.split(initial_parameters(layout, task.seed)).items():
            found = parameters.get(f"base_model.model.{name}".replace(".weight", ".default.weight"))
            if found is not None:
                found.data.copy_(value)
        self._matrices = {name: each for name, each in parameters.items() if "lora_" in name}
        self._initial = {name: each.detach().clone() for name, each in parameters.items() if _OWN in name}
        self.heads = [self._fresh_head() for _ in range(jobs)]
        self.fresh_optimizer()

    def fresh_optimizer(self) -> None:
        self._trained = [*self._matrices.values(), *(each for head in self.heads for each in head.values())]
        self.optimizer = torch.optim.AdamW(self._trained, lr=self._first.learning_rate, weight_decay=0.0)

    def begin_next(self) -> None:
        """The next job has the matrices as they are, with a head and an optimizer of its own."""
        self.heads = [self._fresh_head()]
        self.fresh_optimizer()

    def step(self, sequences: Sequence, sources: Sequence[int] | None = None) -> None:
        self.optimizer.zero_grad()
        for each, source in zip(sequences, sources or [0] * len(sequences), strict=True):
            ids = torch.tensor([each.token_ids])
            logits = functional_call(self.model, self.heads[source], kwargs={"input_ids": ids}).logits
            (cross_entropy(logits, torch.tensor([each.label])) / len(sequences)).backward()
        for parameter in self._trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        torch.nn.utils.clip_grad_norm_(self._trained, self._first.max_gradient_norm)
        self.optimizer.step()

    def train(self, job: JobOrder, iterations: int) -> None:
        loader = self._worker.loaders.open(job.workload)
        size = job.workload.hyperparameters.batch_size
        for number in range(iterations):
            records = loader.stream.indices(number * size, size)
            self.step([loader.training[record] for record in records])

    def adapter(self, head: int = 0) -> dict[str, Tensor]:
        """As it is published for a job."""
        tensors = {**self._matrices, **self.heads[head]}
        return {
            name.replace(_OWN, "").replace(".default.", "."): each.detach().clone()
            for name, each in tensors.items()
        }

    def _fresh_head(self) -> dict[str, Tensor]:
        return {name: each.clone().requires_grad_() for name, each in self._initial.items()}


def assert_trained_alike(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Assert that two trainings of the same steps came to the same, but for rounding.

    AdamW divides a gradient by its own size. The first step of an element whose gradient is next to nothing
    is as large as any other and follows rounding, which differs from one processor to another: of each tensor
    one element in 32 may be off.
    """
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        close = torch.isclose(found[name], tensor, rtol=1e-3, atol=5e-4)
        off = int((~close).sum())
        assert off * 32 <= close.numel(), f"{name}: {off} of {close.numel()} elements differ"
