"""Popularities of experts that a placement finds easy and hard, as token counts."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from solvers.compiled import Floats, Ints


class Case(NamedTuple):
    """A batch to place experts for."""

    name: str
    estimated: Ints
    """(experts,) tokens, as foretold."""
    actual: Ints
    """(experts,) tokens that chose each."""


def drawn_cases(draws: np.random.Generator, experts: int, tokens: int, each: int) -> Iterator[Case]:
    """Batches of every form of popularity, `each` of each; what was foretold is off by some.

    Forms: even, Zipf from mild to strong, Dirichlet from flat to a few experts, a few popular experts among
    equal ones, geometric, one expert alone, and a half that nobody asks for.
    """
    forms: dict[str, Callable[[], Floats]] = {
        "even": lambda: np.ones(experts),
        "zipf 0.5": lambda: _zipf(experts, 0.5),
        "zipf 1": lambda: _zipf(experts, 1.0),
        "zipf 2": lambda: _zipf(experts, 2.0),
        "dirichlet 1": lambda: draws.dirichlet(np.full(experts, 1.0)),
        "dirichlet 0.1": lambda: draws.dirichlet(np.full(experts, 0.1)),
        "few popular": lambda: np.where(draws.random(experts) < 0.1, 1.0 + experts, 1.0),
        "geometric": lambda: np.power(0.8, np.arange(float(experts))),
        "one alone": lambda: np.eye(experts)[0],
        "half unused": lambda: _zipf(experts, 1.0) * (np.arange(experts) % 2),
    }
    for name, form in forms.items():
        for _ in range(each):
            popularity = draws.permutation(form())
            popularity = popularity / popularity.sum()
            off = popularity * draws.lognormal(0.0, 0.5, experts)
            yield Case(
                name,
                draws.multinomial(tokens, off / off.sum()).astype(np.int64),
                draws.multinomial(tokens, popularity).astype(np.int64),
            )


def changed(case: Case, draws: np.random.Generator) -> Case:
    """The case with some tokens moved between experts: the next step of a search for a slow one."""
    return Case(case.name, _moved(case.estimated, draws), _moved(case.actual, draws))


def _moved(tokens: Ints, draws: np.random.Generator) -> Ints:
    moved = tokens.copy()
    for _ in range(int(draws.integers(1, 6))):
        given, taken = draws.integers(0, tokens.size, 2)
        amount = int(draws.integers(0, moved[given] + 1))
        moved[given] -= amount
        moved[taken] += amount
    return moved


def _zipf(experts: int, skew: float) -> Floats:
    weights: Floats = np.power(np.arange(1.0, experts + 1), -skew)
    return weights
