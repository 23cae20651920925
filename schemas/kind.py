"""A policy's manifest, and the base classes of the record types that a policy defines.

A distribution registers a policy by an entry point in the group `millrace.policies`, named like its kind,
that refers to a `PolicyKind`. Every process loads the module with the manifest at its start, so it imports
only `schemas` and the policy's own types; parts that only some processes need are given as references.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import Field

from schemas.base import Event, Kinded, OpenUnion, Outcome
from schemas.cells import PolicySettings as PolicySettings

Role = Literal[
    "users", "vendors", "profilers", "inference", "operators", "nodes", "worker", "solver", "auditor"
]
"""Role of a client of Kafka."""
ROLES: tuple[Role, ...] = get_args(Role)

Reference = str
"""`module:attribute`, imported by the processes that need it."""

ReasonedDecision = Literal["job.admitted", "job.rejected", "job.refunded", "event.ignored"]
"""General decisions for which policies may have their own reasons. Those of a rejection are also those of a
quote without a plan."""


DEFAULT_ORDER_TIMEOUT_S = 1_800.0
OrderTimeoutSeconds = Annotated[
    float,
    # Omitted if it is the default, so that settings written before it was added keep their bytes.
    Field(ge=1.0, le=31_536_000.0, exclude_if=lambda timeout_s: timeout_s == DEFAULT_ORDER_TIMEOUT_S),
]
"""Time without reports from its node after which a zone counts a run as failed. Make it longer than the start
of a run takes, and than the interval between reports of progress."""


class Workload(Kinded):
    """Work of a job."""

    @property
    def total_samples(self) -> int | None:
        """Number of samples after which the job is complete; None if unknown in advance."""
        return None

    @property
    def ends_by_itself(self) -> bool:
        """Whether the job ends without an action of its user; False for a service, which runs until it is
        stopped. A simulation waits only for jobs that end."""
        return True


class Terms(Kinded):
    """Conditions on which a job is submitted, or a quote requested."""

    @property
    def latest_s(self) -> float | None:
        """Time at which the job is over, complete or not; None if the terms have none."""
        return None

    @property
    def offered_micros(self) -> int | None:
        """The most that the user would pay; None if the terms have no bid."""
        return None


class Evidence(Kinded):
    """The numbers behind a decision about a job."""


class Problem(Kinded):
    """A problem for a solver. The log has only its digest and counts."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Sizes of the problem, by names that its policy chooses, for the log and its views."""
        return {}


class Solution(Kinded):
    """Result of a solver."""

    @property
    def is_empty(self) -> bool:
        """Whether the search found no solution."""
        return False

    def shortened(self, excess_bytes: int) -> Self | None:  # noqa: ARG002
        """Return a valid part of a solution that is too large for an event, shorter by `excess_bytes`; None
        without such a part."""
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
    """Name without the prefix."""
    summary: str
    writers: Role
    """Role that writes it, and may read the reasons of refused records."""
    writer_field: str | None = None
    """Field of its events with their writer; None if the cell's operator writes them."""


@dataclass(frozen=True)
class Input:
    """An event of a policy besides those of the cell."""

    event: type[Event]
    topic: InputTopic
    """Input topic, which policies may share."""


@dataclass(frozen=True)
class Solve:
    """A kind of problem that solvers answer for a policy."""

    problem: type[Problem]
    solution: type[Solution]
    function: Reference
    """`(problem, time_limit_s) -> solution`, or None without a solution. Solver processes import it."""
    smallest: Reference
    """`() -> problem`: a problem that needs every step of a solve, to load and compile the code."""


@dataclass(frozen=True)
class PolicyKind:
    """The manifest of a policy, by which the pipeline uses it."""

    settings: type[PolicySettings]
    zone: Reference
    """`(ZoneContext) -> ZonePolicy`."""
    workloads: tuple[type[Workload], ...]
    """Types of workloads of its jobs."""
    terms: tuple[type[Terms], ...]
    """Types of terms on which jobs may be submitted."""
    quoted_terms: tuple[type[Terms], ...] = ()
    """Types of terms on which it quotes; empty without quotes."""
    evidence: tuple[type[Evidence], ...] = ()
    inputs: tuple[Input, ...] = ()
    outcomes: tuple[type[Outcome], ...] = ()
    """Types of its own decisions, commands included."""
    reasons: Mapping[ReasonedDecision, tuple[str, ...]] = field(default_factory=dict)
    solves: tuple[Solve, ...] = ()
    follows: tuple[str, ...] = ()
    """Kinds of policies whose zones may change to this one and keep their jobs."""
    warm_up: Reference | None = None
    """`() -> Iterable[Event]`: events that a worker folds to compile the policy's code."""
    awaits_kernels: Reference | None = None
    """`(Zone) -> bool`: whether a zone is too large for interpreted code before its kernels are compiled;
    None if no zone is."""
    tools: Reference | None = None
    """`PolicyTools` (`infra.tools`): its parts for displays, workloads and simulations. None for Millrace's
    own policies, whose parts that module lists."""

    GROUP: ClassVar = "millrace.policies"
    """Group of the entry points."""
