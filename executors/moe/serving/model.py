"""The model of a service: its experts spread over all ranks, the rest on each of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

from executors.lora.base_model import load_tokenizer
from executors.moe.block import LayerPass, MoeBlock, moe_blocks, router_bytes
from executors.moe.conversion.sample_paths import read_paths
from executors.moe.conversion.storage import load
from executors.moe.serving.service import ExpertService
from executors.moe.serving.slots import ExpertSlots
from schemas.experts.workload import GatingRule
from solvers.experts.paths import PathProfile


class _ServedExperts(nn.Module):
    """A layer's experts, called as if they were local."""

    def __init__(self, service: ExpertService, layer: int, block: MoeBlock) -> None:
        super().__init__()
        self._layer = layer
        self._service = service
        # A function, since the block is not a part of its experts.
        self._last_pass: Callable[[], LayerPass | None] = lambda: block.last_pass

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        last_pass = self._last_pass()
        assert last_pass is not None, "the block has routed what it sends"
        return self._service.apply(self._layer, rows, counts, last_pass.routing.first_expert)


class ServingModel:
    """A model without its experts: see `detach_experts` and `serve_by`."""

    def __init__(self, module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Use a model with gated experts, on the CPU.

        Raises:
            ValueError: it has no such layers, or an encoder and a decoder, whose tokens share no path.
        """
        if module.config.is_encoder_decoder:
            raise ValueError(
                f"a {module.config.model_type} model has an encoder and a decoder: only models with one "
                "stack of layers are served"
            )
        self._blocks = list(moe_blocks(module).values())
        if not self._blocks:
            raise ValueError("the model has no layer with experts")
        self.module = module.eval()
        self.tokenizer = tokenizer
        self._hidden = self._blocks[0].router.get_parameter("weight").shape[1]
        self._service: ExpertService | None = None

    @classmethod
    def load(cls, directory: Path) -> "ServingModel":
        """Read a directory of `executors.moe.conversion.storage.save`, with a tokenizer.

        Raises:
            ValueError: a file is missing or does not fit, or the model cannot be served; the message may name
                the directory.
        """
        module, _ = load(directory)
        return cls(module, load_tokenizer(directory, module))

    @property
    def experts(self) -> int:
        return len(self._blocks[0].router.get_parameter("weight"))

    def word_of(self, answer: int) -> str:
        """Return the class or token with the number of an answer."""
        if not isinstance(self.module, GenerationMixin):
            return str(self.module.config.id2label.get(answer, answer))
        assert self.tokenizer is not None, "it was loaded"
        return str(self.tokenizer.decode([answer]))

    def gate_by(self, rule: GatingRule) -> None:
        """Set the number of experts per token by a rule; weights of their outputs stay the model's.

        Raises:
            ValueError: a layer has fewer experts than a token may get.
        """
        for block in self._blocks:
            gating = block.gating.by(rule)
            if self.experts < gating.fewest_experts:
                raise ValueError(f"gating {rule.mode} needs two experts, the layers have {self.experts}")
            block.gating = gating

    def router_bytes(self) -> bytes:
        """Return the weights of all routers, by which ranks compare their models."""
        return router_bytes(self.module)

    def trained_paths(self, directory: Path, length: int) -> PathProfile | None:
        """Return the sample paths of the model's training; None if its directory has none.

        Args:
            length: number of layers of a path.

        Raises:
            ValueError: they cannot be used.
        """
        return read_paths(directory, self.router_bytes(), self.experts, len(self._blocks), length)

    def detach_experts(self, slots: int, device: torch.device) -> list[ExpertSlots]:
        """Remove the experts from all layers and return them, and move the rest of the model to the device.

        Args:
            slots: slots per layer on the device.
        """
        detached = []
        for block in self._blocks:
            assert isinstance(block.experts, nn.Module), "they were loaded"
            detached.append(ExpertSlots(block.experts, slots, device))
            block.experts = nn.Identity()
        self.module.to(device)
        return detached

    def serve_by(self, service: ExpertService) -> None:
        """Let a service apply the experts."""
        self._service = service
        for layer, block in enumerate(self._blocks):
            block.experts = _ServedExperts(service, layer, block)

    @torch.inference_mode()
    def answer(self, sequences: Sequence[Sequence[int]]) -> Tensor | None:
        """Serve this rank's part of a batch, together with the others.

        Args:
            sequences: tokens of each request; empty if this rank has no part.

        Returns:
            `(sequences, ...)` outputs of the model: of a language model the logits after the last
            token, of a classifier those of its classes. None without sequences.

        Raises:
            CollectiveLostError, DisagreementError: see `ExpertService`.
        """
        service, device = self._service, self.module.device
        assert service is not None, "a service was set"
        service.begin(sum(map(len, sequences)))
        if not sequences:
            service.pass_idle(self._hidden, self.module.dtype, device)
            service.end()
            return None
        lengths = torch.tensor([len(tokens) for tokens in sequences])
        input_ids = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.int64)
        for row, tokens in enumerate(sequences):
            input_ids[row, : len(tokens)] = torch.tensor(tokens)
        is_token = torch.arange(input_ids.shape[1]) < lengths[:, None]
        logits: Tensor = self.module(
            input_ids=input_ids.to(device), attention_mask=is_token.long().to(device)
        ).logits
        service.end()
        if logits.ndim == 2:
            return logits
        return logits[torch.arange(len(sequences)), lengths.to(logits.device) - 1]
