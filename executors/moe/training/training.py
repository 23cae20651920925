"""A rank of a job that trains, from its first step to its last.

Between two steps all ranks tell each other whether they are to end, how many tokens their shares predict, and
rank 0 whether a checkpoint is due: so all collect the model at the same step.
"""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from enum import IntEnum
from hashlib import blake2b
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch._dynamo  # DistributedDataParallel imports it, which takes seconds: once, before processes fork.
from torch import Tensor, nn

from executors.elastic.checkpoint import reportable
from executors.gang.messages import Ended
from executors.gang.models import ModelError, model_directory
from executors.gang.places import checkpoint_root, result_path
from executors.lora.batch import TokenSequence
from executors.lora.columns import with_columns
from executors.lora.dataset import DatasetRoot, JsonlDataset
from executors.moe.block import moe_blocks
from executors.moe.ranks.comparison import compare, digests_of
from executors.moe.ranks.life import Rank, live
from executors.moe.ranks.messages import Joined
from executors.moe.training.checkpoint import FinishedJob, JobCheckpoints, TrainingState, publish
from executors.moe.training.model import MoeModel, load_model, records_of
from executors.moe.training.packing import PackingController, begin_packing
from executors.moe.training.peers import Peers
from executors.moe.training.reporting import Reporter
from executors.moe.training.samples import order_of
from executors.moe.training.spread import Connections, SpreadModel
from executors.moe.training.trainer import Trainer
from executors.node.checkpoints import StaleWriterError
from schemas.experts.workload import MoeTrainWorkload

_CHECKPOINT_POLL_S = 0.25
_EXPERTS_OF_A_TOKEN = 2

_log = logging.getLogger(__name__)


def run_rank(order_json: str, connection: "Connection[bytes, bytes]") -> None:
    """The whole life of a rank process that trains."""
    live(order_json, connection, train)


def train(rank: Rank) -> Ended:
    """Train until the job or this run of it is over.

    Raises:
        PeerLostError: another rank is gone.
        DisagreementError: ranks train other things.
        StaleWriterError: a later generation has taken the place of this one.
        ValueError: the job cannot be trained so, or its data cannot.
        ArithmeticError: the training has diverged.
    """
    order, workload = rank.order, rank.order.workload
    assert isinstance(workload, MoeTrainWorkload), "the kind of the workload has brought it here"
    checkpoints = JobCheckpoints(checkpoint_root(order.state_root, order.cell), order.job_id, workload)
    finished = checkpoints.finished(result_path(order.cell, order.user, order.job_id))
    if finished is not None:
        return _finished_before(rank, finished)
    # What is cheap to refuse is refused before anything heavy is loaded.
    directory = model_directory(order.model_root, workload.model)
    form = with_columns(records_of(directory, workload.model), workload.dataset.columns)
    dataset = DatasetRoot(order.dataset_root).open(workload.dataset.path, form=form)
    model = load_model(directory, workload)
    _see_that_it_fits(workload, model)
    same = {
        "the dataset": dataset.digest.encode(),
        "the model": _digest_of(model.module),
        "the workload": workload.model_dump_json().encode(),
    }
    membership = order.membership
    group = rank.meet()
    peers = Peers(group, order.peer_timeout_s)
    compare(same, peers.tell("the beginning of the training", digests_of(same)))
    connections = Connections(
        membership.rank, membership.world, rank.device, order.worker_host, order.peer_timeout_s
    )
    trainer = _trainer(workload, model, dataset, connections, peers, order.expert_memory_gib)
    ended = _Training(rank, workload, directory, dataset, checkpoints, trainer, peers).run()
    # Where it fails nothing is closed, since that would wait for the others once more; the process ends.
    connections.close()
    group.close()
    return ended


def _see_that_it_fits(workload: MoeTrainWorkload, model: MoeModel) -> None:
    longest, length = model.longest_sequence_tokens, workload.hyperparameters.sequence_length
    if longest is not None and length > longest:
        raise ModelError(workload.model, f"takes {longest} tokens, the job's sequences have {length}")
    counts = {len(block.router.get_parameter("weight")) for block in moe_blocks(model.module).values()}
    if len(counts) > 1:
        raise ModelError(workload.model, f"layers have {sorted(counts)} experts: all must have as many")


