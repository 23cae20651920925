"""Sample paths: forecast of the experts of tokens from those that they chose before (thesis, section 4.5.2).

Tokens that chose the same experts at the last l layers share a sample path. While a model is profiled, the
experts that the tokens of each path choose at the next layer are counted (Psi). Later the popularity of a
layer's experts is estimated from the paths of a batch, before its gating network has seen a token (Eq. 4.1,
erratum I1).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from schemas.experts.workload import PUBLISHED_PATH_LENGTH
from solvers.compiled import Bools, Ints, kernel
from solvers.experts.placement import MAX_EXPERTS, ExpertDemand

PUBLISHED_TOP = 1
"""Number k of experts of each path that its estimate uses. Gating is top-1 in inference (section 4.7.1,
erratum I2), and the accuracy of section 4.7.3.2 is that of top-2k lists of two."""
LEAST_TOKENS = 4
"""Least tokens of a path: with fewer, shorter paths with more tokens give better estimates."""
MOST_TOKENS = 2**40
"""Most tokens of a count, so that a count in parts of a token fits into 64 bits."""
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

    def add(self, keys: Ints, counts: Ints, most_paths: int) -> None:
        """Add the counts of some paths, and drop the paths with the fewest tokens.

        Args:
            keys: (paths,) ascending.
            counts: (paths, experts)
        """
        merged = np.union1d(self.keys, keys)
        sums = np.zeros((merged.size, counts.shape[1]), np.int64)
        sums[np.searchsorted(merged, self.keys)] = self.counts
        sums[np.searchsorted(merged, keys)] += counts
        # Ties by key: of paths with equally many tokens, the first stay.
        kept = np.sort(np.argsort(-sums.sum(axis=1), kind="stable")[:most_paths])
        self.keys, self.counts = merged[kept], sums[kept]


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
                paths, places = np.unique(keys % self.experts**length, return_inverse=True)
                counts = np.bincount(
                    places * self.experts + chosen[:, layer], minlength=paths.size * self.experts
                )
                table.add(paths, counts.reshape(-1, self.experts), self.most_paths)

    def merge(self, other: Self) -> None:
        """Add the counts of another profile of the same model."""
        for tables, theirs in zip(self.tables, other.tables, strict=True):
            for table, their in zip(tables, theirs, strict=True):
                table.add(their.keys, their.counts, self.most_paths)

    @property
    def tokens(self) -> int:
        """Number of counted tokens."""
        return int(self.tables[0][0].counts.sum())

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

    def shortened(self, length: int) -> Self:
        """Return the profile of paths of fewer layers; the tables are shared.

        Raises:
            ValueError: its paths have fewer layers.
        """
        if length > self.length:
            raise ValueError(f"its paths have {self.length} layers, fewer than {length}")
        shorter = type(self)(self.experts, self.layers, length, self.most_paths)
        shorter.tables = [tables[: length + 1] for tables in self.tables]
        return shorter

    def arrays(self) -> dict[str, Ints]:
        """Return the tables for `of_arrays`, by name: `LAYER.LENGTH.paths`, (paths,), and
        `LAYER.LENGTH.counts`, (paths, experts)."""
        return {
            f"{layer}.{length}.{part}": array
            for layer, tables in enumerate(self.tables)
            for length, table in enumerate(tables)
            for part, array in (("paths", table.keys), ("counts", table.counts))
        }

    @classmethod
    def of_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], experts: int, layers: int, length: int, most_paths: int
    ) -> Self:
        """Return the profile with the tables of `arrays`.

        Raises:
            ValueError: they are not the tables of such a profile.
        """
        profile = cls(experts, layers, length, most_paths)
        if arrays.keys() != profile.arrays().keys():
            raise ValueError(f"has other tables than those of {layers} layers with paths of {length} at most")
        for layer, tables in enumerate(profile.tables):
            for size, table in enumerate(tables):
                name = f"{layer}.{size}"
                table.keys, table.counts = arrays[f"{name}.paths"], arrays[f"{name}.counts"]
                fault = _fault(table, experts, size, most_paths)
                if fault is not None:
                    raise ValueError(f"table {name} {fault}")
        return profile


def _fault(table: _Counts, experts: int, length: int, most_paths: int) -> str | None:
    """Return why a table cannot be that of paths of a length; None if it can."""
    keys, counts = table.keys, table.counts
    if keys.dtype != np.int64 or counts.dtype != np.int64:
        return f"has numbers of type {keys.dtype} and {counts.dtype}, not int64"
    if keys.ndim != 1 or counts.shape != (keys.size, experts):
        return f"has shapes {keys.shape} and {counts.shape}, not (paths,) and (paths, {experts})"
    if keys.size > most_paths:
        return f"has {keys.size} paths, more than {most_paths}"
    if keys.size == 0:
        return None
    if keys[0] < 0 or keys[-1] >= experts**length or (np.diff(keys) <= 0).any():
        return "has paths that do not exist, or not in ascending order"
    if counts.min() < 0 or counts.max() > MOST_TOKENS or not counts.any(axis=1).all():
        return f"has counts outside 0 to {MOST_TOKENS}, or a path without tokens"
    return None


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
            selections: (tokens, layers) experts at the MoE layers before this one, in their order. Needed are
                as many layers as a path has, or all of them if there are fewer.

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
    counts = np.zeros(keys.size, np.int64)
    places = np.searchsorted(keys, tokens)
    for token in range(tokens.size):
        place = places[token]
        if place < keys.size and keys[place] == tokens[token]:
            is_left[token] = False
            counts[place] += 1
    for place in range(keys.size):
        if counts[place] > 0:
            for expert in range(loads.size):
                loads[expert] += counts[place] * weights[place, expert]
    return is_left
