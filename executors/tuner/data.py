"""Data of a job: its files opened, checked and counted, its records tokenised, and those of a step chosen.

The choice is a function of seed, step and data only, on any number of ranks. A job alone uses its data in a
new order each epoch. Two jobs in one run draw each sequence of a step from either's data by annealed sampling
(Stickland and Murray, "BERT and PALs", ICML 2019, section 4.2).
"""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executors.lora.batch import TokenSequence
from executors.lora.dataset import Cursor, DatasetRoot, FindIndex, JsonlDataset, next_indices
from executors.lora.randomness import derive_seed
from executors.lora.records import TEXT_RECORDS, RecordForm, with_columns
from executors.lora.tokens import Tokenizer
from executors.tuner.faults import fault_in
from executors.tuner.settings import TunerSettings
from schemas.merging.workload import TuningWorkload

LAST_EXPONENT = 0.2
"""Final exponent: a large dataset is then drawn hardly more often than a small one."""


@dataclass(frozen=True)
class Stream:
    """Endless shuffled stream of one job's data."""

    records: int
    seed: int

    def indices(self, drawn: int, count: int) -> list[int]:
        """Return `count` record indices after the stream's first `drawn` samples."""
        return next_indices(self.records, self.seed, self.cursor(drawn), count)[0]

    def cursor(self, drawn: int) -> Cursor:
        """Return the place after `drawn` samples."""
        return Cursor(*divmod(drawn, self.records))


def annealing_exponent(epoch: int, epochs: int) -> float:
    """Return alpha of the epoch with this number, from 0: it falls from 1 to `LAST_EXPONENT` in equal parts.

    In the first epoch, datasets are drawn in proportion to their sizes; this is also the only epoch of one.
    """
    if epochs <= 1:
        return 1.0
    return 1.0 - (1.0 - LAST_EXPONENT) * min(epoch, epochs - 1) / (epochs - 1)


def shares(sizes: Sequence[int], exponent: float) -> list[float]:
    """Return the probability of drawing a sequence from each dataset: in proportion to its size to the power
    of `exponent`."""
    weights = [math.pow(size, exponent) for size in sizes]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def draw_sources(seed: int, step: int, count: int, probabilities: Sequence[float]) -> list[int]:
    """Draw the dataset, by index, of each of a step's `count` sequences."""
    if len(probabilities) == 1:
        return [0] * count
    draws = np.random.default_rng(derive_seed(seed, "sources", step)).random(count)
    edges = np.cumsum(probabilities)[:-1]
    return [int(index) for index in np.searchsorted(edges, draws, side="right")]


class SharedTokenizer:
    """A `Tokenizer` that several threads use under a lock."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self.eos_token_id = tokenizer.eos_token_id
        self.truncation_side = tokenizer.truncation_side

    def encode(self, text: str, **options: Any) -> list[int]:
        with self._lock:
            return self._tokenizer.encode(text, **options)

    def apply_chat_template(self, conversation: list[dict[str, str]], /, **options: Any) -> Any:
        with self._lock:
            return self._tokenizer.apply_chat_template(conversation, **options)


class TokenizedFile:
    """Tokenised records of one file, kept up to a bound."""

    def __init__(
        self, dataset: JsonlDataset, tokenizer: Tokenizer, sequence_length: int, kept_tokens: int
    ) -> None:
        self.dataset = dataset
        self._tokenizer = tokenizer
        self._sequence_length = sequence_length
        self._kept: dict[int, TokenSequence] = {}
        self._room = kept_tokens

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> TokenSequence:
        """Return a record in tokens.

        Raises:
            DatasetError: the record cannot be tokenised, or leaves nothing to predict.
        """
        kept = self._kept.get(index)
        if kept is not None:
            return kept
        sequence = self.dataset.tokenized(index, self._tokenizer, self._sequence_length)
        if len(sequence.token_ids) <= self._room:
            self._room -= len(sequence.token_ids)
            self._kept[index] = sequence
        return sequence


class Loader:
    """Data of one job, ready for its first step.

    Attributes:
        training: its training data.
        validation: its validation data; None without any.
        stream: the order of its training data.
        prepared_s: duration of the preparation (s).
    """

    def __init__(
        self,
        workload: TuningWorkload,
        root: DatasetRoot,
        tokenizer: Tokenizer,
        settings: TunerSettings,
        find_index: FindIndex = lambda _, __: None,
        form: RecordForm = TEXT_RECORDS,
    ) -> None:
        """Open, check and count the files, and tokenise the first batches.

        Args:
            form: form of records that the base model can be trained on.

        Raises:
            DatasetError: a file is unfit. The message names the field.
            ValueError: a record leaves nothing to predict.
        """
        started_s = time.monotonic()
        length = workload.hyperparameters.sequence_length
        self._files: list[JsonlDataset] = []
        self._find_index = find_index
        self._form = with_columns(form, workload.dataset.columns)
        self.workload = workload
        try:
            with fault_in("dataset.path"):
                self.training = self._open(root, workload.dataset.path, tokenizer, length, settings)
                self.stream = Stream(len(self.training), workload.hyperparameters.seed)
                count = settings.prepared_batches * workload.hyperparameters.batch_size
                for index in self.stream.indices(0, min(count, len(self.training))):
                    self.training[index]
            self.validation: TokenizedFile | None = None
            if workload.validation_path is not None:
                with fault_in("validation_path"):
                    path = workload.validation_path
                    self.validation = self._open(root, path, tokenizer, length, settings)
                    self.validation[0]
        except BaseException:
            self.close()
            raise
        self.prepared_s = time.monotonic() - started_s

    @property
    def digest(self) -> str:
        return self.training.dataset.digest

    def close(self) -> None:
        for dataset in self._files:
            dataset.close()

    def _open(
        self, root: DatasetRoot, path: str, tokenizer: Tokenizer, length: int, settings: TunerSettings
    ) -> TokenizedFile:
        dataset = root.open(path, self._find_index, self._form)
        self._files.append(dataset)
        return TokenizedFile(dataset, tokenizer, length, settings.kept_tokens)


@dataclass(frozen=True)
class Loaders:
    """Opens the loaders of jobs.

    Attributes:
        find_index: returns the index of a file that was checked before.
        form: form of records that the base model can be trained on.
    """

    root: DatasetRoot
    tokenizer: Tokenizer
    settings: TunerSettings
    find_index: FindIndex = lambda _, __: None
    form: RecordForm = TEXT_RECORDS

    def open(self, workload: TuningWorkload) -> Loader:
        return Loader(workload, self.root, self.tokenizer, self.settings, self.find_index, self.form)
