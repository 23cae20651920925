"""What the models of Tables 5.2 to 5.6 learn: text as tensors, and models small enough for one core."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from bench.moe.texts import ARCHIVE, Labelled, library_sentences, rated_sentences, reference

SENTIMENT, GENERATION = "sentiment analysis", "text generation"
"""Named as in the thesis."""
_PADDING, _UNKNOWN, _CLASSIFY = range(3)
_BYTES = 128
"""The language reference is ASCII."""
_SENTIMENT_DEVIATION, _GENERATION_DEVIATION = 0.04, 0.06
"""Of new weights, above the 0.02 of BERT and GPT-2: narrow models learn nothing for long otherwise."""
HELD_OUT = 0.1
"""Share of the samples."""


@dataclass(frozen=True)
class ModelSize:
    """Of a Transformer; feed-forward networks are four times as wide as the rest."""

    layers: int
    hidden: int
    heads: int
    experts: int
    vocabulary: int
    length: int
    """Of a sample, in tokens, at most."""

    def flops_per_token(self, outputs_per_token: float, experts_per_token: float) -> float:
        """Floating-point operations of a forward pass: projections and attention, feed-forward networks, and
        the output layer. Routers, embeddings and what is done to single elements are left out."""
        attention = 8 * self.hidden**2 + 4 * self.length * self.hidden
        feed_forward = 16 * self.hidden**2 * experts_per_token
        outputs = 2 * self.hidden * outputs_per_token
        return self.layers * (attention + feed_forward) + outputs


@dataclass(frozen=True)
class Samples:
    """Sequences, padded to one length.

    Attributes:
        tokens: ``(samples, length)`` int64.
        mask: ``(samples, length)`` int64, 0 where there is padding.
        labels: ``(samples,)`` int64 classes, or the tokens themselves for a language model.
    """

    tokens: Tensor
    mask: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, samples: Tensor) -> "Samples":
        """Those of these numbers, cut to the longest of them."""
        mask = self.mask[samples]
        length = int(mask.sum(dim=1).max())
        is_language = self.labels.ndim == 2
        labels = self.labels[samples, :length] if is_language else self.labels[samples]
        return Samples(self.tokens[samples, :length], mask[:, :length], labels)


@dataclass(frozen=True)
class Task:
    """What is learnt, and by which model."""

    name: str
    data: str
    """In words."""
    size: ModelSize
    training: Samples
    held_out: Samples
    dense: Callable[[], PreTrainedModel]
    """A new dense model, drawn by torch's global generator."""
    outputs_per_token: float
    batch_size: int
    learning_rate: float
    probed: int
    """Samples of the training set on which its loss is measured."""


def sentiment(size: ModelSize, samples: int, batch_size: int, reviews: Path, seed: int) -> Task:
    """Tell kind sentences from unkind ones, with a BERT; without the archive of rated ones in the folder,
    tell from which of two texts on Python a sentence is.
    """
    is_there = (reviews / ARCHIVE).exists()
    labelled = rated_sentences(reviews) if is_there else library_sentences()
    order = torch.randperm(len(labelled), generator=torch.Generator().manual_seed(seed))
    chosen = [labelled[number] for number in order[:samples].tolist()]
    held_out = round(HELD_OUT * len(chosen))
    words = Counter(word for text, _ in chosen[held_out:] for word in _words(text))
    known = [word for word, _ in words.most_common(size.vocabulary - 3)]
    numbers = {word: number + 3 for number, word in enumerate(known)}
    every = _encoded(chosen, numbers, size.length)
    config = BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=size.length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=_SENTIMENT_DEVIATION,
    )
    return Task(
        SENTIMENT,
        "rated sentences" if is_there else "sentences of the language reference and of docstrings",
        size,
        every.take(torch.arange(held_out, len(every))),
        every.take(torch.arange(held_out)),
        lambda: BertForSequenceClassification(config),
        outputs_per_token=0.0,
        batch_size=batch_size,
        learning_rate=1e-3,
        probed=1_024,
    )


def generation(size: ModelSize, samples: int, batch_size: int, seed: int) -> Task:
    """Foretell the next character of the language reference, with a GPT-2."""
    text = reference().encode("ascii", "replace")
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    rows = rows[: len(rows) // size.length * size.length].view(-1, size.length)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    rows = rows[order[:samples]]
    every = Samples(rows, torch.ones_like(rows), rows)
    held_out = round(HELD_OUT * len(every))
    config = GPT2Config(
        vocab_size=size.vocabulary,
        n_embd=size.hidden,
        n_layer=size.layers,
        n_head=size.heads,
        n_positions=size.length,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=_GENERATION_DEVIATION,
        bos_token_id=0,
        eos_token_id=0,
    )
    config.loss_type = "ForCausalLM"  # which else is guessed, with a warning
    return Task(
        GENERATION,
        "Python's language reference, by characters",
        size,
        every.take(torch.arange(held_out, len(every))),
        every.take(torch.arange(held_out)),
        lambda: GPT2LMHeadModel(config),
        outputs_per_token=size.vocabulary,
        batch_size=batch_size,
        learning_rate=2e-3,
        probed=256,
    )


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def _encoded(labelled: Sequence[Labelled], numbers: dict[str, int], length: int) -> Samples:
    tokens = torch.full((len(labelled), length), _PADDING)
    mask = torch.zeros(len(labelled), length, dtype=torch.int64)
    for place, (text, _) in enumerate(labelled):
        found = [_CLASSIFY, *(numbers.get(word, _UNKNOWN) for word in _words(text))][:length]
        tokens[place, : len(found)] = torch.tensor(found)
        mask[place, : len(found)] = 1
    return Samples(tokens, mask, torch.tensor([label for _, label in labelled]))
