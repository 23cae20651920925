"""Transferability of two tasks: the score S(A, B), from which the gain is forecast (Ymir, section 4.1).

Larger means that A is expected to help B more. Task2Vec (Achille et al., ICCV '19) and Task2Feat compare
measurements of profile runs of each task alone. They use elementwise arithmetic, exact sums and square roots,
and so give the same bits on every machine. LEEP (Nguyen et al., ICML '20) needs a run of the model of A on
the data of B: it is compared with them by `millrace bench merging` only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Embedding = Sequence[float]


class Transferability(Protocol):
    """Score from embeddings of each task alone."""

    def score(self, donor: Embedding, receiver: Embedding) -> float:
        """Return S(A, B).

        Raises:
            ValueError: the embeddings differ in length, or a value is invalid for the score.
        """


@dataclass(frozen=True)
class Task2Vec:
    """Score alpha d(A, trivial) - d(A, B) of the diagonals F of two tasks' Fisher information.

    d is the cosine distance of F_a / (F_a + F_b) and F_b / (F_a + F_b), which is symmetric. The first term
    makes tasks that are far from trivial the better donors. The paper's distance is the negative of this
    score: larger is better.
    """

    alpha: float = 0.15
    """Weight of the first term, as in the original; with 0 the score is symmetric."""
    trivial: tuple[float, ...] | None = None
    """Embedding of a task without particular needs of the backbone. None: the mean of A's
    information in every place."""

    def score(self, donor: Embedding, receiver: Embedding) -> float:
        _check_lengths(donor, receiver)
        for name, embedding in (("donor", donor), ("receiver", receiver)):
            if not all(value >= 0 and math.isfinite(value) for value in embedding):
                raise ValueError(f"{name}: Fisher information must be finite and not negative")
        trivial = self.trivial
        if trivial is None:
            trivial = (math.fsum(donor) / len(donor),) * len(donor)
        elif len(trivial) != len(donor):
            raise ValueError(
                f"the trivial task's embedding has {len(trivial)} values, those of the jobs have {len(donor)}"
            )
        return self.alpha * _normalised_distance(donor, trivial) - _normalised_distance(donor, receiver)


@dataclass(frozen=True)
class Task2Feat:
    """Cosine of the mean features of two tasks' data. Symmetric."""

    def score(self, donor: Embedding, receiver: Embedding) -> float:
        _check_lengths(donor, receiver)
        if not all(math.isfinite(value) for value in (*donor, *receiver)):
            raise ValueError("features must be finite")
        return 1.0 - _cosine_distance(donor, receiver)


def _check_lengths(donor: Embedding, receiver: Embedding) -> None:
    if len(donor) != len(receiver) or not donor:
        raise ValueError(
            f"embeddings of one base model have one length, not {len(donor)} (donor) and {len(receiver)} "
            "(receiver): profile both jobs again with the same model"
        )


def _normalised_distance(one: Embedding, other: Embedding) -> float:
    # If neither task has information, the quotients are undefined and the direction is meaningless.
    pairs = [(a, b, a + b) for a, b in zip(one, other, strict=True) if a + b > 0]
    return _cosine_distance([a / both for a, _, both in pairs], [b / both for _, b, both in pairs])


def _cosine_distance(one: Embedding, other: Embedding) -> float:
    """Return the cosine distance: 0 for the same direction, 1 for orthogonal vectors or a vector of zeros."""
    norms = math.sqrt(math.fsum(a * a for a in one)) * math.sqrt(math.fsum(b * b for b in other))
    if norms == 0:
        return 1.0
    return 1.0 - math.fsum(a * b for a, b in zip(one, other, strict=True)) / norms
