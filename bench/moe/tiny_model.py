"""A small language model with experts, trained from scratch on real text, and the experts that tokens chose.

The text is that of the modules of Python's standard library, which every machine has.
"""

import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from executors.moe.block import LayerPass, auxiliary_loss, pop_passes
from executors.moe.conversion.convert import LayerConversion, convert
from executors.moe.gating import Gating
from solvers.compiled import Ints

EXPERTS = 16
LAYERS = 8
TOKENS = 128
"""Tokens of a passage, one per byte."""
_HIDDEN = 64
_HEADS = 4
_BATCH = 16
_LEARNING_RATE = 2e-3
_WARM_UP_STEPS = 50
_BALANCE = 0.01
"""Weight of the balance loss, as in the thesis (section 5.3.1)."""
_LEFT_OUT = {"site-packages", "test", "tests", "idle_test", "__pycache__", "encodings", "pydoc_data"}
"""Folders with little prose, or with tables."""
_HELD_BACK_EVERY = 8
"""Interval of the documents that are not trained on."""
_LEAST_BYTES = 2_000
_PROFILED_PART = 4
"""Divisor of the steps of a training whose sample paths are kept, as in a job (erratum I4)."""


class LibraryText:
    """Documents for training, and others that are held back for serving."""

    def __init__(self, seed: int) -> None:
        documents = list(_documents())
        order = np.random.default_rng(seed).permutation(len(documents))
        held_back = [documents[place] for place in order[::_HELD_BACK_EVERY]]
        trained = [documents[place] for rank, place in enumerate(order) if rank % _HELD_BACK_EVERY]
        self.trained = _joined(trained)
        self.held_back = _joined(held_back)


def passages(text: Tensor, count: int, length: int, draws: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - length, (count, 1), generator=draws)
    return text[starts + torch.arange(length)].long()


def _documents() -> Iterator[bytes]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(root).parts) and path.stat().st_size >= _LEAST_BYTES:
            yield path.read_bytes()


def _joined(documents: list[bytes]) -> Tensor:
    return torch.frombuffer(bytearray(b"\n".join(documents)), dtype=torch.uint8)


class TinyModel:
    """A GPT-2 of bytes with 16 experts in each of its 8 layers; a token goes to one."""

    def __init__(self, text: LibraryText, steps: int, seed: int) -> None:
        """Train the model.

        Args:
            steps: number of steps, of 2,048 tokens each.
        """
        torch.manual_seed(seed)
        config = GPT2Config(
            n_layer=LAYERS,
            n_embd=_HIDDEN,
            n_inner=2 * _HIDDEN,
            n_head=_HEADS,
            n_positions=TOKENS,
            vocab_size=256,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
        config.loss_type = "ForCausalLM"  # otherwise it is guessed, with a warning
        self._module = GPT2LMHeadModel(config)
        conversion = LayerConversion(experts=EXPERTS, initialization="random", seed=seed)
        convert(self._module, conversion, Gating("top1"))
        self.balance_loss = float("nan")
        """Balance loss of a layer over the last batches; 1 is even."""
        self.last_selections: list[Ints] = []
        """(tokens, layers) experts of the tokens of each step of the last quarter of the training."""
        self._train(text.trained, steps, Generator().manual_seed(seed))

    def _train(self, text: Tensor, steps: int, draws: Generator) -> None:
        optimizer = torch.optim.AdamW(self._module.parameters(), lr=_LEARNING_RATE)
        balance = []
        for step in range(steps):
            rate = _LEARNING_RATE * min(1.0, (step + 1) / _WARM_UP_STEPS) * (1 - 0.9 * step / steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            tokens = passages(text, _BATCH, TOKENS, draws)
            loss = self._module(input_ids=tokens, labels=tokens).loss
            passes = pop_passes(self._module)
            auxiliary = auxiliary_loss(passes)
            if step >= steps - steps // _PROFILED_PART:
                self.last_selections.append(_selections(passes))
            (loss + _BALANCE * auxiliary).backward()
            torch.nn.utils.clip_grad_norm_(self._module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            balance.append(auxiliary.item() / LAYERS)
        self.balance_loss = float(np.mean(balance[-_BATCH:]))
        self._module.eval()

    @torch.inference_mode()
    def serve(self, text: Tensor, count: int, draws: Generator) -> tuple[Ints, float]:
        """Serve drawn passages of a text.

        Returns:
            (passages x tokens, layers) the expert of each token, and the loss per byte in nats.
        """
        chosen, losses = [], []
        for begin in range(0, count, _BATCH):
            tokens = passages(text, min(_BATCH, count - begin), TOKENS, draws)
            losses.append(self._module(input_ids=tokens, labels=tokens).loss.item())
            chosen.append(_selections(pop_passes(self._module)))
        return np.concatenate(chosen), float(np.mean(losses))


def _selections(passes: Mapping[str, LayerPass]) -> Ints:
    """Return the expert of each token, or the first of two: (tokens, layers)."""
    selections: Ints = torch.stack([layer.routing.first_expert for layer in passes.values()], dim=1).numpy()
    return selections
