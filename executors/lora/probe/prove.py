"""The probe of a base model: four checks, each of which can refuse it."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from executors.lora.batch import TokenSequence
from executors.lora.model_kind import one_line
from executors.lora.packed_attention import UnknownAttentionArgumentError
from executors.lora.probe.deviation import (
    FLOAT32,
    REDUCED,
    REDUCED_ALONE,
    ProbeRefusal,
    Reason,
    UnprovenBaseError,
    Yardstick,
    are_same_bits,
    is_finite,
    task_of,
)
from executors.lora.probe.passes import TASKS, PassOutcome, Probe, has_room_for_float32, is_reduced
from executors.lora.probe.proof import Deviation, Proof
from executors.lora.shared_base import SharedBase

R = TypeVar("R")

_LONG_PRODUCTS = {"cpu": 5e8, "cuda": 5e13}
"""Parameters times tokens of the longest compared sequence, by device: about a second."""
_LONGEST_TOKENS = 8_192
_USUAL_TOKENS = 256
_USUAL_PRODUCTS = 2e10
"""Parameters times tokens up to which sequences of usual job lengths are compared: some seconds on a CPU."""

_log = logging.getLogger(__name__)


def prove(base: SharedBase) -> Proof:
    """Compare packed passes of a base model with transformers' eager passes of each sequence alone.

    Two tasks of two sequences each run on the real weights, on their device and in their precision:

    1. Leaks: if the tokens of one task are changed, logits and adapter gradients of the other must stay the
       same to the bit (or, with routed experts, to rounding: see `Proof.bit_identical`), both ways.
    2. Values: the logits must be those of the eager pass.
    3. Gradients: so must the adapters' gradients, for adapters on all layers that see every token.
    4. One long sequence must have the eager logits, since a model may treat distant tokens in another way. It
    has the longest length of the model, or the length that the device computes in about a second.

    Allowances for rounding are measured, see `deviation`. A model of less precision is compared in float32
    first, if that fits on the device, and then in its own precision.

    Raises:
        UnprovenBaseError: a check or a pass fails.
        torch.OutOfMemoryError, torch.AcceleratorError: the device is too small, or lost.
    """
    started_s = time.monotonic()
    name = type(base.model).__name__
    try:
        with torch.enable_grad():
            proof = _proof(base, started_s)
    except ProbeRefusal as refusal:
        raise UnprovenBaseError(base.directory, name, refusal) from refusal.__cause__
    _log.info(
        "base model proven model=%s layers=%d partial_layers=%d longest_tokens=%d values=%.1e "
        "gradients=%.1e bit_identical=%s seconds=%.2f",
        *(name, proof.adapted_layers, proof.partial_layers, proof.longest_tokens),
        *(proof.values.found, proof.gradients.found, proof.bit_identical, proof.seconds),
    )
    return proof


def _proof(base: SharedBase, started_s: float) -> Proof:
    probe = _run("eager_raises", lambda: Probe(base))
    _run("eager_raises", lambda: probe.eager_values([probe.batches[0][:1]]))
    layers = _run("packed_raises", probe.layers_of_every_token)
    if not layers:
        raise ProbeRefusal("no_layers", "no linear layer sees every token")
    probe.adapt(layers)
    if is_reduced(base.model):
        checks = _checks_of_reduced(probe)
    else:
        checks = Checks(probe, FLOAT32, _eager(probe), _eager(probe, perturbed=True))
    bit_identical = checks.leaks()
    values, gradients = checks.deviations()
    return Proof(
        values=values,
        gradients=gradients,
        adapted_layers=len(layers),
        partial_layers=len(base.sites) - len(layers),
        longest_tokens=checks.long_sequence(),
        bit_identical=bit_identical,
        seconds=time.monotonic() - started_s,
    )


def _checks_of_reduced(probe: Probe) -> "Checks":
    """Prove a model in float32, if that fits; return the checks in its own precision."""
    if not has_room_for_float32(probe.model, probe.model.device):
        return Checks(probe, REDUCED_ALONE, _eager(probe), _eager(probe, perturbed=True))
    with probe.in_float32():
        exact = _eager(probe)
        checks = Checks(probe, FLOAT32, exact, _eager(probe, perturbed=True))
        checks.leaks()
        checks.deviations()
        checks.long_sequence()
    return Checks(probe, REDUCED, exact, _eager(probe))


def compared_tokens(device_type: str, parameters: int) -> int:
    """Return the length of the longest compared sequence, for the number of a model's parameters."""
    affordable = int(_LONG_PRODUCTS.get(device_type, 0) / parameters)
    usual = min(_USUAL_TOKENS, int(_USUAL_PRODUCTS / parameters))
    return min(max(affordable, usual), _LONGEST_TOKENS)


