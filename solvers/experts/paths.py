"""Sample paths: forecast of the experts of tokens from those that they chose before (thesis, section 4.5.2).

Tokens that chose the same experts at the last l layers share a sample path. While a model is profiled, the
experts that the tokens of each path choose at the next layer are counted (Psi). Later the popularity of a
layer's experts is estimated from the paths of a batch, before its gating network has seen a token (Eq. 4.1,
erratum I1).
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from schemas.experts.workload import PUBLISHED_PATH_LENGTH
from solvers.compiled import Bools, Ints, kernel
from solvers.experts.placement import MAX_EXPERTS, ExpertDemand

PUBLISHED_TOP = 1
"""Number k of experts of each path that its estimate uses. Gating is top-1 in inference (section 4.7.1,
erratum I2), and the accuracy of section 4.7.3.2 is that of top-2k lists of two."""
LEAST_TOKENS = 4
"""Least tokens of a path: with fewer, shorter paths with more tokens give better estimates."""
_TOKEN = 2**20
"""Parts of a token in which its probabilities are counted."""
_MAX_KEY = 2**62


@dataclass
class _Counts:
    """Choices of tokens at one layer, by their path: the last experts that they chose before."""

    keys: Ints
    """(paths,) ascending."""
    counts: Ints
    """(paths, experts) tokens."""

    def add(self, keys: Ints, chosen: Ints, most_paths: int) -> None:
        """Count tokens, and drop the paths with the fewest tokens."""
        experts = self.counts.shape[1]
        merged = np.union1d(self.keys, keys)
        counts = np.zeros((merged.size, experts), np.int64)
        counts[np.searchsorted(merged, self.keys)] = self.counts
        places = np.searchsorted(merged, keys) * experts + chosen
        counts += np.bincount(places, minlength=counts.size).reshape(counts.shape)
        # Ties by key: of paths with equally many tokens, the first stay.
        kept = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[:most_paths])
        self.keys, self.counts = merged[kept], counts[kept]


class PathProfile:
    """Next-layer expert distributions of sample paths, added up over the batches of the profile stage.

    Each layer has a table for paths of each length from 0 to `length`, as far as there are layers before it.
    A table keeps the `most_paths` paths with the most tokens; a dropped path is counted from 0 when it
    appears again. The tables of shorter paths count all tokens, so they lose nothing.
    """

    def __init__(
        self, experts: int, layers: int, length: int = PUBLISHED_PATH_LENGTH, most_paths: int = 1_024
    ) -> None:
        if not 1 <= experts <= MAX_EXPERTS:
            raise ValueError(f"{experts} experts, expected 1 to {MAX_EXPERTS}")
        if layers < 1:
            raise ValueError(f"{layers} MoE layers, expected 1 at least")
        if length < 1 or experts**length > _MAX_KEY:
            raise ValueError(
                f"paths of {length} layers with {experts} experts cannot be distinguished: take 1 layer at "
                f"least, and few enough that experts ** layers is {_MAX_KEY} at most"
            )
        if most_paths < 1:
            raise ValueError(f"at most {most_paths} paths, expected 1 at least")
        self.experts = experts
        self.layers = layers
        self.length = length
        self.most_paths = most_paths
        self.tables = [
            [
                _Counts(np.empty(0, np.int64), np.empty((0, experts), np.int64))
                for _ in range(min(length, layer) + 1)
            ]
            for layer in range(layers)
        ]

    def add(self, selections: Ints) -> None:
        """Count a batch.

        Args:
            selections: (tokens, layers) the expert that each token chose at each MoE layer; its first choice
                if it chose two.

        Raises:
            ValueError: the number of layers differs, or an expert does not exist.
        """
        if selections.ndim != 2 or selections.shape[1] != self.layers:
            raise ValueError(f"selections of shape {selections.shape}, expected (tokens, {self.layers})")
        chosen = self.checked(selections)
        for layer, tables in enumerate(self.tables):
            keys = path_keys(chosen[:, :layer], self.length, self.experts)
            for length, table in enumerate(tables):
                table.add(keys % self.experts**length, chosen[:, layer], self.most_paths)

    def checked(self, selections: Ints) -> Ints:
        """Return the selections.

        Raises:
            ValueError: an expert does not exist.
        """
        if selections.size and not 0 <= int(selections.min()) <= int(selections.max()) < self.experts:
            raise ValueError(
                f"selections from {selections.min()} to {selections.max()}, the experts are 0 to "
                f"{self.experts - 1}"
            )
        return np.ascontiguousarray(selections, np.int64)

    def popularity(self, layer: int) -> ExpertDemand:
        """Return the tokens of a layer's experts in the whole profile."""
        return ExpertDemand.of_counts(self.tables[layer][0].counts.sum(axis=0))

    def to_json(self) -> dict[str, Any]:
        """Return the profile as values of JSON, for `from_json`. Counts are pairs of expert and tokens."""
        return {
            "experts": self.experts,
            "layers": self.layers,
            "length": self.length,
            "most_paths": self.most_paths,
            "tables": [
                [
                    {
                        "paths": table.keys.tolist(),
                        "counts": [
                            [[expert, count] for expert, count in enumerate(row) if count]
                            for row in table.counts.tolist()
                        ],
                    }
                    for table in tables
                ]
                for tables in self.tables
            ],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        profile = cls(values["experts"], values["layers"], values["length"], values["most_paths"])
        for tables, layer in zip(profile.tables, values["tables"], strict=True):
            for table, stored in zip(tables, layer, strict=True):
                table.keys = np.array(stored["paths"], np.int64)
                table.counts = np.zeros((table.keys.size, profile.experts), np.int64)
                for row, pairs in zip(table.counts, stored["counts"], strict=True):
                    for expert, count in pairs:
                        row[expert] = count
        return profile


@dataclass(frozen=True, eq=False)
class _Weights:
    """Weights of the experts of each path, in whole parts of a token."""

    keys: Ints
    """(paths,) ascending."""
    weights: Ints
    """(paths, experts) in parts of 2^20, rounded down; 0 for experts beyond the top ones."""


class PopularityEstimator:
    """Forecast of the demand of a layer's experts, from the experts that tokens chose at the layers before.

    If fewer than `least_tokens` tokens of the profile took a token's path of full length, the path of one
    layer less is used, and so on down to the choices of all tokens at that layer. Where there are fewer
    layers before, paths are as long as there are layers; the thesis schedules only from layer l on. A token
    is without estimate only if the profile is empty.
    """

    def __init__(
        self, profile: PathProfile, top: int | None = PUBLISHED_TOP, least_tokens: int = LEAST_TOKENS
    ) -> None:
        """
        Args:
            profile: is copied; later additions to it do not count.
            top: number of the most popular experts of each path that count, with their probabilities; the
                rest of its tokens is unknown. None: all of its experts count.
        """
        if top is not None and top < 1:
            raise ValueError(f"the top {top} experts of each path, expected 1 at least")
        self.profile = profile
        self._weights = [
            [_weights(table, top, least_tokens if length else 1) for length, table in enumerate(tables)]
            for tables in profile.tables
        ]

    def estimate(self, layer: int, selections: Ints) -> ExpertDemand:
        """Return the forecast demand of a layer's experts (Eq. 4.1), in parts of 2^20 of a token. Demands of
        several ranks may be combined.

        Args:
            layer: counted from 0 among the MoE layers.
            selections: (tokens, layers) experts at the MoE layers before this one, in their order; as many
                as a path has, or all if there are fewer.

        Raises:
            ValueError: there is no such layer, too few layers are given, or an expert does not exist.
        """
        if not 0 <= layer < self.profile.layers:
            raise ValueError(f"layer {layer}, the model has {self.profile.layers} MoE layers from 0")
        needed = min(layer, self.profile.length)
        if selections.ndim != 2 or selections.shape[1] < needed:
            raise ValueError(f"selections of shape {selections.shape}, expected {needed} layers at least")
        tokens = selections.shape[0]
        experts = self.profile.experts
        left = path_keys(self.profile.checked(selections), needed, experts)
        loads = np.zeros(experts, np.int64)
        for length in range(needed, -1, -1):
            table = self._weights[layer][length]
            is_left = _add_known(left % experts**length, table.keys, table.weights, loads)
            left = left[is_left]
        return ExpertDemand(loads, tokens * _TOKEN)


def path_keys(selections: Ints, length: int, experts: int) -> Ints:
    """Return a number for each path of the last `length` layers or fewer, (tokens,). Its remainder by
    experts ** n is the number of the path of the last n.

    Args:
        selections: (tokens, layers)
    """
    keys = np.zeros(selections.shape[0], np.int64)
    for layer in range(max(0, selections.shape[1] - length), selections.shape[1]):
        keys = keys * experts + selections[:, layer]
    return keys


def _weights(table: _Counts, top: int | None, least_tokens: int) -> _Weights:
    totals = table.counts.sum(axis=1)
    is_known = totals >= least_tokens
    counts, totals = table.counts[is_known], totals[is_known]
    if top is not None:
        beyond = np.argsort(-counts, axis=1, kind="stable")[:, top:]
        counts = counts.copy()
        np.put_along_axis(counts, beyond, 0, axis=1)
    return _Weights(table.keys[is_known], counts * _TOKEN // np.maximum(totals, 1)[:, None])


@kernel
def _add_known(tokens: Ints, keys: Ints, weights: Ints, loads: Ints) -> Bools:
    """Add the weights of the tokens whose path has any, and return which tokens are left without, (tokens,).

    Args:
        tokens: (tokens,) keys of their paths.
        loads: (experts,) is added to.
    """
    is_left = np.ones(tokens.size, np.bool_)
    taken = np.zeros(keys.size, np.int64)
    places = np.searchsorted(keys, tokens)
    for token in range(tokens.size):
        place = places[token]
        if place < keys.size and keys[place] == tokens[token]:
            is_left[token] = False
            taken[place] += 1
    for place in range(keys.size):
        if taken[place] > 0:
            for expert in range(loads.size):
                loads[expert] += taken[place] * weights[place, expert]
    return is_left
