"""Passes over the probe's sequences: packed as in the engine, and eager as in transformers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from executors.lora.adapted_pass import adapters_placed, loss_logits, precision
from executors.lora.adapter import Adapter, AdapterLayout
from executors.lora.batch import LabelledSequence, TextSequence, TokenSequence, pack
from executors.lora.fused_layers import FusedLinear, HeadUse, SiteAdapter
from executors.lora.lora_task import LoraTask
from executors.lora.packed_attention import PACKED_ATTENTION
from executors.lora.randomness import StreamedMasks, derive_seed
from executors.lora.records import LabelledRecords
from executors.lora.segment_products import Rows
from executors.lora.shared_base import SharedBase

REDUCED = (torch.bfloat16, torch.float16)

_ROOM_BYTES = 1 << 30
"""Room for the probe's passes, with a margin."""

TASKS = 2

LENGTHS = ((5, 11), (11, 3))
"""Tokens of each task's sequences. Neighbours of two tasks are equally long, so one call of the attention has
both."""

RANK = 2

SCALING = 2.0

_SEED = 11


def is_reduced(model: nn.Module) -> bool:
    """Return whether the model computes in less than float32."""
    return any(tensor.dtype in REDUCED for tensor in model.parameters())


def has_room_for_float32(model: nn.Module, device: torch.device) -> bool:
    """Return whether a model's float32 form fits on its device; host memory is assumed to be enough."""
    if device.type != "cuda":
        return True
    more_bytes = sum(4 * tensor.numel() - tensor.nbytes for tensor in model.parameters())
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return free_bytes > more_bytes + _ROOM_BYTES


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Hold a model's tensors in float32 within the block. Afterwards, every bit is as before."""
    dtypes: list[tuple[Tensor, torch.dtype]] = []
    try:
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.dtype in REDUCED:
                dtypes.append((tensor, tensor.dtype))
                tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in dtypes:
            tensor.data = tensor.data.to(dtype)


@dataclass(frozen=True)
class PassOutcome:
    """Results of a pass.

    Attributes:
        logits: logits of each task's rows that bear loss, float32 ``[rows, classes]``.
        gradients: gradients of each task's adapter, float32, by layer.
    """

    logits: tuple[Tensor, ...]
    gradients: tuple[Mapping[str, Tensor], ...] = ()


def _float32(_device: torch.device) -> AbstractContextManager[None]:
    return nullcontext()


class ProbeTask:
    """A task with an adapter of two random matrices, so that both get gradients. See `Adapted`."""

    def __init__(self, base: SharedBase, sites: Mapping[str, FusedLinear], number: int) -> None:
        device = base.model.device
        # No job could have this task: it names all layers one by one, which exceeds the limit of a job.
        task = LoraTask.model_construct(
            job_id="probe", rank=RANK, target_modules=tuple(sites), dataset="probe", total_samples=1
        )
        self.layout = AdapterLayout(task, sites, {})
        generator = torch.Generator().manual_seed(derive_seed(_SEED, "adapter", number))
        parameters = torch.empty(self.layout.size)
        for factor in self.layout:
            bound = factor.features**-0.5
            factor.view(parameters).uniform_(-bound, bound, generator=generator)
        self.adapter = Adapter(self.layout, parameters, device)
        self._heads = base.head_tensors
        self._masks = StreamedMasks(torch.Generator(device))

    def site_adapter(self, site: str, rows: Rows) -> SiteAdapter:
        """See `Adapted`, also for the method below."""
        return SiteAdapter(*self.adapter.matrices(site), SCALING, 0.0, self._masks, rows)

    def head_uses(self, loss_rows: int) -> Sequence[HeadUse]:
        return [(self._heads, loss_rows)] if self._heads else []

    def gradients(self) -> dict[str, Tensor]:
        """Copy the gradients, A before B, by layer."""
        vector = self.adapter.gradient
        return {
            site: torch.cat([factor.view(vector).flatten() for factor in self.layout.factors(site)])
            for site in self.layout.sites
        }


