"""Events of the `jobs` topic: submissions, withdrawals and requests for a quote."""

from typing import ClassVar

from schemas.base import Event, Identifier
from schemas.kind import AnyQuotedTerms, AnyTerms, AnyWorkload


class JobSubmitted(Event):
    """A user submits a workload to a zone."""

    TYPE: ClassVar = "millrace.job.submitted.v1"

    job_id: Identifier
    user: Identifier
    zone: Identifier
    workload: AnyWorkload
    terms: AnyTerms


class JobWithdrawalRequested(Event):
    """A user withdraws a job; under the auction only before it starts."""

    TYPE: ClassVar = "millrace.job.withdrawal_requested.v1"

    job_id: Identifier
    user: Identifier


class JobQuoteRequested(Event):
    """A user requests a quote for a workload. The answer uses the same state as for a job, and changes
    nothing."""

    TYPE: ClassVar = "millrace.job.quote_requested.v1"

    quote_id: Identifier
    user: Identifier
    """User of the request. Requests of one user are answered in turn. The answer depends on the user only
    where the user's share of waiting bids is full."""
    zone: Identifier
    workload: AnyWorkload
    terms: AnyQuotedTerms
