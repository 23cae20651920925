"""What is trained: one LoRA fine-tuning task, as the plan describes it."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

JobId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A job's name. It also names a folder, hence the narrow alphabet."""

LLAMA_TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GPT2_TARGET_MODULES = ("c_attn",)


class LoraTask(BaseModel):
    """One adapter and how it is trained (LoRA: Hu et al. 2021, arXiv 2106.09685).

    Attributes:
        job_id: the job; unique within an engine.
        rank: width r of the low-rank update ``W + (alpha / r) B A``.
        alpha: numerator of the update's scale.
        dropout: probability with which an input feature of the adapter is dropped.
        target_modules: layers that get an adapter; a layer is meant if its dotted name is, or ends with,
            one of these (the rule of PEFT).
        learning_rate: AdamW's step size.
        weight_decay: AdamW's decoupled weight decay.
        batch_size: sequences in a micro-batch.
        sequence_length: longest sequence in tokens; longer records are cut.
        max_gradient_norm: the adapter's gradient is scaled down to this L2 norm; ``None`` leaves it alone.
        seed: decides initial weights, data order and dropout masks.
        dataset: JSONL file, relative to the dataset root.
        total_samples: sequences to train on before the task is done.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job_id: JobId
    rank: Annotated[int, Field(ge=1, le=1024)] = 8
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 16.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[tuple[str, ...], Field(min_length=1)] = LLAMA_TARGET_MODULES
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 4
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576)] = 128
    max_gradient_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    dataset: Annotated[str, Field(min_length=1, max_length=4096)]
    total_samples: Annotated[int, Field(ge=1)]

    @property
    def scaling(self) -> float:
        """Factor ``alpha / rank`` on the low-rank update."""
        return self.alpha / self.rank

    @model_validator(mode="after")
    def _targets_are_distinct(self) -> Self:
        if len(set(self.target_modules)) != len(self.target_modules):
            raise ValueError("target_modules names a layer twice")
        return self
