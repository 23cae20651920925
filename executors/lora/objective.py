"""Objectives of base models: next tokens, or the class of a text, with all their differences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from torch import Tensor
from transformers import GPT2ForSequenceClassification, PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification

from executors.lora.batch import PackedBatch
from executors.lora.model_kind import ENCODERS, BaseModelError, labels_of, text_records
from executors.lora.records import TEXT_RECORDS, LabelledRecords, RecordForm


class Objective(Protocol):
    """Objective of a base model's training."""

    @property
    def records(self) -> RecordForm:
        """Form of records for its training."""

    @property
    def task_type(self) -> str:
        """PEFT's name for it."""

    @property
    def head_name(self) -> str:
        """Dotted name of the module that computes logits."""

    @property
    def plain(self) -> tuple[str, ...]:
        """Dotted names of modules without low-rank matrices: they run only on rows that bear loss."""

    @property
    def own(self) -> tuple[str, ...]:
        """Dotted names of modules that each task has for itself and trains in full."""

    @property
    def position_offset(self) -> int:
        """Position of a sequence's first token."""

    def loss_logits(self, model: PreTrainedModel, batch: PackedBatch) -> Tensor:
        """Run the model, and return the logits of the rows that bear loss, ``[N, classes]``."""

    def logits(self, model: PreTrainedModel, rows: Tensor) -> Tensor:
        """Return the logits ``[N, classes]`` of some rows of the last layer's outputs, ``[N, features]``."""


@dataclass(frozen=True)
class NextTokens:
    """Objective of a causal language model. Its head is frozen, and the same for all tasks."""

    head_name: str
    records: RecordForm = TEXT_RECORDS
    task_type: str = "CAUSAL_LM"
    own: tuple[str, ...] = ()
    position_offset: int = 0

    @property
    def plain(self) -> tuple[str, ...]:
        """See `Objective`, also for all methods below."""
        return (self.head_name,)

    def loss_logits(self, model: PreTrainedModel, batch: PackedBatch) -> Tensor:
        logits = model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            sequence_runs=batch.sequence_runs,
            logits_to_keep=batch.loss_rows,
            use_cache=False,
        ).logits[0]
        return cast(Tensor, logits)

    def logits(self, model: PreTrainedModel, rows: Tensor) -> Tensor:
        return cast(Tensor, model.get_submodule(self.head_name)(rows))


@dataclass(frozen=True)
class TextClass:
    """Objective of a sequence classifier.

    Attributes:
        plain: modules from the pooled token's output to the logits, in order; the head is the last.
    """

    plain: tuple[str, ...]
    records: LabelledRecords
    position_offset: int
    task_type: str = "SEQ_CLS"

    @property
    def head_name(self) -> str:
        """See `Objective`, also for all methods below."""
        return self.plain[-1]

    @property
    def own(self) -> tuple[str, ...]:
        return (self.head_name,)

    def loss_logits(self, model: PreTrainedModel, batch: PackedBatch) -> Tensor:
        return self.logits(model, last_outputs(model, self, batch)[batch.loss_rows])

    def logits(self, model: PreTrainedModel, rows: Tensor) -> Tensor:
        # Some of the modules pool: for them, each row is a sequence of one token.
        outputs = rows.unsqueeze(1)
        for name in self.plain:
            outputs = model.get_submodule(name)(outputs)
        return outputs.flatten(0, -2)


def next_tokens(directory: Path, model: PreTrainedModel) -> NextTokens:
    """Return the objective of a causal language model.

    Raises:
        BaseModelError: its attention covers the tokens that it is to predict.
    """
    if any(getattr(module, "is_causal", True) is False for module in model.modules()):
        raise BaseModelError(f"{directory}: no causal language model: {type(model).__name__} looks ahead")
    head = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is head)
    return NextTokens(name, text_records(directory))


def text_class(directory: Path, model: PreTrainedModel) -> TextClass:
    """Return the objective of a sequence classifier.

    Raises:
        BaseModelError: its structure is unknown.
    """
    config, encoder = model.config, ENCODERS.get(model.config.model_type)
    if encoder is not None:
        offset = config.pad_token_id + 1 if encoder.counts_positions_from_padding else 0
        return TextClass(encoder.path, labels_of(config), offset)
    if not isinstance(model, GenericForSequenceClassification | GPT2ForSequenceClassification):
        known = ", ".join(ENCODERS)
        raise BaseModelError(
            f"{directory}: a {config.model_type!r} classifier cannot be trained: of encoders {known} can, "
            "and of decoders those that classify by their last token"
        )
    return TextClass(("score",), labels_of(config), 0)


def last_outputs(model: PreTrainedModel, objective: Objective, batch: PackedBatch) -> Tensor:
    """Return the outputs of the last layer, ``[T, features]``."""
    outputs = model.base_model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids + objective.position_offset,
        sequence_runs=batch.sequence_runs,
        use_cache=False,
    ).last_hidden_state[0]
    return cast(Tensor, outputs)
