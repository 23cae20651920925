"""A rank of a data-parallel job: it trains its share of each batch, on any number of ranks."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from peft import PeftModel
from pydantic import JsonValue
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from executors.elastic.job_agent import JobAgent, KnownNoise
from executors.elastic.runner import ElasticOrder
from executors.elastic.shares import BatchShares, KnownWorkers
from executors.gang.batches import IGNORED, global_batch, pad
from executors.gang.checkpoints import MODEL_TENSORS, JobResult, Position, State
from executors.gang.faults import is_out_of_memory, raise_if_diverged
from executors.gang.group import ProcessGroup
from executors.gang.job_models import (
    TrainableModel,
    check_length,
    model_directory,
    named_as_in_job,
    put_adapter,
)
from executors.gang.rank import GangRank, run_rank_process
from executors.gang.rank_speed import RankShare, rank_share
from executors.gang.replicated import ReplicatedTraining
from executors.lora.adapted_pass import precision
from executors.lora.adapter import adamw
from executors.lora.base_model import load_tokenizer
from executors.lora.batch import TokenSequence
from executors.lora.dataset import DatasetError, DatasetRoot
from executors.lora.faults import described
from executors.lora.model_kind import BaseModelError, is_classifier, read_config, text_records
from executors.lora.pretrained import load_pretrained, refuse_missing
from executors.lora.randomness import derive_seed
from executors.lora.records import with_columns
from executors.lora.task_files import ADAPTER_TENSORS, FIRST_MOMENT, OPTIMIZER_TENSORS, SECOND_MOMENT
from executors.throttle import throttle
from schemas.base import Record
from schemas.lora import LoraHyperparameters

_log = logging.getLogger(__name__)


def run_rank(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    run_rank_process(ElasticOrder, DataParallelTraining, order_json, connection)


@dataclass(frozen=True)
class SequenceShare:
    """One rank's part of a global batch."""

    first: int
    """Place of its first sequence in the batch."""
    sequences: Sequence[TokenSequence]

    @property
    def loss_tokens(self) -> int:
        return sum(sequence.loss_tokens for sequence in self.sequences)


class JobNotes(Record):
    """Knowledge that a checkpoint keeps besides the state of the training."""

    workers: KnownWorkers
    noise: KnownNoise | None


