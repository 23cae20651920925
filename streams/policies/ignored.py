"""Decisions that ignore an event, for several policies."""

from schemas.decisions import EventIgnored
from schemas.facts import Facts
from schemas.fleet import RunReport
from schemas.solves import SolveFinished


def no_such_run(report: RunReport) -> EventIgnored:
    """Ignore a report about a run that its job does not have on that node."""
    facts: Facts = {"job_id": report.job_id, "run_id": report.run_id, "node": report.node}
    return EventIgnored(reason="stale_report", facts=facts)


def unknown_solve(answer: SolveFinished) -> EventIgnored:
    """Ignore an answer to a request that the zone has not made, or does not wait for any more."""
    return EventIgnored(reason="unknown_solve", facts={"zone": answer.zone, "request_id": answer.request_id})


def job_ending(job_id: str) -> EventIgnored:
    """Ignore the withdrawal of a job that is ending already."""
    return EventIgnored(reason="job_ending", facts={"job_id": job_id})
