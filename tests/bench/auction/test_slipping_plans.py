"""Where truthfulness ends: plans that slip (docs/auction/truthfulness.md, "not claimed")."""

from dataclasses import replace

from bench.workloads.paper import PaperSetting, draw
from infra.simulation.simulator import Simulation
from infra.workloads.timed import TimedEvent
from schemas.decisions import JobAdmitted, JobCompleted, JobRefunded
from tests.support.cells import with_bid

SMALL = PaperSetting(nodes=4, slots=30, arrivals_per_slot=4.0, work_scale=0.25, deadlines="loose")
SEED = 15
JOB = "task-00039"


def outcome(factor: int, pace: float) -> tuple[str, int]:
    """Return how the job ends whose user bids `factor` times its value, and the user's utility in micros."""
    cell, workload = draw(SMALL, SEED)
    value_micros = next(timed.event.terms.bid_micros for timed in workload.jobs if timed.event.job_id == JOB)
    raised = {JOB: factor * value_micros}
    jobs = [
        TimedEvent(
            timed.time_s,
            with_bid(timed.event, raised.get(timed.event.job_id, timed.event.terms.bid_micros)),
        )
        for timed in workload.jobs
    ]
    inputs = replace(workload, jobs=jobs).inputs(cell.epoch_s)
    utility_micros, end = 0, "rejected"
    for decision in Simulation(cell, inputs, pace).run().decisions:
        match decision.outcome:
            case JobAdmitted(job_id=job) as admitted if job == JOB:
                utility_micros, end = -admitted.payment_micros, "admitted"
            case JobRefunded(job_id=job) as refunded if job == JOB:
                utility_micros, end = utility_micros + refunded.refund_micros, "refunded"
            case JobCompleted(job_id=job) if job == JOB:
                utility_micros, end = utility_micros + value_micros, "completed"
    return end, utility_micros


def test_overbidding_may_help_when_plans_slip():
    assert outcome(1, pace=0.85) == ("refunded", 0)
    end, utility_micros = outcome(10, pace=0.85)
    assert (end, utility_micros > 0) == ("completed", True)


def test_when_plans_are_kept_it_does_not():
    assert outcome(1, pace=1.0) == outcome(10, pace=1.0)