class Probe:
    """A base model with the sequences and the tasks of its probe."""

    def __init__(self, base: SharedBase) -> None:
        self.base = base
        self.model = base.model
        self.embedding: nn.Module = base.model.get_input_embeddings()
        self.vocabulary = self._ordinary_tokens()
        self.batches = [
            [self.sequence(min(length, base.longest_sequence_tokens), task, number) for number, length in row]
            for task, row in enumerate(map(enumerate, LENGTHS))
        ]
        self.sites: Mapping[str, FusedLinear] = {}
        self.tasks: list[ProbeTask] = []
        self._precision: Callable[[torch.device], AbstractContextManager[None]] = precision

    @property
    def rounding(self) -> float:
        """Relative step of the numbers that the model computes with."""
        return max(torch.finfo(p.dtype).eps for p in self.model.parameters() if p.is_floating_point())

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Run all passes in the block in float32."""
        self._precision = _float32
        try:
            with in_float32(self.model):
                yield
        finally:
            self._precision = precision

    def adapt(self, sites: Mapping[str, FusedLinear]) -> None:
        """Add an adapter on these layers for both tasks."""
        self.sites = sites
        self.tasks = [ProbeTask(self.base, sites, number) for number in range(TASKS)]

    def sequence(self, length: int, *labels: int) -> TokenSequence:
        """Draw a sequence; the same labels give the same one."""
        generator = torch.Generator().manual_seed(derive_seed(_SEED, "tokens", *labels))
        drawn = torch.randint(len(self.vocabulary), (length,), generator=generator)
        token_ids = [self.vocabulary[index] for index in drawn.tolist()]
        records = self.base.objective.records
        if isinstance(records, LabelledRecords):
            return LabelledSequence(token_ids, 0 if records.pooled == "first" else length - 1, length % 2)
        return TextSequence(token_ids, 1)

    def long_sequence(self, length: int) -> TokenSequence:
        """Draw a sequence of another length than those of the tasks."""
        return self.sequence(length, TASKS, 0)

    def changed(self, task: int) -> list[list[TokenSequence]]:
        """Return the batches with other tokens for one task, of the same lengths."""
        other = [
            self.sequence(len(sequence.token_ids), task, number, 1)
            for number, sequence in enumerate(self.batches[task])
        ]
        return [other if number == task else batch for number, batch in enumerate(self.batches)]

    def packed(self, batches: Sequence[Sequence[TokenSequence]]) -> PassOutcome:
        """Run the engine's pass, forward and backward."""
        with self._packed_logits(batches) as (logits, labels):
            losses = [cross_entropy(*pair) for pair in zip(logits, labels, strict=True)]
            torch.stack(losses).sum().backward()
        return self._outcome(logits)

    def packed_values(self, batches: Sequence[Sequence[TokenSequence]]) -> PassOutcome:
        """Run the engine's pass without adapters, forward only."""
        with torch.no_grad(), self._precision(self.model.device):
            batch = pack(batches, self.model.device)
            logits = loss_logits(self.base, batch).float()
        return PassOutcome(logits.split(batch.loss_counts))

    def reach(self, task: int) -> Tensor:
        """Return the gradient of one task's logits with respect to the inputs of the other: ``[rows,
        features]``.

        It is exactly zero if no computation mixes their tokens, for any rounding.
        """
        seen: list[Tensor] = []

        def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            seen.append(output.detach().requires_grad_())
            return seen[-1]

        hook = self.embedding.register_forward_hook(keep)
        try:
            with self._packed_logits(self.batches) as (logits, _):
                (gradient,) = torch.autograd.grad(logits[task].square().sum(), seen[:1])
        finally:
            hook.remove()
        rows = [sum(len(each.token_ids) for each in batch) for batch in self.batches]
        reached: Tensor = gradient.flatten(0, -2).split(rows)[1 - task]
        return reached

    def eager(self, *, perturbed: float = 0.0) -> PassOutcome:
        """Run transformers' eager forward and backward on each sequence alone.

        The adapters are hooks on the frozen layers, computed as in PEFT, without any part of the engine.

        Args:
            perturbed: relative random change of each input feature.
        """
        logits = []
        with self._eager_attention(), self._perturbation(perturbed):
            for task, batch in zip(self.tasks, self.batches, strict=True):
                task.adapter.gradient.zero_()
                with self._hooked(task):
                    rows = torch.cat([self._alone(sequence) for sequence in batch])
                    cross_entropy(rows, self._labels(batch)).backward()
                logits.append(rows)
        return self._outcome(logits)

    def eager_values(
        self, batches: Sequence[Sequence[TokenSequence]], *, perturbed: float = 0.0
    ) -> PassOutcome:
        """Run transformers' eager forward on each sequence alone, without adapters."""
        with torch.no_grad(), self._eager_attention(), self._perturbation(perturbed):
            logits = [torch.cat([self._alone(each) for each in batch]) for batch in batches]
        return PassOutcome(tuple(logits))

    def layers_of_every_token(self) -> dict[str, FusedLinear]:
        """Return the linear layers that process every token, found by a packed pass. Other layers belong to
        routed experts or to a part that is not used for text, or process only the rows that bear loss.
        """
        rows: dict[str, set[int]] = {name: set() for name in self.base.sites}

        def note(name: str) -> Callable[..., None]:
            return lambda _module, inputs, _output: rows[name].add(inputs[0].shape[:-1].numel())

        with ExitStack() as hooks:
            for name, site in self.base.sites.items():
                hooks.callback(site.base_layer.register_forward_hook(note(name)).remove)
            self.packed_values(self.batches)
        whole = {sum(len(sequence.token_ids) for batch in self.batches for sequence in batch)}
        return {name: site for name, site in self.base.sites.items() if rows[name] == whole}

    def _alone(self, sequence: TokenSequence) -> Tensor:
        """Return the logits of a sequence's rows that bear loss, float32."""
        input_ids = torch.tensor([sequence.token_ids], device=self.model.device)
        if isinstance(sequence, LabelledSequence):
            logits: Tensor = self.model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).logits
            return logits.float()
        logits = self.model(input_ids=input_ids, use_cache=False).logits[0]
        return logits[list(sequence.loss_rows)].float()

    def _labels(self, batch: Sequence[TokenSequence]) -> Tensor:
        labels = [label for sequence in batch for label in sequence.labels]
        return torch.tensor(labels, device=self.model.device)

    @contextmanager
    def _packed_logits(
        self, batches: Sequence[Sequence[TokenSequence]]
    ) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
        """Yield logits and labels by task; the adapters stay in place for the backward pass."""
        batch = pack(batches, self.model.device)
        for task in self.tasks:
            task.adapter.gradient.zero_()
        base = replace(self.base, sites=self.sites)
        with adapters_placed(base, self.tasks, batch):
            with self._precision(self.model.device):
                logits = loss_logits(base, batch)
            yield logits.float().split(batch.loss_counts), batch.labels.split(batch.loss_counts)

    def _outcome(self, logits: Sequence[Tensor]) -> PassOutcome:
        return PassOutcome(
            tuple(rows.detach().clone() for rows in logits), tuple(task.gradients() for task in self.tasks)
        )

    @contextmanager
    def _eager_attention(self) -> Iterator[None]:
        self.model.set_attn_implementation("eager")
        try:
            yield
        finally:
            self.model.set_attn_implementation(PACKED_ATTENTION)

    @contextmanager
    def _hooked(self, task: ProbeTask) -> Iterator[None]:
        """Add a task's adapter to the outputs of the frozen layers."""

        def adapted(site: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
            down, up = task.adapter.matrices(site)

            def add(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                update = inputs[0].to(down.dtype) @ down.t() @ up
                return output + (SCALING * update).to(output.dtype)

            return add

        with ExitStack() as hooks:
            for site, layer in self.sites.items():
                hooks.callback(layer.base_layer.register_forward_hook(adapted(site)).remove)
            yield

    @contextmanager
    def _perturbation(self, share: float) -> Iterator[None]:
        if not share:
            yield
            return
        generator = torch.Generator().manual_seed(derive_seed(_SEED, "perturbation"))

        def perturb(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            noise = torch.rand(output.shape, generator=generator).mul_(2).sub_(1).to(output.device)
            return (output.float() * (1 + share * noise)).to(output.dtype)

        hook = self.embedding.register_forward_hook(perturb)
        try:
            yield
        finally:
            hook.remove()

    def _ordinary_tokens(self) -> range | list[int]:
        """Return the tokens to which the configuration gives no meaning, such as padding or a place for
        images."""
        config = self.model.config.get_text_config()
        special: set[int] = set()
        for each in (self.model.config, config):
            for name, token in each.to_dict().items():
                if name.endswith(("token_id", "token_index")):
                    special.update(token if isinstance(token, list) else [token])
        return [token for token in range(config.vocab_size) if token not in special]
