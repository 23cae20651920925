"""The interface between the general views and a policy's own view."""

from collections.abc import Iterator, Mapping
from functools import cache
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, ClassVar

from infra.views.jobs import Job
from infra.views.nodes import Node
from schemas.base import Event, Outcome, Record
from schemas.codec import Decision
from schemas.kinds import KINDS


class PolicyFigures:
    """What the policy's own evidence and decisions in one cell add up to. Each method may be left out.

    Every cell has the figures of every view that is installed: what has taken nothing has nothing to show.
    """

    NAME: ClassVar[str]
    """Of their part in a summary for programs."""

    def take_decision(self, decision: Decision) -> None:
        """Take a decision of the cell, with the time of its clock; they come in their order."""

    def read_clock(self, time_s: float) -> None:
        """It is so late by the cell's clock, which may be later than the decisions that were taken."""

    def headline(self) -> str:
        """How things stand, in a few words, for the line above a watcher's tables."""
        return ""

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a summary says, by name."""
        yield from ()

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {}

    def job_cells(self, job: Job) -> Mapping[str, str]:  # noqa: ARG002
        """What tables say of a job, by the name of the column."""
        return {}

    def node_cells(self, node: Node) -> Mapping[str, str]:  # noqa: ARG002
        """What tables say of a node, by the name of the column."""
        return {}


class PolicyView:
    """How a policy is shown: its figures, and words for its types. Each part may be left out.

    What no view has words for is shown in general terms, by its fields at worst.

    Views know their own by its type, so policies may share one, as they share types.
    """

    figures: type[PolicyFigures] = PolicyFigures
    sentences: Mapping[str, str] = MappingProxyType({})
    """For reasons of the policy's decisions: see `infra.views.sentences`."""

    def part_of(self, record: Event | Outcome, job_id: str) -> Event | Outcome | None:  # noqa: ARG002
        """What is said of this job in a record that speaks of several, such as a problem for a solver: the
        record without the others. None where the record says nothing of it."""
        return None

    def words(self, told: Record) -> list[str] | None:  # noqa: ARG002
        """What `explain` says of an event or a decision, or only of its workload, terms or evidence: a line
        for what happened, and further ones for the numbers behind it. None where the view has no words."""
        return None

    def happening(self, outcome: Outcome) -> str | None:  # noqa: ARG002
        """A line for a watcher, about a decision; None where the view has no words."""
        return None


@cache
def policy_views() -> tuple[PolicyView, ...]:
    """One of each view that the installed policies name."""
    references = dict.fromkeys(kind.view for kind in KINDS.values() if kind.view is not None)
    return tuple(resolve_name(reference)() for reference in references)
