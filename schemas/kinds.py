"""The installed policies, and the unions of their types."""

import os
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

from schemas.base import Kinded, TaggedUnion, View, kind_of
from schemas.kind import (
    Evidence,
    Input,
    PolicyKind,
    PolicySettings,
    Problem,
    ReasonedDecision,
    Solution,
    Solve,
    Terms,
    Workload,
)

Member = TypeVar("Member", bound=Kinded)


def _installed() -> dict[str, PolicyKind]:
    """By kind, in the order of their names, so that generated documents do not depend on the installation.

    Only those of one distribution where `MILLRACE_POLICIES_OF` names it.
    """
    only = os.environ.get("MILLRACE_POLICIES_OF")
    kinds: dict[str, PolicyKind] = {}
    for point in sorted(entry_points(group=PolicyKind.GROUP), key=lambda point: point.name):
        if only and (point.dist is None or point.dist.name != only):
            continue
        kind = point.load()
        if not isinstance(kind, PolicyKind) or kind_of(kind.settings) != point.name:
            raise ImportError(
                f"entry point {point.name} = {point.value} of {PolicyKind.GROUP} is no policy of that kind"
            )
        if point.name in kinds:
            raise ImportError(f"two installed policies are of kind {point.name}")
        kinds[point.name] = kind
    if not kinds:
        raise ImportError(
            f"there is no entry point in the group {PolicyKind.GROUP}: install Millrace, as an editable "
            "distribution where you work on it"
        )
    return kinds


KINDS: Mapping[str, PolicyKind] = _installed()


def _union(what: str, brought: Callable[[PolicyKind], Iterable[type[Member]]]) -> TaggedUnion:
    """The members that the policies bring; several may bring the same one."""
    members: dict[str, type[Member]] = {}
    for kind in KINDS.values():
        for member in brought(kind):
            if members.setdefault(kind_of(member), member) is not member:
                raise ImportError(f"two different {what} types are of kind {kind_of(member)}")
    return TaggedUnion(tuple(members.values()))


if TYPE_CHECKING:
    AnyPolicy: TypeAlias = PolicySettings
    AnyWorkload: TypeAlias = Workload
    AnyTerms: TypeAlias = Terms
    AnyQuotedTerms: TypeAlias = Terms
    AnyEvidence: TypeAlias = Evidence
    AnyProblem: TypeAlias = Problem
    AnySolution: TypeAlias = Solution
else:
    AnyPolicy = Annotated[PolicySettings, _union("policy", lambda kind: [kind.settings])]
    AnyWorkload = Annotated[Workload, _union("workload", lambda kind: kind.workloads)]
    AnyTerms = Annotated[Terms, _union("terms", lambda kind: kind.terms)]
    AnyQuotedTerms = Annotated[Terms, _union("terms", lambda kind: kind.quoted_terms)]
    AnyEvidence = Annotated[Evidence, _union("evidence", lambda kind: kind.evidence)]
    AnyProblem = Annotated[Problem, _union("problem", lambda kind: [one.problem for one in kind.solves])]
    AnySolution = Annotated[Solution, _union("solution", lambda kind: [one.solution for one in kind.solves])]


INPUTS: tuple[Input, ...] = tuple(dict.fromkeys(one for kind in KINDS.values() for one in kind.inputs))
POLICY_VIEWS: tuple[type[View], ...] = tuple(
    dict.fromkeys(one for kind in KINDS.values() for one in kind.outcomes if issubclass(one, View))
)
SOLVES: tuple[Solve, ...] = tuple(dict.fromkeys(one for kind in KINDS.values() for one in kind.solves))


def reasons(decision: ReasonedDecision) -> tuple[str, ...]:
    """What the policies add to the reasons of a general decision, each once."""
    return tuple(
        dict.fromkeys(reason for kind in KINDS.values() for reason in kind.reasons.get(decision, ()))
    )
