"""Interface between the general views and a policy's own view."""

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
    """Figures of a policy, folded from its evidence and decisions in one cell. Each method is optional.

    Every cell has the figures of every installed view: without decisions of the policy they show nothing.
    """

    NAME: ClassVar[str]
    """Name of their part in a summary for programs."""

    def take_decision(self, decision: Decision) -> None:
        """Fold a decision of the cell, with the time of its clock; decisions are in their order."""

    def read_clock(self, time_s: float) -> None:
        """Set the time of the cell's clock, which may be later than the folded decisions."""

    def headline(self) -> str:
        """Return the state in a few words, for the line above a watcher's tables."""
        return ""

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts for a summary."""
        yield from ()

    def as_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return {}

    def job_cells(self, job: Job) -> Mapping[str, str]:  # noqa: ARG002
        """Return the cells of a job's row, by the name of the column."""
        return {}

    def node_cells(self, node: Node) -> Mapping[str, str]:  # noqa: ARG002
        """Return the cells of a node's row, by the name of the column."""
        return {}


class PolicyView:
    """Display of a policy: its figures, and words for its types. Each part is optional.

    A record without words of any view is shown in general terms, or by its fields.

    Views recognise records by their types, so policies that share types may share a view.
    """

    figures: type[PolicyFigures] = PolicyFigures
    sentences: Mapping[str, str] = MappingProxyType({})
    """Sentences for the reasons of the policy's decisions, as in `infra.views.sentences`."""

    def part_of(self, record: Event | Outcome, job_id: str) -> Event | Outcome | None:  # noqa: ARG002
        """Return the part about a job of a record about several, such as a problem for a solver: the record
        without the others. None if the record is not about the job."""
        return None

    def words(self, told: Record) -> list[str] | None:  # noqa: ARG002
        """Return the words of `explain` for an event or a decision, or for its workload, terms or evidence: a
        line about the fact, and further lines with its numbers. None if the view has no words."""
        return None

    def happening(self, outcome: Outcome) -> str | None:  # noqa: ARG002
        """Return a line for a watcher about a decision; None if the view has no words."""
        return None


@cache
def policy_views() -> tuple[PolicyView, ...]:
    """Return the views of the installed policies, each once."""
    references = dict.fromkeys(kind.view for kind in KINDS.values() if kind.view is not None)
    return tuple(map(_view, references))


def view_of(policy: str) -> tuple[PolicyView, ...]:
    """Return the view of a policy of some kind; none if it is not installed, or has no view."""
    reference = None if policy not in KINDS else KINDS[policy].view
    return () if reference is None else (_view(reference),)


@cache
def _view(reference: str) -> PolicyView:
    view = resolve_name(reference)()
    assert isinstance(view, PolicyView)
    return view
