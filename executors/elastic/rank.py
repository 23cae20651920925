"""A rank of a data-parallel job: it trains its share of each batch, on any number of ranks."""

from collections.abc import Mapping
from multiprocessing.connection import Connection

from torch import Tensor

from executors.elastic.model import load_model
from executors.elastic.runner import ElasticOrder
from executors.elastic.training import DataParallelTrainer, SequenceShare
from executors.gang.checkpoints import MODEL_TENSORS, OPTIMIZER_TENSORS, JobResult, Position, State
from executors.gang.group import ProcessGroup
from executors.gang.models import model_directory
from executors.gang.rank import GangRank, live
from executors.gang.replicated import ReplicatedTraining
from executors.lora.checkpoint import ADAPTER_TENSORS
from executors.lora.columns import with_columns
from executors.lora.dataset import DatasetError, DatasetRoot
from executors.lora.model_kind import text_records


def run_rank(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Run a rank of an elastic job."""
    live(ElasticOrder, DataParallelTraining, order_json, connection)


class DataParallelTraining(ReplicatedTraining[ElasticOrder, SequenceShare]):
    """See `GangTraining`. A `DataParallelTrainer` holds the state."""

    def __init__(self, rank: GangRank[ElasticOrder]) -> None:
        self._workload = rank.order.workload
        super().__init__(rank, keeps_checkpoints=self._workload.keeps_checkpoints)

    def prepare(self) -> None:
        order, workload = self.rank.order, self._workload
        directory = model_directory(order.model_root, workload.model)
        form = with_columns(text_records(directory), workload.dataset.columns)
        self.dataset = DatasetRoot(order.dataset_root).open(workload.dataset.path, form=form)
        seed = workload.hyperparameters.seed
        model = load_model(directory, workload.adapter, seed, self.rank.device, workload.model)
        self._trainer = DataParallelTrainer(workload, model, self.dataset)
        self._trainer.warm_up()

    @property
    def position(self) -> Position:
        return self._trainer.position

    def move_to(self, position: Position) -> None:
        self._trainer.move_to(position)

    def share(self, rank: int, world: int) -> SequenceShare:
        return self._trainer.share(rank, world)

    def step(self, group: ProcessGroup, own: SequenceShare, loss_tokens: int) -> None:
        self._trainer.step(own, loss_tokens, lambda vector: group.add_up("the gradient", vector))

    def tensors(self) -> Mapping[str, Mapping[str, Tensor]]:
        tensors = self._trainer.tensors()
        names = dict(self._trainer.model.parameters())
        return {
            MODEL_TENSORS: {name: tensors[name] for name in names},
            OPTIMIZER_TENSORS: {name: each for name, each in tensors.items() if name not in names},
        }

    def result(self, state: State) -> JobResult:  # noqa: ARG002 -- the model has it
        files = self._trainer.model.files()
        return JobResult({"": files}, "" if ADAPTER_TENSORS in files else None)

    def disagreement(self, name: str, ranks: list[int]) -> Exception:  # noqa: ARG002 -- there is one
        return DatasetError(f"{self._workload.dataset.path}: differs between the nodes of the job")
