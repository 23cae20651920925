"""Findings of the probe of a base model: the deviation between two passes, and the part of it that rounding
explains."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from executors.lora.model_kind import BaseModelError
from executors.lora.probe.passes import PassOutcome
from executors.lora.probe.proof import Deviation

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

_WEAK_LAYER = 0.01
_TINY = 1e-30


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
class Yardstick:
    """Allowed deviation of a packed pass, given the effect of rounding alone on the eager pass.

    Attributes:
        factor: the allowance, as a multiple of the noise.
        least: the allowance if the noise is smaller than the format suggests.
        most: the allowance if the model is so ill-conditioned that its noise is meaningless.
        summary: summary of the deviations of rows or layers.
    """

    factor: float
    least: float
    most: float
    summary: Callable[[Iterable[float]], float]

    def measure(self, found: PassOutcome, reference: PassOutcome) -> tuple[float, float]:
        """Return the relative deviation of the logits, and that of the gradients."""
        rows = (
            deviation
            for ours, theirs in zip(found.logits, reference.logits, strict=True)
            for deviation in _of_rows(ours, theirs)
        )
        layers = [
            deviation
            for ours, theirs in zip(found.gradients, reference.gradients, strict=True)
            for deviation in _of_layers(ours, theirs)
        ]
        return self.summary(rows), self.summary(layers) if layers else 0.0

    def allow(self, noise: float) -> float:
        """Return the deviation that rounding explains."""
        return min(max(self.factor * noise, self.least), self.most)

    def compare(
        self, found: PassOutcome, reference: PassOutcome, noise: PassOutcome
    ) -> tuple[Deviation, Deviation]:
        """Compare a pass with the reference, given another that differs from it only by rounding."""
        pairs = zip(self.measure(found, reference), self.measure(noise, reference), strict=True)
        values, gradients = (Deviation(distance, self.allow(least)) for distance, least in pairs)
        return values, gradients


FLOAT32 = Yardstick(factor=32.0, least=2e-5, most=1e-2, summary=max)
"""Noise: the effect of one rounding of each input. A pass rounds some dozens of times in each layer, and
roundings add up like a random walk."""

REDUCED = Yardstick(factor=3.0, least=2**-7, most=0.3, summary=median)
"""Noise: the deviation of the eager pass from float32. The median is used, since roundings can make a router
send a token to another expert, and the whole token then differs."""

REDUCED_ALONE = Yardstick(factor=8.0, least=2**-7, most=0.3, summary=median)
"""Noise: the effect of one rounding of each input, used without a float32 pass for comparison."""


def is_finite(outcome: PassOutcome) -> bool:
    """Return whether all logits and gradients are finite."""
    tensors = [*outcome.logits, *(each for layers in outcome.gradients for each in layers.values())]
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def task_of(outcome: PassOutcome, number: int) -> PassOutcome:
    return PassOutcome((outcome.logits[number],), (outcome.gradients[number],))


def are_same_bits(one: PassOutcome, other: PassOutcome) -> bool:
    """Return whether the results of two passes are exactly equal."""
    pairs = [*zip(one.logits, other.logits, strict=True)]
    for ours, theirs in zip(one.gradients, other.gradients, strict=True):
        pairs += [(ours[site], theirs[site]) for site in ours]
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


def _of_rows(found: Tensor, reference: Tensor) -> list[float]:
    """Return the deviation of each row, relative to the rows' common size, since a row of few classes may be
    near zero."""
    scale = torch.linalg.vector_norm(reference, dim=1).square().mean().sqrt().clamp(min=_TINY)
    distances: list[float] = (torch.linalg.vector_norm(found - reference, dim=1) / scale).tolist()
    return distances


def _of_layers(found: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> list[float]:
    """Return the deviation of each layer's gradient, relative to the gradient itself, or to a share of the
    largest gradient if it is weak."""
    norms = {site: float(gradient.norm()) for site, gradient in reference.items()}
    least = max(_WEAK_LAYER * max(norms.values()), _TINY)
    return [
        float((found[site] - gradient).norm()) / max(norms[site], least)
        for site, gradient in reference.items()
    ]
