"""Kinds of jobs with step times of their own, and as a question has them: with tables that are shared."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from schemas.merging.problems import JobKind, MergeProblem, StepTime


class Kind(NamedTuple):
    """See `JobKind`."""

    steps: tuple[StepTime, ...]
    samples_per_step: int
    dataset_samples: int


def listed(kinds: Iterable[Kind]) -> Mapping[str, Any]:
    """The fields of a question that tell of some kinds."""
    places: dict[tuple[StepTime, ...], int] = {}
    told = tuple(
        JobKind(
            step_table=places.setdefault(kind.steps, len(places)),
            samples_per_step=kind.samples_per_step,
            dataset_samples=kind.dataset_samples,
        )
        for kind in kinds
    )
    return {"step_tables": tuple(places), "kinds": told}


def kinds_of(problem: MergeProblem) -> list[Kind]:
    """The kinds that a question tells of."""
    return [
        Kind(problem.steps_of(place), kind.samples_per_step, kind.dataset_samples)
        for place, kind in enumerate(problem.kinds)
    ]
