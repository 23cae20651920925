"""The findings of the probe."""

from dataclasses import dataclass


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
        bit_identical: whether a neighbour's tokens change no bit. If not, they change roundings only. No
            gradient reaches a neighbour's inputs. But routed experts multiply the tokens of all sequences in
            common matrices, and the routing determines their shapes, and so the order of sums.
        seconds: duration of the probe (s).
    """

    values: Deviation
    gradients: Deviation
    adapted_layers: int
    partial_layers: int
    longest_tokens: int
    bit_identical: bool
    seconds: float
