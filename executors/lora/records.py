"""The records of datasets: what a line may say, and how it becomes tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Literal, Protocol

from executors.lora.batch import LabelledSequence, TextSequence, TokenSequence

_MOST_NAMES = 8
"""Of labels, in an error."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is needed here."""

    eos_token_id: int | None

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        truncation: bool = False,
        max_length: int | None = None,
    ) -> list[int]: ...


class Record(Protocol):
    """One line of a dataset."""

    def tokenize(self, tokenizer: Tokenizer, sequence_length: int) -> TokenSequence:
        """Turn it into at most ``sequence_length`` tokens.

        Raises:
            ValueError: so few tokens come out that there is nothing to predict.
        """


class RecordForm(Protocol):
    """Which lines a base model can be trained on."""

    @property
    def key(self) -> str:
        """Tells it from other forms: letters, digits and hyphens."""

    def parse(self, fields: object) -> Record:
        """Read a line.

        Args:
            fields: its JSON.

        Raises:
            ValueError: it is of another form; the message names the field.
        """


@dataclass(frozen=True)
class TextRecord:
    """Text for a language model. No loss is taken on the prompt, which plain text does not have."""

    prompt: str
    completion: str

    def tokenize(self, tokenizer: Tokenizer, sequence_length: int) -> TextSequence:
        """See `Record`; at least one token bears loss.

        An end-of-sequence token closes the completion. A record that is too long loses the start of its
        prompt first, then the end of its completion.
        """
        prompt = tokenizer.encode(self.prompt, add_special_tokens=False) if self.prompt else []
        completion = tokenizer.encode(self.completion, add_special_tokens=False)
        if tokenizer.eos_token_id is not None:
            completion.append(tokenizer.eos_token_id)
        kept_of_prompt = max(sequence_length - len(completion), min(len(prompt), 1))
        prompt = prompt[max(len(prompt) - kept_of_prompt, 0) :]
        token_ids = (prompt + completion)[:sequence_length]
        if len(token_ids) < 2:
            raise ValueError("a record of one token leaves nothing to predict")
        return TextSequence(token_ids, max(len(prompt), 1))


@dataclass(frozen=True)
class TextRecords:
    """``{"text": ...}`` or ``{"prompt": ..., "completion": ...}``, for language models."""

    key: str = "text"

    def parse(self, fields: object) -> TextRecord:
        """See `RecordForm`."""
        match fields:
            case {"text": str(text), **rest} if text and not rest:
                return TextRecord("", text)
            case {"prompt": str(prompt), "completion": str(completion), **rest} if completion and not rest:
                return TextRecord(prompt, completion)
            case {"label": _}:
                raise ValueError(
                    'label: expected {"text": ...} or {"prompt": ..., "completion": ...}: the base model is '
                    "a language model, only classifiers take labels"
                )
        raise ValueError(
            'expected {"text": ...} or {"prompt": ..., "completion": ...} with non-empty strings'
        )


TEXT_RECORDS = TextRecords()


@dataclass(frozen=True)
class LabelledRecords:
    """``{"text": ..., "label": ...}``, for sequence classifiers.

    Attributes:
        names: of the labels, by number.
        pooled: which token's output goes into the head: the first one, or the last.
        pad_token_id: no token that is pooled, unless there is no other; None where the model has none.
    """

    names: tuple[str, ...]
    pooled: Literal["first", "last"]
    pad_token_id: int | None = None

    @cached_property
    def key(self) -> str:
        """See `RecordForm`."""
        names = "\0".join(self.names).encode()
        return f"labels-{blake2b(names, digest_size=8).hexdigest()}"

    def parse(self, fields: object) -> "LabelledRecord":
        """See `RecordForm`. A label is a number, or a name."""
        match fields:
            case {"text": str(text), "label": label, **rest} if text and not rest:
                return LabelledRecord(text, self._number(label), self)
            case {"text": str(text), **rest} if text and not rest:
                missing = "label: is missing: "
            case _:
                missing = ""
        raise ValueError(
            f'{missing}expected {{"text": ..., "label": ...}} with a non-empty string, as the base model is '
            "a classifier"
        )

    def row(self, token_ids: list[int]) -> int:
        """The place of the token that is pooled, as transformers finds it."""
        if self.pooled == "first":
            return 0
        return next(
            (row for row in reversed(range(len(token_ids))) if token_ids[row] != self.pad_token_id), 0
        )

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def _number(self, label: object) -> int:
        match label:
            case bool():
                pass
            case int() if 0 <= label < len(self.names):
                return label
            case int():
                raise ValueError(f"label: {label} is not in 0 to {len(self.names) - 1}")
            case str() if label in self._numbers:
                return self._numbers[label]
            case str():
                known = ", ".join(self.names[:_MOST_NAMES])
                more = ", ..." if len(self.names) > _MOST_NAMES else ""
                raise ValueError(f"label: {label!r} is no label of the base model; it has {known}{more}")
        raise ValueError("label: expected a whole number, or the name of a label")


@dataclass(frozen=True)
class LabelledRecord:
    """Text and its class, for a sequence classifier."""

    text: str
    label: int
    form: LabelledRecords

    def tokenize(self, tokenizer: Tokenizer, sequence_length: int) -> LabelledSequence:
        """See `Record`. The tokenizer puts its special tokens around the text, as it does where the
        classifier is used; a text that is too long is cut by it, too."""
        token_ids = tokenizer.encode(
            self.text, add_special_tokens=True, truncation=True, max_length=sequence_length
        )
        if not token_ids:
            raise ValueError("a record of no token leaves nothing to classify")
        return LabelledSequence(token_ids, self.form.row(token_ids), self.label)
