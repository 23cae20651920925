"""The decisions of a cell under any policy; a policy may add evidence, and decisions of its own."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, StringConstraints

from schemas.base import Amount, Identifier, OpenWords, Outcome, Samples
from schemas.facts import Facts
from schemas.kind import AnyEvidence, ReasonedDecision

JobStateName = Literal["waiting", "admitted", "rejected", "withdrawn", "refunded", "completed"]
"""States of a job: a submitted job waits for its decision, possibly for a while; an admitted one ends in one
of the last three states."""

REASONS: Mapping[ReasonedDecision, OpenWords] = {
    "job.admitted": OpenWords(),
    "job.rejected": OpenWords(
        "cell_full",
        "cell_not_configured",
        "duplicate_job",
        "terms_not_supported",
        "unknown_zone",
        "workload_not_supported",
    ),
    "job.refunded": OpenWords("node_lost", "run_failed"),
    "event.ignored": OpenWords(
        "breaks_a_promise",
        "cell_already_configured",
        "cell_not_configured",
        "clock_went_back",
        "command_refused",
        "due_too_soon",
        "duplicate_event",
        "duplicate_reclaim",
        "invalid_configuration",
        "job_already_started",
        "more_than_on_loan",
        "no_time_yet",
        "event_not_supported",
        "node_already_lent",
        "node_already_registered",
        "node_leaving",
        "node_not_lent",
        "not_the_owner",
        "nothing_changes",
        "profile_refused",
        "runner_missing",
        "unknown_job",
        "unknown_node",
        "unknown_solve",
        "unknown_zone",
        "wrong_base_model",
        "stale_adoption",
        "stale_load",
        "stale_report",
        "zone_does_not_lend",
    ),
}
"""Reasons of the cell; policies add theirs."""
AdmissionReason: TypeAlias = Annotated[str, REASONS["job.admitted"]]
RejectionReason: TypeAlias = Annotated[str, REASONS["job.rejected"]]
RefundReason: TypeAlias = Annotated[str, REASONS["job.refunded"]]
IgnoredReason: TypeAlias = Annotated[str, REASONS["event.ignored"]]


class JobOutcome(Outcome):
    """A decision that puts a job into a state."""

    STATE: ClassVar[JobStateName]

    job_id: Identifier
    user: Identifier
    zone: Identifier
    reason: str
    """Reason, from a closed list that each decision narrows."""
    evidence: AnyEvidence | None = None
    """Numbers behind the decision. None if the cell decided without a policy."""

    @property
    def is_of_another_job(self) -> bool:
        """Whether the id belongs to another job, whose state does not change."""
        return False

    @property
    def owed_micros(self) -> int | None:
        """Payment of the user in the job's present state, without refunds; None for a rejected job."""
        return None


class JobAdmitted(JobOutcome):
    """The zone admits the job."""

    TYPE: ClassVar = "millrace.job.admitted.v1"
    STATE: ClassVar = "admitted"

    reason: AdmissionReason
    payment_micros: Amount
    """Charge of its user; 0 under a policy that charges nothing."""

    @property
    def owed_micros(self) -> int:
        return self.payment_micros


class JobRejected(JobOutcome):
    """The zone rejects the job, for this reason."""

    TYPE: ClassVar = "millrace.job.rejected.v1"
    STATE: ClassVar = "rejected"

    reason: RejectionReason
    facts: Facts = Field(default_factory=dict)

    @property
    def is_of_another_job(self) -> bool:
        return self.reason == "duplicate_job"


class JobQuoted(Outcome):
    """The answer to a request for a quote."""

    TYPE: ClassVar = "millrace.job.quoted.v1"

    quote_id: Identifier
    zone: Identifier
    reason: Literal["plan_found"] | RejectionReason
    facts: Facts = Field(default_factory=dict)
    evidence: AnyEvidence | None = None


class JobRefunded(JobOutcome):
    """An admitted job cannot be finished. Its user gets a full refund or, if the task, its data or its
    declaration is at fault, the unspent part of the payment for operation.

    At fault are a run that fails for good (`run_failed` with an amount retained), a task that trains more
    slowly than was declared (`slower_than_declared`) or takes more memory (`memory_understated`), data of
    more samples than were declared, for which a vendor was to prepare them (`dataset_size_misstated`), and
    data that no vendor can prepare (`dataset_unfit`).
    """

    TYPE: ClassVar = "millrace.job.refunded.v1"
    STATE: ClassVar = "refunded"

    reason: RefundReason
    facts: Facts = Field(default_factory=dict)
    remaining_samples: Samples
    refund_micros: Amount
    retained_micros: Amount

    @property
    def owed_micros(self) -> int:
        return self.retained_micros


