"""Data loader of a job: its files opened, checked and counted, and its first records tokenised."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from executors.lora.batch import TokenSequence
from executors.lora.columns import with_columns
from executors.lora.dataset import DatasetRoot, FindIndex, JsonlDataset
from executors.lora.records import TEXT_RECORDS, RecordForm
from executors.lora.tokens import Tokenizer
from executors.tuner.faults import fault_in
from executors.tuner.sampling import Stream
from executors.tuner.settings import TunerSettings
from schemas.merging.workload import TuningWorkload


class SharedTokenizer:
    """A tokenizer that several threads use under a lock."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self.eos_token_id = tokenizer.eos_token_id
        self.truncation_side = tokenizer.truncation_side

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        truncation: bool = False,
        max_length: int | None = None,
    ) -> list[int]:
        """See `Tokenizer`."""
        with self._lock:
            return self._tokenizer.encode(
                text, add_special_tokens=add_special_tokens, truncation=truncation, max_length=max_length
            )

    def apply_chat_template(
        self, conversation: list[dict[str, str]], /, *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        """See `Tokenizer`."""
        with self._lock:
            return self._tokenizer.apply_chat_template(
                conversation, tokenize=tokenize, add_generation_prompt=add_generation_prompt
            )


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
                for index in self.stream.take(0, min(count, len(self.training))):
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
        """Digest of the training data."""
        return self.training.dataset.digest

    def close(self) -> None:
        """Release the files."""
        for dataset in self._files:
            dataset.close()

    def _open(
        self, root: DatasetRoot, path: str, tokenizer: Tokenizer, length: int, settings: TunerSettings
    ) -> TokenizedFile:
        dataset = root.open(path, self._find_index, self._form)
        self._files.append(dataset)
        return TokenizedFile(dataset, tokenizer, length, settings.kept_tokens)


class PreparedLoaders:
    """Loaders that are prepared in the background, ahead of their tasks."""

    def __init__(
        self,
        root: DatasetRoot,
        tokenizer: Tokenizer,
        settings: TunerSettings,
        time_s: Callable[[], float] = time.time,
        find_index: FindIndex = lambda _, __: None,
        form: RecordForm = TEXT_RECORDS,
    ) -> None:
        """Start without loaders.

        Args:
            find_index: returns the index of a file that was checked before.
            form: form of records that the base model can be trained on.
        """
        self._root = root
        self._tokenizer = tokenizer
        self._settings = settings
        self._time_s = time_s
        self._find_index = find_index
        self._form = form
        self._preparing: dict[TuningWorkload, _Preparation] = {}
        self._lock = threading.Lock()

    def prepare(self, workload: TuningWorkload, drop_s: float) -> None:
        """Start to prepare a job's loader, unless it is there. Errors are raised by `take`.

        Args:
            drop_s: Unix time at which the loader is dropped (s).
        """
        with self._lock:
            self._drop_expired()
            present = self._preparing.get(workload)
            if present is None:
                self._preparing[workload] = _Preparation(lambda: self._load(workload), drop_s)
            else:
                present.drop_s = max(present.drop_s, drop_s)

    def take(self, workload: TuningWorkload) -> Loader:
        """Remove and return the loader of a job: the prepared one, once it is complete, or else a new one.

        Raises:
            DatasetError: a file is unfit.
            ValueError: a record leaves nothing to predict.
        """
        with self._lock:
            self._drop_expired()
            prepared = self._preparing.pop(workload, None)
        if prepared is not None:
            with suppress(Exception):  # a file may exist by now; a lasting error is raised below
                return prepared.result()
        return self._load(workload)

    def drop_expired(self) -> int:
        """Drop the loaders whose time is over, and return the number left."""
        with self._lock:
            self._drop_expired()
            return len(self._preparing)

    def _load(self, workload: TuningWorkload) -> Loader:
        return Loader(workload, self._root, self._tokenizer, self._settings, self._find_index, self._form)

    def _drop_expired(self) -> None:
        now_s = self._time_s()
        for workload, prepared in list(self._preparing.items()):
            if prepared.drop_s <= now_s:
                del self._preparing[workload]
                prepared.abandon()


class _Preparation:
    """A loader that is being prepared."""

    def __init__(self, load: Callable[[], Loader], drop_s: float) -> None:
        self.drop_s = drop_s
        self._load = load
        self._loader: Loader | None = None
        self._error: Exception | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, name="prewarm", daemon=True)
        self._thread.start()

    def result(self) -> Loader:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._loader is not None, "it has loaded or failed"
        return self._loader

    def abandon(self) -> None:
        self._is_abandoned = True
        if self._loader is not None:
            self._loader.close()

    def _run(self) -> None:
        try:
            self._loader = self._load()
        except Exception as error:
            self._error = error
        if self._is_abandoned and self._loader is not None:
            self._loader.close()
