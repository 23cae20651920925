"""Measured costs of the layers of a model."""

import time
from statistics import median

import torch

from executors.lora.batch import TextSequence, pack
from executors.tuner.pipeline.structure import StageWeights, Structure

_WARM_ROUNDS = 2


def measured_costs(
    structure: Structure, device: torch.device, *, sequences: int = 4, tokens: int = 64, rounds: int = 5
) -> list[float]:
    """Measure the seconds that each layer takes forwards and backwards, for `cut`; the last layer includes
    the head.

    Measure once per model and kind of device, and use the same numbers on all ranks (Ymir, section 6.1: the
    partition is profiled offline). One layer at a time is on the device. Adapters, which are alike in all
    layers, are left out.

    Args:
        structure: structure of the model, with no stage placed; its parameters are loaded here.
        device: to measure on.
        sequences: sequences per micro-batch.
        tokens: tokens per sequence; all but one bear loss.
        rounds: measurements per layer, of which the median is returned.
    """
    layers = structure.layers
    weights = StageWeights(structure, [range(n, n + 1) for n in range(len(layers))], device)
    batch = pack([[TextSequence([0] * tokens, 1)] * sequences], device)
    features = structure.base.model.config.get_text_config().hidden_size
    hidden = torch.randn(1, sequences * tokens, features, dtype=structure.dtype).to(device)
    costs = []
    for number, layer in enumerate(layers):
        weights.place(number, weights.read(number))
        times_s = []
        for _ in range(_WARM_ROUNDS + rounds):
            inputs = hidden.clone().requires_grad_()
            start_s = time.perf_counter()
            output = structure.family.run(structure.base.model, [layer], inputs, batch)
            if number == len(layers) - 1:
                output = structure.logits(output, batch.loss_rows)
            output.float().sum().backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times_s.append(time.perf_counter() - start_s)
        weights.drop(number)
        costs.append(median(times_s[_WARM_ROUNDS:]))
    return costs
