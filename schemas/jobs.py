"""Events of the `jobs` topic: submissions, withdrawals and requests for a quote."""

from typing import ClassVar

from schemas.base import Event, Identifier
from schemas.kind import AnyQuotedTerms, AnyTerms, AnyWorkload


class JobSubmitted(Event):
    """A user asks a zone to run a workload."""

    TYPE: ClassVar = "millrace.job.submitted.v1"

    job_id: Identifier
    user: Identifier
    zone: Identifier
    workload: AnyWorkload
    terms: AnyTerms


class JobWithdrawalRequested(Event):
    """A user withdraws a job that has not started."""

    TYPE: ClassVar = "millrace.job.withdrawal_requested.v1"

    job_id: Identifier
    user: Identifier


class JobQuoteRequested(Event):
    """A user asks what a workload would cost now. The answer uses the same state as a job's, and changes
    nothing.
    """

    TYPE: ClassVar = "millrace.job.quote_requested.v1"

    quote_id: Identifier
    user: Identifier
    """Who asks. The answer does not depend on it; requests of one user wait for each other, not for
    others'."""
    zone: Identifier
    workload: AnyWorkload
    terms: AnyQuotedTerms
