"""Routing of the tokens of drawn batches: skewed, different from batch to batch, and on paths that a profile
can learn."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers.compiled import Floats, Ints

FOLLOWS = 0.85
"""Part of the tokens that follow their topic, at each layer."""


@dataclass(frozen=True)
class RoutingSetting:
    """Parameters of the drawn routing, and the number of devices.

    A token has a topic, of which there are as many as experts, with popularity falling with the rank to the
    power `skew`. At each layer each topic has an expert, in an order drawn by layer: so layers differ in
    their popular experts (Table 4.2). A token goes to the expert of its topic, or, one time in seven, to that
    of another topic of its batch.
    """

    name: str
    experts: int
    devices: int
    layers: int
    tokens: int
    """Tokens of a batch on each device."""
    skew: float
    steadiness: float = 32.0
    """Sum of the parameters of the Dirichlet distribution of topics in a batch: batches are more alike if it
    is larger. With 32, a topic with 30 % of the tokens varies by 8 % of them."""
    shift_every: int = 0
    """Number of batches after which topics change their order of popularity; 0 for never. Paths do not
    change."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, from which the setting can be created again."""
        return dict(vars(self))


class DrawnRouting:
    """The batches of a setting; equal seeds yield equal batches."""

    def __init__(self, setting: RoutingSetting, seed: int) -> None:
        self._setting = setting
        self._seed = seed
        draws = np.random.default_rng((seed, 0))
        self._expert_of = np.stack([draws.permutation(setting.experts) for _ in range(setting.layers)])
        """(layers, topics)"""

    def batch(self, number: int) -> Ints:
        """Return (devices, tokens, layers) the expert of each token at each layer."""
        setting = self._setting
        draws = np.random.default_rng((self._seed, 1, number))
        popularity = draws.dirichlet(setting.steadiness * self._popularity(number) + 1e-9)
        shape = (setting.devices, setting.tokens)
        topics = draws.choice(setting.experts, shape, p=popularity)
        chosen = np.empty((*shape, setting.layers), np.int64)
        for layer in range(setting.layers):
            others = draws.choice(setting.experts, shape, p=popularity)
            here = np.where(draws.random(shape) < FOLLOWS, topics, others)
            chosen[:, :, layer] = self._expert_of[layer][here]
        return chosen

    def _popularity(self, number: int) -> Floats:
        """Return (topics,) the mean popularity at the time of a batch."""
        setting = self._setting
        period = number // setting.shift_every if setting.shift_every else 0
        order = np.random.default_rng((self._seed, 2, period)).permutation(setting.experts)
        weights: Floats = np.power(order + 1.0, -setting.skew)
        popularity: Floats = weights / weights.sum()
        return popularity
