"""Records of datasets: the valid lines, the names of their fields, and their conversion to tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal, Protocol

from executors.lora.batch import LabelledSequence, TextSequence, TokenSequence
from executors.lora.chat import read_messages
from executors.lora.record_fields import (
    as_object,
    kind_of,
    listed,
    optional_text,
    refuse_unknown,
    required_text,
    shown,
)
from executors.lora.tokens import Tokenizer, beginning, ending, tokens_of
from schemas.lora import Columns

_MOST_NAMES = 8
"""Most names of labels in an error."""

_FORMS = (
    '{"text": ...}, {"prompt": ..., "completion": ...}, {"messages": [...]} or '
    '{"instruction": ..., "input": ..., "output": ...}'
)


class DatasetRecord(Protocol):
    """One line of a dataset."""

    def tokenize(self, tokenizer: Tokenizer, sequence_length: int) -> TokenSequence:
        """Return the record in at most ``sequence_length`` tokens.

        The cost depends on the sequence length, not on the length of the record: at most
        `CHARACTERS_PER_TOKEN` characters of each text are tokenised for each token of the sequence.

        Raises:
            ValueError: the tokens are too few to predict any, or the chat template refuses the record.
        """


class RecordForm(Protocol):
    """Form of the lines that a base model can be trained on."""

    @property
    def key(self) -> str:
        """Unique name of the form: letters, digits and hyphens."""

    def parse(self, fields: object) -> DatasetRecord:
        """Read a line.

        Args:
            fields: its JSON.

        Raises:
            ValueError: it is of another form; the message names the field.
        """


@dataclass(frozen=True)
class TextRecord:
    """Text for a language model. The prompt, which plain text does not have, bears no loss."""

    prompt: str
    completion: str

    def tokenize(self, tokenizer: Tokenizer, sequence_length: int) -> TextSequence:
        """See `DatasetRecord`; at least one token bears loss.

        An end-of-sequence token closes a completion that is not cut. A record that is too long loses the
        start of its prompt first, then the end of its completion.
        """
        prompt = tokens_of(tokenizer, ending(self.prompt, sequence_length)) if self.prompt else []
        used = beginning(self.completion, sequence_length)
        completion = tokens_of(tokenizer, used)
        if tokenizer.eos_token_id is not None and len(used) == len(self.completion):
            completion.append(tokenizer.eos_token_id)
        kept_of_prompt = max(sequence_length - len(completion), min(len(prompt), 1))
        prompt = prompt[max(len(prompt) - kept_of_prompt, 0) :]
        token_ids = (prompt + completion)[:sequence_length]
        if len(token_ids) < 2:
            raise ValueError("a record of one token leaves nothing to predict")
        return TextSequence(token_ids, max(len(prompt), 1))


@dataclass(frozen=True)
class TextRecords:
    """Text, prompts with completions, chat messages, and instructions, for language models.

    Attributes:
        reads_chats: whether the base model's tokenizer has a chat template.
    """

    reads_chats: bool = False

    @property
    def key(self) -> str:
        return "text-and-chats" if self.reads_chats else "text"

    def parse(self, fields: object) -> DatasetRecord:
        """See `RecordForm`. The fields of a record determine its form."""
        given = as_object(fields, '{"text": ...}')
        if "label" in given:
            raise ValueError(
                f"label: expected {_FORMS}: the base model is a language model, only classifiers take labels"
            )
        if "messages" in given:
            return self._chat(given)
        if "instruction" in given or "output" in given:
            return _instruction(given)
        if "prompt" in given or "completion" in given:
            refuse_unknown(given, ("prompt", "completion"))
            prompt = optional_text(given, "prompt")
            if prompt is None:
                raise ValueError("prompt: is missing")
            return TextRecord(prompt, required_text(given, "completion"))
        if "text" in given:
            refuse_unknown(given, ("text",))
            return TextRecord("", required_text(given, "text"))
        raise ValueError(f"expected {_FORMS}; the fields are: {listed(given)}")

    def _chat(self, fields: Mapping[str, Any]) -> DatasetRecord:
        refuse_unknown(fields, ("messages",))
        if not self.reads_chats:
            raise ValueError(
                "messages: the base model's tokenizer has no chat template, so that chats cannot be read: "
                'give {"prompt": ..., "completion": ...}'
            )
        return read_messages(fields["messages"])


TEXT_RECORDS = TextRecords()


def _instruction(fields: Mapping[str, Any]) -> TextRecord:
    """Return an instruction and its answer, in the prompt of Stanford Alpaca (`PROMPT_DICT` of its
    `train.py`)."""
    refuse_unknown(fields, ("instruction", "input", "output"))
    instruction, output = required_text(fields, "instruction"), required_text(fields, "output")
    # pandas writes null for a field that other records have.
    given = None if fields.get("input") is None else optional_text(fields, "input")
    if given:
        prompt = (
            "Below is an instruction that describes a task, paired with an input that provides further "
            "context. Write a response that appropriately completes the request.\n\n"
            f"### Instruction:\n{instruction}\n\n### Input:\n{given}\n\n### Response:"
        )
    else:
        prompt = (
            "Below is an instruction that describes a task. Write a response that appropriately completes "
            f"the request.\n\n### Instruction:\n{instruction}\n\n### Response:"
        )
    return TextRecord(prompt, output)


@dataclass(frozen=True)
class LabelledRecords:
    """``{"text": ..., "label": ...}``, for sequence classifiers.

    Attributes:
        names: names of the labels, by number.
        pooled: token whose output goes into the head: the first one, or the last.
        pad_token_id: a token that is not pooled, unless there is no other; None for a model without one.
    """

    names: tuple[str, ...]
    pooled: Literal["first", "last"]
    pad_token_id: int | None = None

    @cached_property
    def key(self) -> str:
        names = "\0".join(self.names).encode()
        return f"labels-{blake2b(names, digest_size=8).hexdigest()}"

    def parse(self, fields: object) -> "LabelledRecord":
        """See `RecordForm`. A label is a number, or a name."""
        given = as_object(fields, '{"text": ..., "label": ...}')
        known = ("text", "label")
        missing = next((name for name in known if name not in given), None)
        if missing is not None:
            raise ValueError(
                f'{missing}: is missing: expected {{"text": ..., "label": ...}}, as the base model is a '
                f"classifier; the fields are: {listed(given)}"
            )
        refuse_unknown(given, known)
        return LabelledRecord(required_text(given, "text"), self._number(given["label"]), self)

    def row(self, token_ids: list[int]) -> int:
        """Return the place of the pooled token, as transformers finds it."""
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
                raise ValueError(f"label: {str(label)[:32]} is not in 0 to {len(self.names) - 1}")
            case str() if label in self._numbers:
                return self._numbers[label]
            case str():
                known = ", ".join(self.names[:_MOST_NAMES])
                more = ", ..." if len(self.names) > _MOST_NAMES else ""
                raise ValueError(
                    f"label: {label[:64]!r} is not a label of the base model; it has {known}{more}"
                )
        raise ValueError(f"label: is {kind_of(label)}, expected a whole number, or the name of a label")


@dataclass(frozen=True)
class LabelledRecord:
    """Text and its class, for a sequence classifier."""

    text: str
    label: int
    form: LabelledRecords

    def tokenize(self, tokenizer: Tokenizer, sequence_length: int) -> LabelledSequence:
        """See `DatasetRecord`. The tokenizer adds its special tokens around the text, as in use of the
        classifier, and cuts a text that is too long."""
        used = ending if tokenizer.truncation_side == "left" else beginning
        token_ids = tokenizer.encode(
            used(self.text, sequence_length),
            add_special_tokens=True,
            truncation=True,
            max_length=sequence_length,
        )
        if not token_ids:
            raise ValueError("a record of no token leaves nothing to classify")
        return LabelledSequence(token_ids, self.form.row(token_ids), self.label)


@dataclass(frozen=True)
class RenamedRecords:
    """Records of a form whose fields the job has named. Other fields are ignored.

    Attributes:
        form: form of the records once their fields have its names.
        columns: (field of the form, name in the file).
    """

    form: RecordForm
    columns: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        names = "\0".join(name for pair in self.columns for name in pair).encode(errors="surrogatepass")
        return f"{self.form.key}-{blake2b(names, digest_size=8).hexdigest()}"

    def parse(self, fields: object) -> DatasetRecord:
        """See `RecordForm`. Only `input` may be missing."""
        given = as_object(fields, "{" + ", ".join(f'"{column}": ...' for _, column in self.columns) + "}")
        renamed: dict[str, object] = {}
        for name, column in self.columns:
            if column in given:
                renamed[name] = given[column]
            elif name != "input":
                raise ValueError(
                    f"{shown(column)}: is missing, and dataset.columns.{name} names it; the fields are: "
                    f"{listed(given)}"
                )
        try:
            return self.form.parse(renamed)
        except ValueError as error:
            raise ValueError(self._in_the_file(str(error))) from error

    def _in_the_file(self, fault: str) -> str:
        """Replace the field that a fault begins with by its name in the file."""
        for name, column in self.columns:
            if fault.startswith((f"{name}:", f"{name}[")):
                return f"{shown(column)}{fault[len(name) :]}"
        return fault


def with_columns(form: RecordForm, columns: Columns | None) -> RecordForm:
    """Return a form with the names of fields that a job gives; the form itself if it gives none."""
    if columns is None:
        return form
    named: Mapping[str, str] = columns.model_dump(exclude_none=True)
    return RenamedRecords(form, tuple(named.items()))