class DataParallelTraining(ReplicatedTraining[ElasticOrder, SequenceShare]):
    """A model, AdamW's moments and a position in the data, the same on all ranks of a job between steps. See
    `GangTraining`.

    The loss of a step is the mean over all tokens that are predicted in the global batch. Each rank adds up
    the gradient of its own share, micro-batch by micro-batch, divided by the tokens of the whole batch; the
    sum over the ranks is the gradient of the whole batch, for any shares.
    """

    def __init__(self, rank: GangRank[ElasticOrder]) -> None:
        self._workload = rank.order.workload
        super().__init__(rank, keeps_checkpoints=self._workload.keeps_checkpoints)
        self._hyperparameters = self._workload.hyperparameters
        self._present = Position()
        tuning = self._workload.tuning
        self.agent = None if tuning is None else JobAgent(self._hyperparameters, tuning)
        self.shares: BatchShares

    def prepare(self) -> None:
        """See `GangTraining`.

        Raises:
            ModelError: the model cannot be trained, or the sequences of the job are too long for it.
            ValueError: a record leaves nothing to predict.
        """
        order, workload, hyperparameters = self.rank.order, self._workload, self._hyperparameters
        directory = model_directory(order.model_root, workload.model)
        form = with_columns(text_records(directory), workload.dataset.columns)
        self.dataset = self._data = DatasetRoot(order.dataset_root).open(workload.dataset.path, form=form)
        device, seed = self.rank.device, hyperparameters.seed
        self.model = load_model(directory, workload.adapter, seed, device, workload.model)
        length = hyperparameters.sequence_length
        check_length(self.model.module, workload.model, "the job's sequences have", length)
        self._parameters = dict(self.model.parameters())
        # One vector for all gradients, so that a step adds them up over the ranks at once; the last
        # element is for the loss.
        size = sum(parameter.numel() for parameter in self._parameters.values())
        self._sums = torch.zeros(size + 1, device=device)
        self._gradient = self._sums[:-1]
        start = 0
        for parameter in self._parameters.values():
            parameter.grad = self._gradient[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        moments = {
            each: (torch.zeros_like(each), torch.zeros_like(each)) for each in self._parameters.values()
        }
        self._optimizer = adamw(moments, hyperparameters.learning_rate, hyperparameters.weight_decay, 0)
        self.shares = BatchShares(
            f"{order.node}/{order.gpu}", _gpu_type(device), hyperparameters.micro_batch_size
        )
        # The first pass of a process takes longer, so it runs before others wait for it.
        self._loss(self.share(0, len(self._batch())).sequences).backward()
        self._sums.zero_()

    @property
    def position(self) -> Position:
        return self._present

    def move_to(self, position: Position) -> None:
        self._present = position
        for moments in self._optimizer.state.values():
            moments["step"].fill_(position.steps)

    def share(self, rank: int, world: int) -> SequenceShare:
        batch = self._batch()
        places = self.shares.places(len(batch), rank, world)
        sequences = [
            self._data.tokenized(batch[place], self.model.tokenizer, self._hyperparameters.sequence_length)
            for place in places
        ]
        return SequenceShare(places.start, sequences)

    def computed(self, own: SequenceShare) -> RankShare:
        return rank_share(own.sequences, self.shares.micro_batch)

    def step(self, group: ProcessGroup, own: SequenceShare, loss_tokens: int) -> None:
        while not self._accumulate(own, loss_tokens):
            pass
        accumulated_ns = time.monotonic_ns()
        group.add_up("the gradient", self._sums)
        if self.rank.device.type == "cuda":
            torch.cuda.synchronize(self.rank.device)
        self.step_sums.exchange_s += (time.monotonic_ns() - accumulated_ns) / 1e9
        norm = float(torch.linalg.vector_norm(self._gradient))
        loss_value = float(self._sums[-1])
        raise_if_diverged(loss_value, norm, self._present.samples_done)
        if norm > self._hyperparameters.max_gradient_norm:
            self._gradient.mul_(self._hyperparameters.max_gradient_norm / norm)
        self._optimizer.step()
        done, batch = self._present, len(self._batch())
        self._present = Position(done.samples_done + batch, done.steps + 1, loss_value)
        if self.agent is not None:
            self.agent.end_step(group, norm, batch, time.monotonic_ns() - accumulated_ns)
        self.shares.end_step(group)

    def begin(self, group: ProcessGroup) -> None:
        if self.agent is None:
            self.shares.begin(group, lambda _: self._hyperparameters.global_batch_size)
            return
        self.agent.begin(group)
        self.shares.begin(group, self.agent.best_batch)
        self.agent.use_batch(self.shares.batch)
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = self.agent.learning_rate

    def details(self) -> dict[str, int]:
        return {} if self.agent is None else {"global_batch": self.agent.batch}

    def step_terms(self) -> bytes:
        rate = None if self.agent is None else self.agent.learning_rate
        return repr((self.shares.counts, rate)).encode()

    def notes(self) -> JsonValue:
        noise = None if self.agent is None else self.agent.notes()
        return JobNotes(workers=self.shares.known, noise=noise).model_dump(mode="json")

    def recall(self, notes: JsonValue) -> None:
        known = JobNotes.model_validate(notes)
        self.shares.known = known.workers
        if self.agent is not None and known.noise is not None:
            self.agent.recall(known.noise)

    def tensors(self) -> Mapping[str, Mapping[str, Tensor]]:
        moments = {}
        for name, parameter in self._parameters.items():
            state = self._optimizer.state[parameter]
            moments[FIRST_MOMENT + name] = state["exp_avg"]
            moments[SECOND_MOMENT + name] = state["exp_avg_sq"]
        model = {name: parameter.detach() for name, parameter in self._parameters.items()}
        return {MODEL_TENSORS: model, OPTIMIZER_TENSORS: moments}

    def result(self, state: State) -> JobResult:  # noqa: ARG002 -- the model has it
        files = self.model.files()
        return JobResult({"": files}, "" if ADAPTER_TENSORS in files else None)

    def disagreement(self, name: str, ranks: list[int]) -> Exception:  # noqa: ARG002 -- there is one
        return DatasetError(f"{self._workload.dataset.path}: differs between the nodes of the job")

    def _accumulate(self, own: SequenceShare, loss_tokens: int) -> bool:
        """Add the gradient of the own share up, micro-batch by micro-batch.

        Returns:
            False if memory was too small. The micro-batch is then half as large, and the whole gradient has
            to be added up again, since an aborted backward pass leaves a part of its gradient.

        Raises:
            OutOfMemoryError, MemoryError, RuntimeError: memory is too small for one sequence.
        """
        self._sums.zero_()
        micro, began_s = self.shares.micro_batch, time.monotonic()
        try:
            with self.shares.measured(len(own.sequences), self.rank.device):
                for start in range(0, len(own.sequences), micro):
                    self._add_gradient(own, range(start, start + micro), loss_tokens)
                    if start == 0 and self.agent is not None:
                        self._note_part(self.agent, own.sequences[:micro], loss_tokens)
                throttle(began_s, len(own.sequences), self.rank.order.least_sequence_s)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or not self.shares.shrink():
                raise
            fault = described(error)
        else:
            return True
        # Here the error is gone, and with it the tensors of its traceback.
        _log.warning(
            "micro-batch halved job=%s sequences=%d error=%r",
            *(self.rank.order.job_id, self.shares.micro_batch, fault),
        )
        if self.rank.device.type == "cuda":
            torch.cuda.empty_cache()
        return False

    def _note_part(self, agent: JobAgent, part: Sequence[TokenSequence], loss_tokens: int) -> None:
        """Note the gradient of the first micro-batch, which is all that is added up by then."""
        tokens = sum(sequence.loss_tokens for sequence in part)
        agent.note_part(self._gradient, len(part), tokens / loss_tokens)

    def _add_gradient(self, own: SequenceShare, places: range, loss_tokens: int) -> None:
        """Add the gradient of one micro-batch to the sums, and its loss."""
        # Masks are drawn from a new seed for each micro-batch, so that they do not depend on earlier steps.
        first = self._present.samples_done + own.first + places.start
        torch.manual_seed(derive_seed(self._hyperparameters.seed, "dropout", first))
        loss = self._loss(own.sequences[places.start : places.stop]) / loss_tokens
        loss.backward()
        self._sums[-1] += loss.detach()

    def _batch(self) -> list[int]:
        return global_batch(
            len(self._data),
            self._hyperparameters.seed,
            self._present.samples_done,
            self._hyperparameters.global_batch_size if self.agent is None else self.agent.batch,
            self._workload.work_samples,
        )

    def _loss(self, sequences: Sequence[TokenSequence]) -> Tensor:
        device = self.rank.device
        batch = pad(sequences, device)
        with precision(device):
            logits = self.model.module(
                input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
            ).logits
        return cross_entropy(
            logits[:, :-1].float().flatten(0, 1),
            batch.labels[:, 1:].flatten(),
            ignore_index=IGNORED,
            reduction="sum",
        )


def _gpu_type(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def load_model(
    directory: Path, adapter: LoraHyperparameters | None, seed: int, device: torch.device, name: str
) -> TrainableModel:
    """Load a model, with a new adapter on it if one is given.

    Trained parameters are float32. Frozen ones are float32 on a CPU and bfloat16 on CUDA.

    Args:
        name: name of the model in the job.

    Raises:
        ModelError: it is not a causal language model, or a target module matches no layer.
        OSError: a file cannot be read.
    """
    is_frozen_bf16 = adapter is not None and device.type == "cuda"
    with named_as_in_job(directory, name):
        config = read_config(directory)
        if is_classifier(config):
            raise BaseModelError(
                f"{directory}: a sequence classifier, and only causal language models are trained here"
            )
        base, missing = load_pretrained(
            AutoModelForCausalLM, directory, config, torch.bfloat16 if is_frozen_bf16 else torch.float32
        )
        refuse_missing(directory, base, missing)
        tokenizer = load_tokenizer(directory, base)
    module: PreTrainedModel | PeftModel = base
    if adapter is not None:
        torch.manual_seed(derive_seed(seed, "weights"))
        targets = "all-linear" if adapter.is_all_linear else list(adapter.target_modules)
        module = put_adapter(base, adapter, name, target_modules=targets, task_type="CAUSAL_LM")
    return TrainableModel(module.train().to(device), tokenizer)
