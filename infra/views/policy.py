"""Interface between the general views and a policy's own view."""

from collections.abc import Iterable, Mapping
from functools import cache
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from infra.figures.jobs import JobTimeline
from infra.figures.nodes import NodeState
from infra.figures.zone import ZoneFigures
from infra.tools import installed_tools, tools_of
from schemas.base import Event, Outcome, Record
from schemas.installed import KINDS

F = TypeVar("F", bound=ZoneFigures[Any])
J = TypeVar("J", bound=JobTimeline)


class FiguresView(Generic[F, J]):
    """Words of a policy for the figures of its zones and jobs. Each method is optional."""

    def headline(self, figures: F) -> str:  # noqa: ARG002
        """Return the state of a zone in a few words, for the line above a watcher's tables."""
        return ""

    def rows(self, figures: F) -> Iterable[tuple[str, str]]:  # noqa: ARG002
        """Yield names and texts for a summary of a zone."""
        return ()

    def job_cells(self, figures: F, job: J) -> Mapping[str, str]:  # noqa: ARG002
        """Return the cells of a job's row, by the name of the column."""
        return {}

    def node_cells(self, figures: F, node: NodeState) -> Mapping[str, str]:  # noqa: ARG002
        """Return the cells of a node's row, by the name of the column."""
        return {}


class PolicyView:
    """Words of a policy for its types. Each part is optional.

    A record without words of any view is shown in general terms, or by its fields.

    Views recognise records by their types, so policies that share types may share a view.
    """

    sentences: Mapping[str, str] = MappingProxyType({})
    """Sentences for the reasons of the policy's decisions, as in `infra.views.sentences`."""
    figures: FiguresView[Any, Any] = FiguresView()
    """Words for the policy's `ZoneFigures`."""

    def part_of(self, record: Event | Outcome, job_id: str) -> Event | Outcome | None:  # noqa: ARG002
        """Return the record reduced to one job, such as a problem for a solver; None if the record is not
        about the job."""
        return None

    def words(self, record: Record) -> list[str] | None:  # noqa: ARG002
        """Return the words of `explain` for an event or a decision, or for its workload, terms or evidence: a
        line about the fact, and further lines with its numbers. None if the view has no words."""
        return None

    def happening(self, outcome: Outcome) -> str | None:  # noqa: ARG002
        """Return a line for a watcher about a decision; None if the view has no words."""
        return None


@cache
def policy_views() -> tuple[PolicyView, ...]:
    """Return the views of the installed policies, each once."""
    references = dict.fromkeys(tools.view for tools in installed_tools() if tools.view is not None)
    return tuple(map(_view, references))


def view_of(policy: str) -> tuple[PolicyView, ...]:
    """Return the view of a policy of some kind; none if it is not installed, or has no view."""
    reference = None if policy not in KINDS else tools_of(policy).view
    return () if reference is None else (_view(reference),)


@cache
def _view(reference: str) -> PolicyView:
    view = resolve_name(reference)()
    assert isinstance(view, PolicyView)
    return view
