"""Findings of the probe of a base model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from executors.lora.model_kind import BaseModelError

Reason = Literal[
    "eager_raises",
    "packed_raises",
    "attention_argument",
    "no_layers",
    "not_finite",
    "leaks",
    "values_differ",
    "gradients_differ",
]
"""Reason why a base model is refused:

- ``eager_raises``: transformers' own forward raises on plain sequences. - ``packed_raises``: the packed pass
raises. - ``attention_argument``: the model passes an argument to its attention that packed attention does not
support. - ``no_layers``: no linear layer sees every token, so no layer can have an adapter. - ``not_finite``:
logits or gradients are not finite. - ``leaks``: a task's logits or gradients depend on the tokens of its
neighbour. - ``values_differ``: the packed logits differ from those of the sequences alone. -
``gradients_differ``: the adapters' packed gradients differ.
"""


class UnprovenBaseError(BaseModelError):
    """A base model that cannot be trained in packed batches.

    Attributes:
        reason: kind of the fault.
        detail: numbers, or the error.
    """

    def __init__(self, directory: Path, model: str, refusal: "ProbeRefusal") -> None:
        self.reason = refusal.reason
        self.detail = refusal.detail
        remedy = (
            ": transformers cannot run it as its config.json describes it: compare it with the original's"
        )
        super().__init__(
            f"{directory}: {model} cannot be trained in packed batches: {refusal}"
            f"{remedy if refusal.reason == 'eager_raises' else ''}"
        )


class ProbeRefusal(Exception):  # noqa: N818 -- it is a finding, and leaves this package as an UnprovenBaseError
    """A check of the probe that failed."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason: Reason = reason
        self.detail = detail
        super().__init__(f"{detail} ({reason})")


@dataclass(frozen=True)
class Deviation:
    """Relative deviation of a packed pass from transformers' eager pass, and its limit."""

    found: float
    allowed: float

    @property
    def is_too_large(self) -> bool:
        """Whether the deviation is beyond rounding, or is not a number."""
        return not self.found <= self.allowed

    def __str__(self) -> str:
        return f"{self.found:.1e} where rounding explains {self.allowed:.1e}"


@dataclass(frozen=True)
class Proof:
    """Findings of the probe for a base model that it accepts.

    Attributes:
        values: deviation of the logits.
        gradients: deviation of the adapters' gradients.
        adapted_layers: number of linear layers that had adapters.
        partial_layers: number of linear layers that process only some of the tokens, and so can have no
            adapters.
        longest_tokens: length of the longest sequence compared.
        bit_identical: whether a neighbour's tokens change no bit. If not, they change roundings only: no
            gradient reaches a neighbour's inputs, but routed experts multiply the tokens of all sequences in
            matrices whose shapes, and so the order of sums, depend on the routing.
        seconds: duration of the probe (s).
    """

    values: Deviation
    gradients: Deviation
    adapted_layers: int
    partial_layers: int
    longest_tokens: int
    bit_identical: bool
    seconds: float
