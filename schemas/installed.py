"""The policies of this process, and the tables that follow from them.

This module does not search for policies. Each process installs them once, at its start
(`streams.installation`), before it uses records of policies. Modules may be imported earlier, in any order: a
table is computed at its first use, and `install` completes the models with a field of an open union.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from schemas.base import Event, Kinded, OpenUnion, Outcome, Record, kind_of
from schemas.cells import POLICIES
from schemas.decisions import REASONS, EventIgnored, JobAdmitted, JobQuoted, JobRefunded, JobRejected
from schemas.errors import InstallationError
from schemas.kind import (
    EVIDENCE,
    PROBLEMS,
    QUOTED_TERMS,
    SOLUTIONS,
    TERMS,
    WORKLOADS,
    InputTopic,
    PolicyKind,
    Problem,
    ReasonedDecision,
    Solve,
)

_K = TypeVar("_K")
_V = TypeVar("_V")

_MEMBERS: Mapping[OpenUnion, Callable[[PolicyKind], Iterable[type[Kinded]]]] = {
    POLICIES: lambda kind: [kind.settings],
    WORKLOADS: lambda kind: kind.workloads,
    TERMS: lambda kind: kind.terms,
    QUOTED_TERMS: lambda kind: kind.quoted_terms,
    EVIDENCE: lambda kind: kind.evidence,
    PROBLEMS: lambda kind: [one.problem for one in kind.solves],
    SOLUTIONS: lambda kind: [one.solution for one in kind.solves],
}

_REASONED: Mapping[type[Outcome], ReasonedDecision] = {
    JobAdmitted: "job.admitted",
    JobRejected: "job.rejected",
    JobQuoted: "job.rejected",
    JobRefunded: "job.refunded",
    EventIgnored: "event.ignored",
}

_installed: dict[str, PolicyKind] = {}


def install(policies: Iterable[PolicyKind]) -> None:
    """Install the policies of this process; a repetition with equal policies changes nothing.

    Raises:
        InstallationError: no policy is given; two policies, or two types of a union, have one kind; or others
            are installed.
    """
    kinds: dict[str, PolicyKind] = {}
    # In the order of their names, so that generated documents do not depend on the installation.
    for policy in sorted(policies, key=lambda policy: kind_of(policy.settings)):
        kind = kind_of(policy.settings)
        if kind in kinds:
            raise InstallationError(f"two policies are of kind {kind}: uninstall one of their distributions")
        kinds[kind] = policy
    if not kinds:
        raise InstallationError("no policy is given to install")
    if _installed:
        if _installed != kinds:
            raise InstallationError(
                f"policies {', '.join(_installed)} are installed already, and cannot be replaced by "
                f"{', '.join(kinds)} in the same process"
            )
        return
    members = {union: _members(union, kinds.values()) for union in _MEMBERS}
    _installed.update(kinds)
    for union, types in members.items():
        union.close(types)
    for decision, reasons in REASONS.items():
        reasons.close(one for kind in kinds.values() for one in kind.reasons.get(decision, ()))
    _complete(Record)


def _members(union: OpenUnion, policies: Iterable[PolicyKind]) -> tuple[type[Kinded], ...]:
    """Return the types of policies for a union; several policies may share one."""
    members: dict[str, type[Kinded]] = {}
    for policy in policies:
        for member in _MEMBERS[union](policy):
            if members.setdefault(kind_of(member), member) is not member:
                raise InstallationError(f"two {union.name} types are of kind {kind_of(member)}")
    return tuple(members.values())


def check_reason(outcome: Outcome, policy: PolicyKind) -> None:
    """Check that a decision of a policy's zone has no reason that only other policies have registered.

    Raises:
        ValueError: it has.
    """
    decision = _REASONED.get(type(outcome))
    if decision is None:
        return
    reason, reasons = vars(outcome)["reason"], REASONS[decision]
    if reason in reasons.general or reason in policy.reasons.get(decision, ()):
        return
    if reason in reasons.values:
        raise ValueError(
            f"{outcome.TYPE}: {reason} is a reason of other policies than {kind_of(policy.settings)}"
        )


def _complete(model: type[Record]) -> None:
    """Build the validators that depend on the installation now, since threads may race later."""
    if not model.__pydantic_complete__:
        model.model_rebuild()
    for below in model.__subclasses__():
        _complete(below)


def _kinds() -> Mapping[str, PolicyKind]:
    if not _installed:
        raise InstallationError(
            "no policies are installed in this process: call `streams.installation.install_policies` at its "
            "start, or `schemas.installed.install` with the policies"
        )
    return _installed


class InstalledTable(Mapping[_K, _V]):
    """A mapping that is computed from the installed policies at its first use.

    Raises:
        InstallationError: the mapping is used before the installation.
    """

    def __init__(self, compute: Callable[[], Mapping[_K, _V]]) -> None:
        self._compute = compute
        self._rows: Mapping[_K, _V] | None = None

    def __getitem__(self, key: _K) -> _V:
        return (self._rows or self._load())[key]

    def __iter__(self) -> Iterator[_K]:
        return iter(self._rows or self._load())

    def __len__(self) -> int:
        return len(self._rows or self._load())

    def _load(self) -> Mapping[_K, _V]:
        self._rows = self._compute()
        return self._rows


KINDS = InstalledTable(_kinds)
"""The installed policies, by kind."""
POLICY_EVENTS: Mapping[type[Event], InputTopic] = InstalledTable(
    lambda: {one.event: one.topic for kind in KINDS.values() for one in kind.inputs}
)
"""Events of policies besides those of every cell, each with its input topic."""
SOLVES: Mapping[type[Problem], Solve] = InstalledTable(
    lambda: {one.problem: one for kind in KINDS.values() for one in kind.solves}
)
"""Solvers of the policies, by the type of their problems."""
