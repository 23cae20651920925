"""One rank's part of a training step, and of the state between two steps."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from executors.gang.batches import share
from executors.gang.faults import raise_if_diverged
from executors.gang.group import ProcessGroup
from executors.gang.meeting import lost_at
from executors.lora.adapted_pass import precision
from executors.lora.adapter import adamw, refuse_unfit_tensors
from executors.lora.batch import TokenSequence
from executors.lora.randomness import derive_seed
from executors.lora.task_files import FIRST_MOMENT, SECOND_MOMENT
from executors.moe.block import pop_passes
from executors.moe.parallel.exchange import agreed_times
from executors.moe.parallel.offloading import put_together, split_like
from executors.moe.parallel.packing import Packing, PackingController
from executors.moe.parallel.scheduler import failures_named
from executors.moe.training.hosting import ExpertTensor
from executors.moe.training.model import MoeModel
from executors.moe.training.profiling import TrainedPaths
from executors.moe.training.routing import BatchRouting
from executors.moe.training.samples import SampleOrder
from executors.moe.training.spread import Connections, SpreadModel
from schemas.experts.workload import MoeHyperparameters

ORDER = "order."
"""Prefix of the tensors of the sample order."""


class Sequences(Protocol):
    """The data in tokens."""

    def __call__(self, sample: int) -> TokenSequence:
        """Return the tokens of one sample, by its number.

        Raises:
            ValueError: it leaves nothing to predict.
        """


@dataclass(frozen=True)
class SampleShare:
    """One rank's part of a global batch.

    Attributes:
        samples: numbers of the samples of the whole batch.
        places: places of this rank's samples in the batch; empty with fewer samples than ranks.
        sequences: sequences at these places; for a rank without any, the first of the batch, which is passed
            through the model but does not count, since all ranks take part in each pass.
    """

    samples: Sequence[int]
    places: range
    sequences: Sequence[TokenSequence]

    @property
    def loss_tokens(self) -> int:
        """Number of predicted tokens that count."""
        return sum(sequence.loss_tokens for sequence in self.sequences) if self.places else 0


class ExpertTrainer:
    """A rank's part of a model, AdamW's moments of it, and a position in the data.

    The loss of a step is the mean over all tokens that are predicted in the global batch, plus the balance
    loss of that batch (Eq. 5.4), as one process would compute both. Gradients are averaged over ranks, so a
    rank's own loss is its part of the sum, times the number of ranks. The gradient is scaled down by its norm
    over all parameters, each expert's counted once. Methods that exchange with other ranks raise
    `CollectiveLostError` if one is lost.

    Attributes:
        samples_done: samples trained.
        steps: steps since the start of the job.
        loss: the model's own loss in the last step; None before the first of all.
    """

    def __init__(
        self,
        hyperparameters: MoeHyperparameters,
        model: MoeModel,
        order: SampleOrder,
        sequences: Sequences,
        spread: SpreadModel,
        connections: Connections,
        group: ProcessGroup,
        paths: TrainedPaths | None = None,
    ) -> None:
        """Start at the first sample.

        Args:
            model: whole model; `spread` is this rank's part of it.
            paths: collects the sample paths, if any are needed.
        """
        self._hyperparameters = hyperparameters
        self._module, self._objective = model.module, model.objective
        self._order = order
        self._sequences = sequences
        self._spread = spread
        self._connections = connections
        self._group = group
        self._paths = paths
        self.samples_done = self.steps = 0
        self.loss: float | None = None
        self._moments: dict[nn.Parameter, tuple[Tensor, Tensor]] = {
            parameter: (torch.zeros_like(parameter), torch.zeros_like(parameter))
            for parameter in self._parameters()
        }
        self._prepare_optimizer()

    @property
    def packing(self) -> Packing:
        return self._spread.packing

    @property
    def resident(self) -> int:
        """Number of a rank's experts of each layer that stay on its device."""
        return self._spread.resident

    @property
    def layers(self) -> int:
        return len(self._spread.layers)

    @property
    def is_finished(self) -> bool:
        return not self._order.batch(self.samples_done)

    def pop_exchange_s(self) -> float:
        """Return the time of this rank's all-to-alls since the last call (s), of all layers and both passes;
        on a CUDA device, only that of their submission."""
        return self._spread.pop_exchange_s()

    def share(self) -> SampleShare:
        """Return this rank's part of the next step.

        Raises:
            ValueError: a record leaves nothing to predict.
        """
        samples = self._order.batch(self.samples_done)
        places = share(len(samples), self._group.rank, self._group.world)
        return SampleShare(samples, places, [self._sequences(samples[place]) for place in places or range(1)])

    def step(self, own: SampleShare, loss_tokens: int) -> BatchRouting:
        """Run a step together with the other ranks, and return the routing of the batch by all of them.

        Args:
            own: this rank's share.
            loss_tokens: tokens of the global batch.

        Raises:
            CollectiveLostError, DisagreementError: the ranks cannot continue together.
            DivergedError: loss or gradient is not finite. All ranks raise it, and leave the model unchanged.
        """
        # Masks depend only on the position in the data, and not on earlier steps.
        torch.manual_seed(
            derive_seed(
                self._hyperparameters.seed, "dropout", self.samples_done + own.places.start, self._group.rank
            )
        )
        with self._connections.steps.step():
            routing = self._differentiate(own, loss_tokens)
        self._descend(routing.loss / loss_tokens)
        self._order.record(own.samples, routing.ratios, routing.lengths.astype(np.int64))
        self.samples_done += len(own.samples)
        self.steps += 1
        return routing

    def adjust(self, controller: PackingController, step: int) -> Packing | None:
        """Measure and repack, if the controller requests it after a step of this group of ranks.

        Returns:
            The new packing; None if it is unchanged.
        """
        if controller.discards_after(step):
            self._spread.pop_times()
        times = self._spread.pop_times() if controller.measures_after(step) else None
        if times is None:
            return None
        where = "the times of micro-ops"
        with lost_at(where, self._connections.timeout_s):
            times = agreed_times(times)
        following = controller.decide(self.packing, times)
        # Rank 0 decides, so that the same times cannot lead to different decisions.
        (per_device, *_), *_ = self._group.gather("the packing of experts", [following.per_device])
        following = Packing(self.packing.world, self.packing.experts, per_device)
        if following == self.packing:
            return None
        self.pack(following)
        return following

    def pack(self, packing: Packing) -> None:
        """Host experts by another packing, with AdamW's moments of them, on all ranks at the same time."""
        del self._optimizer  # it refers to the experts before
        self._spread.pack(packing, self._moments)
        self._prepare_optimizer()

    # The state of all ranks together

    def collect(self) -> dict[str, Tensor] | None:
        """Return, on rank 0, all trained tensors with AdamW's moments, in the form of the whole model, and
        the order of the samples, on the CPU; None elsewhere. All ranks must do so at the same time.
        """
        where, group = "collecting the model", self.packing.group(0)
        whole = {ORDER + name: tensor for name, tensor in self._order.tensors().items()}
        for name, tensor in self._dense_tensors():
            whole[name] = tensor.detach().cpu().clone()
        for prefix, expert, pieces in self._expert_tensors():
            parts = self._group.collect(where, put_together(pieces), group)
            if parts is not None:
                whole[prefix + expert.name] = expert.whole(torch.cat(parts)).contiguous()
        return whole if self._group.rank == 0 else None

    def restore(self, whole: Mapping[str, Tensor]) -> None:
        """Continue from a result of `collect`, on all ranks at the same time, with any number of ranks.

        Args:
            whole: only rank 0's is used; see `check`.
        """
        where, is_source = "spreading the model", self._group.rank == 0

        def spread(name: str, like: Tensor) -> Tensor:
            tensor = whole[name].contiguous() if is_source else torch.empty_like(like, device="cpu")
            self._group.spread(where, [tensor], 0)
            return tensor

        order = {name: spread(ORDER + name, tensor) for name, tensor in sorted(self._order.tensors().items())}
        self._order.load(order)
        with torch.no_grad():
            for name, tensor in self._dense_tensors():
                tensor.copy_(spread(name, tensor))
            span = self.packing.hosted(self._group.rank)
            for prefix, expert, pieces in self._expert_tensors():
                like = torch.empty(expert.shape, dtype=pieces[0].dtype, device="meta")
                stacked = expert.stacked(spread(prefix + expert.name, like), self.packing.experts)
                own = split_like(stacked[span.start : span.stop], pieces)
                for piece, part in zip(pieces, own, strict=True):
                    piece.copy_(part)

    def check(self, whole: Mapping[str, Tensor]) -> None:
        """Check that tensors are of this model and adapter.

        Raises:
            ValueError: they are of another one.
        """
        expected = dict(self._dense_tensors())
        for prefix, expert, _ in self._expert_tensors():
            expected[prefix + expert.name] = torch.empty(expert.shape, device="meta")
        expected |= {ORDER + name: tensor for name, tensor in self._order.tensors().items()}
        refuse_unfit_tensors("model", expected, whole)

    def move_to(self, samples_done: int, steps: int, loss: float | None) -> None:
        """Set the position, which is not in the tensors."""
        self.samples_done, self.steps, self.loss = samples_done, steps, loss
        self._prepare_optimizer()

    # Parts of a step

    def _differentiate(self, own: SampleShare, loss_tokens: int) -> BatchRouting:
        """Run the forward and the backward pass."""
        batch = len(own.samples)
        with failures_named(self._connections.scheduler):
            loss = self._summed_loss(own)
        passes = list(pop_passes(self._module).values())
        layers, experts = self.layers, self._spread.experts
        routing = BatchRouting.nothing(layers, experts, batch)
        if own.places:
            routing = BatchRouting.of_share(passes, experts, batch, own.places, float(loss.detach()))
        vector = routing.vector
        self._group.add_up("how the batch was routed", vector)
        routing = routing.summed(vector)
        part = loss * 0.0
        if own.places:
            part = loss / loss_tokens + self._hyperparameters.balance_weight * routing.balance_loss(passes)
        if self._paths is not None:
            own_passes = passes if own.places else ()
            self._paths.add(self.samples_done, own_passes, routing.mean_balance_loss)
        del passes
        for parameter in self._moments:
            parameter.grad = None
        with failures_named(self._connections.scheduler):
            (part * self._group.world).backward()
        return routing

    def _summed_loss(self, own: SampleShare) -> Tensor:
        device = self._connections.device
        with precision(device):
            return self._objective.loss(self._spread.call, own.sequences, device)

    def _descend(self, loss: float) -> None:
        norm = self._gradient_norm()
        raise_if_diverged(loss, norm, self.samples_done)
        if norm > self._hyperparameters.max_gradient_norm:
            for parameter in self._moments:
                if parameter.grad is not None:
                    parameter.grad.mul_(self._hyperparameters.max_gradient_norm / norm)
        self._optimizer.step()
        self.loss = loss

    def _gradient_norm(self) -> float:
        """Return the norm over all parameters, the same number on all ranks."""
        replicas = self.packing.world // self.packing.group_size
        # Expert by expert, since float64 copies of all experts of a layer may not fit.
        squares = sum(
            _squares(gradient)
            for _, pieces in self._spread.trained_experts()
            for gradient in _gradients(pieces)
        )
        squares /= replicas
        if self._group.rank == 0:
            squares += _squares(_gradients(self._spread.dense.values()))
        total = torch.tensor([squares], dtype=torch.float64)
        self._group.add_up("the gradient's norm", total)
        return math.sqrt(float(total))

    def _parameters(self) -> Iterator[nn.Parameter]:
        yield from self._spread.dense.values()
        for _, pieces in self._spread.trained_experts():
            yield from pieces

    def _prepare_optimizer(self) -> None:
        hyperparameters = self._hyperparameters
        self._optimizer = adamw(
            self._moments, hyperparameters.learning_rate, hyperparameters.weight_decay, self.steps
        )

    def _dense_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._spread.dense.items():
            first, second = self._moments[parameter]
            yield name, parameter
            yield FIRST_MOMENT + name, first
            yield SECOND_MOMENT + name, second

    def _expert_tensors(self) -> Iterator[tuple[str, ExpertTensor, Sequence[Tensor]]]:
        for expert, pieces in self._spread.trained_experts():
            yield "", expert, pieces
            for prefix, moment in ((FIRST_MOMENT, 0), (SECOND_MOMENT, 1)):
                yield prefix, expert, [self._moments[piece][moment] for piece in pieces]


def _gradients(parameters: Iterable[nn.Parameter]) -> Iterator[Tensor]:
    return (each.grad for each in parameters if each.grad is not None)


def _squares(tensors: Iterable[Tensor]) -> float:
    """Return the sum of the squares of tensors on one device, one tensor after another."""
    return float(sum(each.double().square().sum() for each in tensors))