class Checks:
    """The checks of a model in one precision."""

    def __init__(
        self, probe: Probe, yardstick: Yardstick, reference: PassOutcome, noise: PassOutcome
    ) -> None:
        """Keep the reference, and a pass that differs from it only by rounding.

        Raises:
            Refusal: one of them is not finite, or the packed pass raises.
        """
        for outcome in (reference, noise):
            if not is_finite(outcome):
                raise ProbeRefusal("not_finite", "logits or gradients of the eager pass are not finite")
        self._probe = probe
        self._yardstick = yardstick
        self._reference = reference
        self._noise = noise
        self._packed = self._pass(probe.batches)

    def leaks(self) -> bool:
        """Check for an influence of each task on the other.

        Returns:
            whether no bit is influenced. If not, there is only one by rounding.

        Raises:
            Refusal: a task depends on the other.
        """
        bit_identical = True
        for changed in range(TASKS):
            mine = 1 - changed
            before = task_of(self._packed, mine)
            after = task_of(self._pass(self._probe.changed(changed)), mine)
            if are_same_bits(before, after):
                continue
            bit_identical = False
            moves = self._yardstick.measure(after, before)
            for what, moved, allowed in zip(("logits", "gradients"), moves, self._allowed, strict=True):
                if not moved <= allowed:
                    text = f"{what} of one task move by {moved:.1e} when the tokens of another are changed"
                    raise ProbeRefusal("leaks", text)
            reach = _run("packed_raises", partial(self._probe.reach, mine))
            if reach.any():
                size = float(reach.abs().max())
                raise ProbeRefusal(
                    "leaks", f"logits of one task depend on the tokens of another, by {size:.1e}"
                )
        return bit_identical

    def deviations(self) -> tuple[Deviation, Deviation]:
        """Compare logits and gradients with the reference.

        Raises:
            Refusal: they differ.
        """
        values, gradients = self._yardstick.compare(self._packed, self._reference, self._noise)
        if values.is_too_large:
            raise ProbeRefusal("values_differ", f"packed logits differ from transformers' by {values}")
        if gradients.is_too_large:
            raise ProbeRefusal("gradients_differ", f"packed gradients differ from PEFT's by {gradients}")
        return values, gradients

    def long_sequence(self) -> int:
        """Compare the logits of one long sequence with those of the eager pass in the same precision.

        Returns:
            the tokens of this sequence, or of the longest sequence before it.

        Raises:
            Refusal: they differ.
        """
        probe = self._probe
        longest = max(len(sequence.token_ids) for batch in probe.batches for sequence in batch)
        size = sum(parameter.numel() for parameter in probe.model.parameters())
        tokens = min(probe.base.longest_sequence_tokens, compared_tokens(probe.model.device.type, size))
        if tokens <= longest:
            return longest
        batches = [[probe.long_sequence(tokens)], probe.batches[1]]
        yardstick = REDUCED_ALONE if is_reduced(probe.model) else FLOAT32
        eager = _run("eager_raises", lambda: probe.eager_values(batches))
        noise = _run("eager_raises", lambda: probe.eager_values(batches, perturbed=probe.rounding))
        packed = _run("packed_raises", lambda: probe.packed_values(batches))
        values, _ = yardstick.compare(packed, eager, noise)
        if values.is_too_large:
            text = f"packed logits of a sequence of {tokens} tokens differ from transformers' by {values}"
            raise ProbeRefusal("values_differ", text)
        return tokens

    @property
    def _allowed(self) -> list[float]:
        """Return the largest changes of logits and gradients that rounding explains."""
        return [
            self._yardstick.allow(noise) for noise in self._yardstick.measure(self._noise, self._reference)
        ]

    def _pass(self, batches: Sequence[Sequence[TokenSequence]]) -> PassOutcome:
        outcome = _run("packed_raises", lambda: self._probe.packed(batches))
        if not is_finite(outcome):
            raise ProbeRefusal("not_finite", "logits or gradients of the packed pass are not finite")
        return outcome


def _eager(probe: Probe, *, perturbed: bool = False) -> PassOutcome:
    return _run("eager_raises", lambda: probe.eager(perturbed=probe.rounding if perturbed else 0.0))


def _run(reason: Reason, action: Callable[[], R]) -> R:
    """Raise an error of an action as a refusal, unless it is the device's."""
    try:
        return action()
    except (torch.OutOfMemoryError, torch.AcceleratorError, MemoryError):
        raise
    except UnknownAttentionArgumentError as error:
        raise ProbeRefusal("attention_argument", str(error)) from error
    except Exception as error:
        raise ProbeRefusal(reason, one_line(error)) from error
