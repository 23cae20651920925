"""A policy's manifest, and the base classes of the record types that a policy defines.

A distribution registers a policy by an entry point in the group `millrace.policies`, named like its kind,
that refers to a `PolicyKind`. Every process loads the module with the manifest at its start, so it imports
only `schemas` and the policy's own types; parts that only some processes need are named by reference.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field

from schemas.base import Event, Kinded, OpenUnion, Outcome
from schemas.cells import PolicySettings as PolicySettings
from schemas.roles import Role

Reference = str
"""`module:attribute`, imported by the processes that need it."""

ReasonedDecision = Literal["job.admitted", "job.rejected", "job.refunded", "event.ignored"]
"""The general decisions that policies may give reasons of their own for. A rejection's reasons are also those
of a request for a quote that finds no plan."""


DEFAULT_ORDER_TIMEOUT_S = 1_800.0
OrderTimeoutSeconds = Annotated[
    float,
    # Left out where it is the default, so that settings written before it was added keep their bytes.
    Field(ge=1.0, le=31_536_000.0, exclude_if=lambda timeout_s: timeout_s == DEFAULT_ORDER_TIMEOUT_S),
]
"""Time without reports from its node after which a zone counts a run as failed. Make it
longer than executors take to begin a run, and than the time between two reports of its progress."""


class Workload(Kinded):
    """Work of a job."""

    @property
    def total_samples(self) -> int | None:
        """When so many samples are done the job is; None where that is not known in advance."""
        return None

    @property
    def ends_by_itself(self) -> bool:
        """Whether the job is over at some time, whoever does nothing; False for a service, which runs until
        it is stopped. A simulation waits only for jobs that end."""
        return True


class Terms(Kinded):
    """On what conditions a job is submitted, or a quote is asked for."""

    @property
    def latest_s(self) -> float | None:
        """By when the job is over, done or not; None where the terms do not say."""
        return None

    @property
    def offered_micros(self) -> int | None:
        """The most that the user would pay; None where the terms do not say."""
        return None


class Evidence(Kinded):
    """The numbers behind a decision about a job."""


class Problem(Kinded):
    """Problem posed to a solver. The log has only its digest and counts."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Sizes of the problem, by names that its policy chooses; shown in the log and its views."""
        return {}


class Solution(Kinded):
    """Result of a solver."""

    @property
    def is_empty(self) -> bool:
        """Whether the search ended with nothing found."""
        return False

    def shortened(self, excess_bytes: int) -> Self | None:  # noqa: ARG002
        """A part that holds by itself and is so many bytes shorter, for a solution that no event has room
        for; None where there is none."""
        return None


WORKLOADS, TERMS, QUOTED_TERMS = OpenUnion("workload"), OpenUnion("terms"), OpenUnion("terms")
EVIDENCE, PROBLEMS, SOLUTIONS = OpenUnion("evidence"), OpenUnion("problem"), OpenUnion("solution")
AnyWorkload: TypeAlias = Annotated[Workload, WORKLOADS]
AnyTerms: TypeAlias = Annotated[Terms, TERMS]
AnyQuotedTerms: TypeAlias = Annotated[Terms, QUOTED_TERMS]
AnyEvidence: TypeAlias = Annotated[Evidence, EVIDENCE]
AnyProblem: TypeAlias = Annotated[Problem, PROBLEMS]
AnySolution: TypeAlias = Annotated[Solution, SOLUTIONS]


@dataclass(frozen=True)
class InputTopic:
    """A topic that producers of one role write and intake reads."""

    name: str
    """Without the prefix."""
    summary: str
    writers: Role
    """Who writes it, and may read why a record was refused."""
    writer_field: str | None = None
    """The field of its events that names whom one speaks for; None where that is the cell's operator."""


@dataclass(frozen=True)
class Input:
    """An event that a policy takes besides those of the cell."""

    event: type[Event]
    topic: InputTopic
    """Policies may share one."""


@dataclass(frozen=True)
class Solve:
    """A kind of problem that solvers answer for a policy."""

    problem: type[Problem]
    solution: type[Solution]
    function: Reference
    """`(problem, time_limit_s) -> solution`; None where nothing was found. Solver processes import it."""
    smallest: Reference
    """`() -> problem`: one that takes every step of a solve, to load and compile what it needs."""


@dataclass(frozen=True)
class PolicyKind:
    """All that the pipeline knows of a policy."""

    settings: type[PolicySettings]
    zone: Reference
    """`(ZoneContext) -> ZonePolicy`."""
    workloads: tuple[type[Workload], ...]
    """Workloads that jobs of its zones may have."""
    terms: tuple[type[Terms], ...]
    """On what terms jobs may be submitted."""
    quoted_terms: tuple[type[Terms], ...] = ()
    """On what terms it answers requests for a quote; none where it quotes nothing."""
    evidence: tuple[type[Evidence], ...] = ()
    inputs: tuple[Input, ...] = ()
    outcomes: tuple[type[Outcome], ...] = ()
    """Decisions of its own, commands included."""
    reasons: Mapping[ReasonedDecision, tuple[str, ...]] = field(default_factory=dict)
    solves: tuple[Solve, ...] = ()
    virtual_runners: Mapping[str, Reference] = field(default_factory=dict)
    """The simulated runners of its commands, by the runners' names: see `VirtualRunner`."""
    drawn: Reference | None = None
    """`(Drawing) -> list[TimedEvent[Event]]`: draws jobs for simulations; None where jobs must be given."""
    measures: Reference | None = None
    """`(CellConfigured, zone: str) -> ZoneMeasures`: what simulations tell of a zone besides the summary."""
    view: Reference | None = None
    """`() -> PolicyView`: how people see it; in general terms where there is none."""
    warm_up: Reference | None = None
    """`() -> Iterable[Event]`: what a worker folds to have compiled code at hand."""
    awaits_kernels: Reference | None = None
    """`(Zone) -> bool`: whether a zone is too large to be decided interpreted until then; None where no zone
    is."""

    GROUP: ClassVar = "millrace.policies"
    """Group of the entry points."""