def _trainer(
    workload: MoeTrainWorkload,
    model: MoeModel,
    dataset: JsonlDataset,
    connections: Connections,
    peers: Peers,
    expert_memory_gib: float | None,
) -> Trainer:
    told = workload.hyperparameters
    (experts, *_) = (len(block.router.get_parameter("weight")) for block in moe_blocks(model.module).values())
    packing = begin_packing(connections.world, experts, workload.experts_per_device)
    sequences = -(-told.global_batch_size // connections.world)
    spread = SpreadModel(
        model.module,
        connections,
        packing,
        told.micro_op_mb,
        sequences * told.sequence_length * _EXPERTS_OF_A_TOKEN,
        expert_memory_gib,
    )

    def tokens_of(sample: int) -> TokenSequence:
        try:
            return dataset.tokenized(sample, model.tokenizer, told.sequence_length)
        except ValueError as error:
            raise ValueError(f"{dataset.name}, record {sample + 1}: {error}") from error

    order = order_of(workload, len(dataset), len(spread.layers))
    return Trainer(told, model, order, tokens_of, spread, connections, peers)


def _finished_before(rank: Rank, finished: FinishedJob) -> Ended:
    """The last word of a rank that finds the job finished: its leader reports it, once or again."""
    rank.inbox.tell(Joined(samples_done=finished.samples_done, dataset_samples=None))
    return _answered(rank, finished, node_s=0.0)


def _answered(rank: Rank, finished: FinishedJob, node_s: float) -> Ended:
    return Ended(
        reason="finished",
        samples_done=finished.samples_done,
        loss=finished.loss,
        node_s=node_s,
        answers=rank.leads,
        adapter_path=finished.adapter_path if rank.leads else None,
        adapter_digest=finished.adapter_digest if rank.leads else None,
    )


def _digest_of(module: nn.Module) -> bytes:
    digest = blake2b(digest_size=32)
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()


class _Wish(IntEnum):
    """Action that a rank wants of all next; the highest of all is done."""

    TRAIN = 0
    STOP = 1
    """The job stops here, with a checkpoint."""
    DISCARD = 2
    """The job stops here, and nothing is kept."""


@dataclass(frozen=True)
class _Boundary:
    """Message of one rank between two steps."""

    wish: int
    loss_tokens: int
    """Tokens that bear loss in its share of the next step."""
    saves: int
    """Whether a checkpoint is due; of rank 0."""


class _Training:
    """The loop of one rank."""

    def __init__(
        self,
        rank: Rank,
        workload: MoeTrainWorkload,
        directory: Path,
        dataset: JsonlDataset,
        checkpoints: JobCheckpoints,
        trainer: Trainer,
        peers: Peers,
    ) -> None:
        self._rank = rank
        self._workload = workload
        self._directory = directory
        self._dataset = dataset
        self._checkpoints = checkpoints
        self._trainer = trainer
        self._peers = peers
        self._saved_samples = 0
        self._saved_s = time.monotonic()
        self._reporter = Reporter(rank, trainer.layers, trainer.packing.experts)
        # On a CUDA device the clock does not see how long micro-ops take.
        is_fixed = workload.experts_per_device is not None or rank.device.type == "cuda"
        self._controller = PackingController(trainer.packing, is_fixed=is_fixed)
        self._steps = 0
        """In this generation."""

    def run(self) -> Ended:
        """Train to the end of the job, or of this run."""
        trainer = self._trainer
        self._resume()
        self._saved_s = time.monotonic()
        self._rank.inbox.tell(
            Joined(
                samples_done=self._saved_samples,
                dataset_samples=len(self._dataset),
                experts_per_device=trainer.packing.per_device,
                resident_experts=trainer.resident,
            )
        )
        while not trainer.is_finished:
            began_s = time.monotonic()
            own = trainer.share()
            read_s = time.monotonic() - began_s
            told = self._agree(own.loss_tokens)
            wish = max(each.wish for each in told)
            if wish != _Wish.TRAIN:
                return self._stop(keeps=wish == _Wish.STOP)
            if told[0].saves:
                self._save()
            began_s = time.monotonic()
            routing = trainer.step(own, sum(each.loss_tokens for each in told))
            took_s = read_s + time.monotonic() - began_s
            self._reporter.stepped(routing, reportable(trainer.loss), took_s)
            self._steps += 1
            packing = trainer.adjust(self._controller, self._steps)
            if packing is not None and self._rank.leads:
                _log.info(
                    "experts packed job=%s step=%d experts_per_device=%d resident_experts=%d",
                    *(self._rank.order.job_id, self._steps, packing.per_device, trainer.resident),
                )
        return self._finish()

    def _agree(self, loss_tokens: int) -> list[_Boundary]:
        """Return the messages of all ranks at the boundary of a step."""
        wish, release = _Wish.TRAIN, self._rank.inbox.release
        if release is not None:
            wish = _Wish.STOP if release.verdict == "stop" else _Wish.DISCARD
        is_due = time.monotonic() - self._saved_s >= self._rank.order.checkpoint_s
        mine = _Boundary(wish, loss_tokens, is_due)
        return [_Boundary(*row) for row in self._peers.tell("the boundary of a step", astuple(mine))]

    def _resume(self) -> None:
        """Go on from the newest checkpoint, if the cell knows of one; a job that it knows to be at its
        beginning starts anew, whatever lies there."""
        order, trainer = self._rank.order, self._trainer
        if order.resume_samples == 0:
            return
        found = self._peers.led("looking for a checkpoint", self._awaited_checkpoint)
        whole: dict[str, Tensor] = {}
        place = torch.tensor([0.0, 0.0, math.nan], dtype=torch.float64)
        if found is not None:
            whole, state = found
            loss = math.nan if state.loss is None else state.loss
            place = torch.tensor([state.samples_done, state.steps, loss], dtype=torch.float64)
        self._peers.spread("the place to go on from", place)
        samples_done, steps, loss = place.tolist()
        if samples_done < order.resume_samples and self._rank.leads:
            _log.warning(
                "run behind job=%s samples_done=%d expected=%d",
                *(order.job_id, samples_done, order.resume_samples),
            )
        if samples_done > 0:
            trainer.take(whole)
            trainer.move_to(int(samples_done), int(steps), None if math.isnan(loss) else loss)
            self._saved_samples = int(samples_done)
            self._reporter.resumed(self._saved_samples)

    def _awaited_checkpoint(self) -> tuple[dict[str, Tensor], TrainingState] | None:
        """The newest checkpoint. One that the cell knows of is waited for: its writer may still be at it."""
        order = self._rank.order
        deadline_s = time.monotonic() + order.checkpoint_wait_s
        newest = self._checkpoints.newest()
        while (
            newest is None or newest.samples_done < order.resume_samples
        ) and time.monotonic() < deadline_s:
            time.sleep(_CHECKPOINT_POLL_S)
            newest = self._checkpoints.newest()
        if newest is None:
            return None
        generation = order.membership.generation
        if newest.token > generation:
            raise StaleWriterError(f"generation {generation} was replaced by {newest.token}")
        return self._checkpoints.read(newest, self._trainer, self._dataset)

    def _save(self) -> None:
        trainer = self._trainer
        if self._saved_samples < trainer.samples_done:
            whole = trainer.collect()
            self._peers.led("writing a checkpoint", lambda: self._write(whole or {}))
            self._saved_samples = trainer.samples_done
            self._reporter.saved(self._saved_samples)
        self._saved_s = time.monotonic()

    def _write(self, whole: Mapping[str, Tensor]) -> None:
        self._rank.needed_bytes = max(1, sum(tensor.nbytes for tensor in whole.values()))
        generation = self._rank.order.membership.generation
        self._checkpoints.save(whole, self._trainer, self._dataset, generation)

    def _stop(self, *, keeps: bool) -> Ended:
        """End where the job is, all ranks together: none says that a checkpoint is there before it is."""
        if keeps:
            self._save()
        self._reporter.close()
        return Ended(
            reason="stopped",
            samples_done=self._saved_samples,
            loss=reportable(self._trainer.loss),
            node_s=self._reporter.node_s,
        )

    def _finish(self) -> Ended:
        """Publish what has been trained; the others wait for it."""
        trainer = self._trainer
        whole = trainer.collect()
        finished = self._peers.led("publishing the model", lambda: self._publish(whole or {}))
        self._reporter.saved(trainer.samples_done)
        self._reporter.close()
        if finished is not None:
            return _answered(self._rank, finished, self._reporter.node_s)
        return Ended(
            reason="finished",
            samples_done=trainer.samples_done,
            loss=reportable(trainer.loss),
            node_s=self._reporter.node_s,
        )

    def _publish(self, whole: Mapping[str, Tensor]) -> FinishedJob:
        order = self._rank.order
        path = result_path(order.cell, order.user, order.job_id)
        # This rank's own has no experts but those that it hosts.
        model = load_model(self._directory, self._workload)
        model.fill(whole)
        finished = publish(model, self._workload, self._trainer, order.output_root, path)
        self._checkpoints.finish(finished, order.membership.generation)
        self._rank.folder.remove()
        return finished
