"""Tasks of the models of Tables 5.2 to 5.6: text as tensors, and models small enough for one core."""

import inspect
import io
import pydoc_data.topics
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
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

SENTIMENT, GENERATION = "sentiment analysis", "text generation"
"""Names as in the thesis."""
_PADDING, _UNKNOWN, _CLASSIFY = range(3)
_SENTIMENT_DEVIATION, _GENERATION_DEVIATION = 0.04, 0.06
"""Deviations of new weights. With the 0.02 of BERT and GPT-2, the loss of narrow models would not fall for
long."""
HELD_OUT = 0.1
"""Share of the samples."""
ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
"""A source distribution under the MIT licence; `make reviews` fetches it. It contains the data sets of Hutto
and Gilbert (ICWSM 2014). They have 10,605 sentences of film reviews by Pang and Lee, from which SST-2 is made
too, and 13,097 of product reviews, opinion pieces and tweets. Each sentence has the mean of 20 ratings from
-4 to 4."""
_DATA_SETS = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_RATED = tuple(
    f"hutto_ICWSM_2014/{kind}_GroundTruth.txt"
    for kind in ("movieReviewSnippets", "amazonReviewSnippets", "nytEditorialSnippets", "tweets")
)
_MODULES = (
    "argparse",
    "asyncio.tasks",
    "csv",
    "datetime",
    "difflib",
    "email.message",
    "fractions",
    "heapq",
    "inspect",
    "logging",
    "pathlib",
    "random",
    "shutil",
    "statistics",
    "subprocess",
    "tarfile",
    "tempfile",
    "threading",
    "unittest.case",
    "unittest.mock",
    "uuid",
    "zipfile",
    "doctest",
    "decimal",
    "configparser",
    "urllib.request",
    "http.client",
    "pdb",
    "pickletools",
    "optparse",
)

Labelled = tuple[str, int]
"""A text and its class, 0 or 1."""


@dataclass(frozen=True)
class ModelSize:
    """Size of a Transformer; feed-forward networks are four times as wide as the rest."""

    layers: int
    hidden: int
    heads: int
    experts: int
    vocabulary: int
    length: int
    """Most tokens of a sample."""

    def flops_per_token(self, outputs_per_token: float, experts_per_token: float) -> float:
        """Return the floating-point operations of a forward pass: projections and attention, feed-forward
        networks, and the output layer, without routers, embeddings and elementwise operations."""
        attention = 8 * self.hidden**2 + 4 * self.length * self.hidden
        feed_forward = 16 * self.hidden**2 * experts_per_token
        outputs = 2 * self.hidden * outputs_per_token
        return self.layers * (attention + feed_forward) + outputs


@dataclass(frozen=True)
class Samples:
    """Sequences, padded to one length.

    Attributes:
        tokens: ``(samples, length)`` int64.
        mask: ``(samples, length)`` int64, 0 for padding.
        labels: ``(samples,)`` int64 classes, or the tokens themselves for a language model.
    """

    tokens: Tensor
    mask: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, samples: Tensor) -> "Samples":
        """Return samples by number, cut to the longest of them."""
        mask = self.mask[samples]
        length = int(mask.sum(dim=1).max())
        is_language = self.labels.ndim == 2
        labels = self.labels[samples, :length] if is_language else self.labels[samples]
        return Samples(self.tokens[samples, :length], mask[:, :length], labels)


@dataclass(frozen=True)
class LearningTask:
    """A learning task, with its data and its model."""

    name: str
    data: str
    """Description of the data."""
    size: ModelSize
    training: Samples
    held_out: Samples
    dense: Callable[[], PreTrainedModel]
    """Creates a dense model, drawn by torch's global generator."""
    outputs_per_token: float
    batch_size: int
    learning_rate: float
    probed: int
    """Number of samples of the training set on which its loss is measured."""


def sentiment(size: ModelSize, samples: int, batch_size: int, reviews: Path, seed: int) -> LearningTask:
    """Return the classification of sentences by rating, with a BERT. Without the archive of rated sentences
    in the folder, their class is which of two texts on Python they are from.
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
    return LearningTask(
        SENTIMENT,
        "rated sentences" if is_there else "sentences of the language reference and of docstrings",
        size,
        every.select(torch.arange(held_out, len(every))),
        every.select(torch.arange(held_out)),
        lambda: BertForSequenceClassification(config),
        outputs_per_token=0.0,
        batch_size=batch_size,
        learning_rate=1e-3,
        probed=1_024,
    )


def generation(size: ModelSize, samples: int, batch_size: int, seed: int) -> LearningTask:
    """Return the prediction of the next character of the language reference, with a GPT-2."""
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
    config.loss_type = "ForCausalLM"  # otherwise it is guessed, with a warning
    return LearningTask(
        GENERATION,
        "Python's language reference, by characters",
        size,
        every.select(torch.arange(held_out, len(every))),
        every.select(torch.arange(held_out)),
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


def rated_sentences(folder: Path) -> list[Labelled]:
    """Read sentences of reviews, opinion pieces and tweets, with class 1 for ratings above 0, without those
    rated 0.

    Raises:
        FileNotFoundError: the archive is missing.
    """
    with tarfile.open(folder / ARCHIVE) as distribution:
        data_sets = io.BytesIO(_read(distribution, _DATA_SETS))
        with tarfile.open(fileobj=data_sets) as archive:
            lines = [line for file in _RATED for line in _read(archive, file).decode().splitlines()]
    rows = [line.split("\t") for line in lines if line.strip()]
    return [(text, int(float(rating) > 0)) for _, rating, text in rows if float(rating) != 0]


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def reference() -> str:
    """Return the language reference of Python's `help`."""
    return "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))


def library_sentences() -> list[Labelled]:
    """Return sentences on Python: class 0 from the language reference, 1 from docstrings of the standard
    library; equally many of both.
    """
    docstrings = "\n\n".join(
        inspect.getdoc(member) or ""
        for name in _MODULES
        for module in [import_module(name)]
        for _, holder in sorted(vars(module).items(), key=lambda item: item[0])
        for member in [holder, *(vars(holder).values() if inspect.isclass(holder) else ())]
        if callable(member) and getattr(member, "__module__", None) == name
    )
    classes = [_sentences(reference()), _sentences(docstrings)]
    fewest = min(len(sentences) for sentences in classes)
    return [(sentence, label) for label, some in enumerate(classes) for sentence in some[:fewest]]


def _sentences(text: str) -> Sequence[str]:
    """Return the distinct sentences of eight words or more."""
    flowing = re.sub(r"\s+", " ", text)
    found = (sentence.strip() for sentence in re.split(r"(?<=[.:;])\s", flowing))
    return list(dict.fromkeys(sentence for sentence in found if len(sentence.split()) >= 8))
