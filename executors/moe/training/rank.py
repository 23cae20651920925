"""A rank of a job that trains a mixture-of-experts model, spread over the ranks of its generation."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from multiprocessing.connection import Connection

import torch
import torch._dynamo  # DistributedDataParallel imports it, which takes seconds: once, before processes fork.
from torch import Tensor, nn

from executors.gang.checkpoints import MODEL_TENSORS, JobResult, Position, State
from executors.gang.group import ProcessGroup
from executors.gang.job_models import ModelError, check_length, model_directory
from executors.gang.rank import GangRank, run_rank_process
from executors.gang.rank_speed import RankShare, StepSums, rank_share
from executors.gang.training import GangTraining
from executors.lora.batch import TokenSequence
from executors.lora.dataset import DatasetRoot
from executors.lora.records import with_columns
from executors.lora.task_files import FIRST_MOMENT, OPTIMIZER_TENSORS, SECOND_MOMENT
from executors.moe.block import moe_blocks, set_gating
from executors.moe.gating import Gating
from executors.moe.parallel.packing import PackingController, begin_packing
from executors.moe.runner import MoeOrder
from executors.moe.training.model import MoeModel, load_model, records_of
from executors.moe.training.profiling import TrainedPaths
from executors.moe.training.routing import RoutingReporter
from executors.moe.training.samples import order_of
from executors.moe.training.spread import Connections, SpreadModel
from executors.moe.training.trainer import ORDER, ExpertTrainer, SampleShare
from schemas.experts.workload import MoeTrainWorkload, ThresholdOn

ORDER_TENSORS = "order.safetensors"
ROUTING_TENSORS = "routing.safetensors"
"""File of a checkpoint with the sample paths, and with `_IS_ON_ALL`."""
ADAPTER_FOLDER = "adapter"
"""Folder in the result, which is a whole model."""
_IS_ON_ALL = "is_threshold_on_all"
"""Tensor (1,) uint8: 1 if the threshold of the gating is on the softmax over all experts. Checkpoints without
it are of models that were trained so."""
_EXPERTS_OF_A_TOKEN = 2

_log = logging.getLogger(__name__)


def run_rank(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    run_rank_process(MoeOrder, ExpertTraining, order_json, connection)


class ExpertTraining(GangTraining[MoeOrder, SampleShare]):
    """See `GangTraining`. Each rank hosts a part of the experts: an `ExpertTrainer` has its part."""

    HAS_BACKGROUND_COLLECTIVES = True
    RESUMES_UNREPORTED = False
    UNTIMED_STEPS = 2
    """DistributedDataParallel rebuilds its buckets before the second step."""

    def __init__(self, rank: GangRank[MoeOrder]) -> None:
        workload = rank.order.workload
        assert isinstance(workload, MoeTrainWorkload), "RANK_WORK names this work for its kind"
        self._workload = workload
        # A checkpoint is whole: any number of ranks can continue from it.
        identity = workload.model_dump(mode="json", exclude={"ranks", "experts_per_device"})
        super().__init__(rank, identity=identity)

    def prepare(self) -> None:
        order, workload = self.rank.order, self._workload
        self._directory = model_directory(order.model_root, workload.model)
        form = with_columns(records_of(self._directory, workload.model), workload.dataset.columns)
        self.dataset = DatasetRoot(order.dataset_root).open(workload.dataset.path, form=form)
        self._model = load_model(self._directory, workload)
        _check_model(workload, self._model)

    def identities(self) -> Mapping[str, bytes]:
        return {
            **super().identities(),
            "the model": _digest_of(self._model.module),
            "the workload": self._workload.model_dump_json().encode(),
        }

    def connect(self, group: ProcessGroup) -> None:
        order, workload, device = self.rank.order, self._workload, self.rank.device
        self._connections = Connections(
            group.rank, group.world, device, order.rank_host, order.peer_timeout_s
        )
        self._trainer = trainer = self._new_trainer(group)
        self._reporter = RoutingReporter(self.rank, trainer.layers, trainer.packing.experts)
        # On a CUDA device the clock does not measure micro-ops.
        is_fixed = workload.experts_per_device is not None or device.type == "cuda"
        self._controller = PackingController(trainer.packing, is_fixed=is_fixed)
        self._steps = 0

    def disconnect(self) -> None:
        self._connections.close()

    def details(self) -> dict[str, int]:
        trainer = self._trainer
        return {"experts_per_device": trainer.packing.per_device, "resident_experts": trainer.resident}

    @property
    def position(self) -> Position:
        trainer = self._trainer
        return Position(trainer.samples_done, trainer.steps, trainer.loss)

    def move_to(self, position: Position) -> None:
        self._trainer.move_to(position.samples_done, position.steps, position.loss)

    @property
    def is_finished(self) -> bool:
        return self._trainer.is_finished

    def share(self, rank: int, world: int) -> SampleShare:  # noqa: ARG002 -- connected
        return self._trainer.share()

    def computed(self, own: SampleShare) -> RankShare:
        return rank_share(own.sequences, len(own.sequences))

    def step(self, group: ProcessGroup, own: SampleShare, loss_tokens: int) -> None:  # noqa: ARG002 -- connected
        trainer = self._trainer
        self._reporter.add(trainer.step(own, loss_tokens), self.saved_samples)
        self._steps += 1
        if self.rank.device.type != "cuda":
            self.step_sums.exchange_s += trainer.pop_exchange_s()
        packing = trainer.adjust(self._controller, self._steps)
        if packing is not None:
            self.step_sums = StepSums(untimed=1)  # this step had experts as they were packed before
        if packing is not None and self.rank.leads:
            _log.info(
                "experts packed job=%s step=%d experts_per_device=%d resident_experts=%d",
                *(self.rank.order.job_id, self._steps, packing.per_device, trainer.resident),
            )

    def flush_reports(self) -> None:
        self._reporter.flush(self.saved_samples)

    def collect(self, group: ProcessGroup | None) -> State | None:
        if group is None:
            return None
        whole, paths = self._trainer.collect(), self._paths.collect(group)
        if whole is None or paths is None:
            return None
        state: State = {MODEL_TENSORS: {}, OPTIMIZER_TENSORS: {}, ORDER_TENSORS: {}}
        files = {
            file: {name: tensor for name, tensor in whole.items() if _file_of(name) == file} for file in state
        }
        is_on_all = torch.tensor([self._gating.threshold_on == "all"], dtype=torch.uint8)
        return {**files, ROUTING_TENSORS: {**paths, _IS_ON_ALL: is_on_all}}

    def restore(self, group: ProcessGroup, state: State | None) -> None:
        files = dict(state or {})
        routing = dict(files.pop(ROUTING_TENSORS, {}))
        whole = {name: tensor for tensors in files.values() for name, tensor in tensors.items()}
        is_on_all = routing.pop(_IS_ON_ALL, torch.ones(1, dtype=torch.uint8))
        if state is not None:
            self._trainer.check(whole)
            self._paths.load(routing)
        group.spread("the gating of the model", [is_on_all], 0)
        self._gate(is_on_all)
        self._trainer.restore(whole)

    def result(self, state: State) -> JobResult:
        # This rank's own model has only the experts that it hosts.
        model = load_model(self._directory, self._workload)
        described = model.description.model_copy(update={"gating": self._gating})
        model = replace(model, description=described)
        model.fill(state[MODEL_TENSORS])
        adapter = model.adapter_files()
        tensors = {name: tensor for name, tensor in state[ROUTING_TENSORS].items() if name != _IS_ON_ALL}
        folders = {"": model.files(self._paths.profile_of(tensors))}
        if adapter is None:
            return JobResult(folders)
        return JobResult({**folders, ADAPTER_FOLDER: adapter}, ADAPTER_FOLDER)

    def _new_trainer(self, group: ProcessGroup) -> ExpertTrainer:
        workload, model, dataset = self._workload, self._model, self.dataset
        assert dataset is not None, "it was prepared"
        hyperparameters = workload.hyperparameters
        blocks = moe_blocks(model.module).values()
        (experts, *_) = (len(block.router.get_parameter("weight")) for block in blocks)
        packing = begin_packing(group.world, experts, workload.experts_per_device)
        sequences = -(-hyperparameters.global_batch_size // group.world)
        spread = SpreadModel(
            model.module,
            self._connections,
            packing,
            hyperparameters.micro_op_mb,
            sequences * hyperparameters.sequence_length * _EXPERTS_OF_A_TOKEN,
            self.rank.order.expert_memory_gib,
        )

        def tokens_of(sample: int) -> TokenSequence:
            return dataset.tokenized(sample, model.tokenizer, hyperparameters.sequence_length)

        order = order_of(workload, len(dataset), len(spread.layers))
        self._paths = TrainedPaths(workload, len(spread.layers), experts)
        return ExpertTrainer(
            hyperparameters, model, order, tokens_of, spread, self._connections, group, self._paths
        )

    @property
    def _gating(self) -> Gating:
        return next(iter(moe_blocks(self._model.module).values())).gating

    def _gate(self, is_on_all: Tensor) -> None:
        """Set the probabilities of the threshold to those that a checkpoint was trained with."""
        threshold_on: ThresholdOn = "all" if is_on_all else "chosen"
        set_gating(self._model.module, replace(self._gating, threshold_on=threshold_on))


def _check_model(workload: MoeTrainWorkload, model: MoeModel) -> None:
    length = workload.hyperparameters.sequence_length
    check_length(model.module, workload.model, "the job's sequences have", length)
    counts = {len(block.router.get_parameter("weight")) for block in moe_blocks(model.module).values()}
    if len(counts) > 1:
        raise ModelError(workload.model, f"layers have {sorted(counts)} experts: all must have as many")


def _digest_of(module: nn.Module) -> bytes:
    digest = blake2b(digest_size=32)
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()


def _file_of(name: str) -> str:
    if name.startswith((FIRST_MOMENT, SECOND_MOMENT)):
        return OPTIMIZER_TENSORS
    return ORDER_TENSORS if name.startswith(ORDER) else MODEL_TENSORS