class JobWithdrawn(JobOutcome):
    """A job that has not started is withdrawn by its user, who gets the unspent part of the payment."""

    TYPE: ClassVar = "millrace.job.withdrawn.v1"
    STATE: ClassVar = "withdrawn"

    reason: Literal["user_request"]
    returned_micros: Amount
    retained_micros: Amount

    @property
    def owed_micros(self) -> int:
        return self.retained_micros


class JobCompleted(JobOutcome):
    """The job's work is done."""

    TYPE: ClassVar = "millrace.job.completed.v1"
    STATE: ClassVar = "completed"

    reason: Literal["work_done"]
    node: Identifier | None
    """Node of its end; None if it ended on several."""
    payment_micros: Amount
    """Payment of its user, as at admission."""
    samples_done: Samples
    loss: float | None = None
    """Final loss; None if no loss is measured."""
    accuracy: float | None = None
    """Best measured accuracy; None if none is measured."""
    target_accuracy: float | None = None
    """Accuracy at which it is complete; None without such a target."""
    adapter_path: str | None = None
    """Path of the adapter below the executors' output root; None without an adapter."""
    adapter_digest: str | None = None
    """Digest of the adapter, see `RunFinished`."""

    @property
    def owed_micros(self) -> int:
        return self.payment_micros


NodeStatus = Literal["up", "down", "cordoned", "leaving"]
"""Status of a node. `cordoned`: it keeps its plans and gets no new ones. `leaving`: its plans move to other
nodes, and it moves to another zone, or leaves the cell, when its runs are over. A node that is down has the
status `down`, whatever else applies."""


NodeStatusReason = Literal[
    "online",
    "offline",
    "silent",
    "awaited",
    "cordoned",
    "uncordoned",
    "lent",
    "registered",
    "returned",
    "retired",
]


class NodeStatusChanged(Outcome):
    """A node's new status. The decisions after it are about its runs."""

    TYPE: ClassVar = "millrace.node.status_changed.v1"

    zone: Identifier
    """Zone of the node."""
    node: Identifier
    status: NodeStatus
    reason: NodeStatusReason
    """Reason of the status. `awaited`: the cell waits for a report that the node is fit for this zone."""


class NodeMoved(Outcome):
    """A node is in another zone than before, or has joined or left the cell."""

    TYPE: ClassVar = "millrace.node.moved.v1"

    node: Identifier
    from_zone: Identifier | None
    """Zone before; None if the node joins the cell."""
    to_zone: Identifier | None
    """Zone after; None if the node leaves the cell."""
    reason: Literal["registered", "lent", "returned", "retired"]


class CellAccepted(Outcome):
    """The cell runs under this configuration."""

    TYPE: ClassVar = "millrace.cell.accepted.v1"

    reason: Literal["first_configuration"]
    zones: tuple[Identifier, ...]


class ZoneAccepted(Outcome):
    """A zone of a running cell now has an operator's new configuration."""

    TYPE: ClassVar = "millrace.zone.accepted.v1"

    zone: Identifier
    reason: Literal["added", "changed"]


class EventWithoutEffect(Outcome):
    """The answer to an event of the ledger that changed nothing."""

    reason: str
    """Reason, from a closed list that each decision narrows."""


class EventIgnored(EventWithoutEffect):
    """An event of the ledger changed nothing, for this reason."""

    TYPE: ClassVar = "millrace.event.ignored.v1"

    reason: IgnoredReason
    facts: Facts = Field(default_factory=dict)


FaultPlace = Literal[
    "apply",
    "broken_invariants",
    "broken_promise",
    "choose_returns",
    "configured",
    "describe",
    "dispatch",
    "encode",
    "fold",
    "follow_loans",
    "free_to_leave",
    "nodes_changed",
    "policy",
    "quote",
    "reconfigured",
    "restore",
    "run_changed",
    "run_refused",
    "settle",
    "solved",
    "state",
    "submitted",
    "wake",
    "withdrawn",
]
"""Part of a cell or of a zone's policy that raised. `fold` and `policy`: another part of them."""


class EventFaulted(EventWithoutEffect):
    """Folding an event raised an exception, which is an error of the program: the event changed nothing."""

    TYPE: ClassVar = "millrace.event.faulted.v1"

    reason: Literal["policy_raised", "cell_raised"]
    event_id: str
    event_type: str
    """The CloudEvents type."""
    exception: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{1,64}$")]
    """Name of the exception's built-in type, or of the one that its type extends."""
    zone: Identifier | None
    """Zone whose policy raised it; None if the cell did."""
    place: FaultPlace
    """The part of the policy or of the cell that raised it."""
    job_id: Identifier | None
    """The job that the event is about, if it names one."""
