"""A zone gives the reasons of its own policy, and those of all policies."""

from dataclasses import replace

import pytest

from schemas.base import Outcome
from schemas.decisions import EventFaulted, EventIgnored, JobRefunded
from schemas.installed import KINDS
from streams.cell.outcomes import Outcomes, ZoneOutcomes
from streams.cell.rules import RULES, RuleBook
from streams.cell.state_machine import Cell
from tests.support.cells import EPOCH_S, Bench, ask, bid, configuration, tick

JOB = {"job_id": "j", "user": "u", "zone": "z"}
AMOUNTS = {"remaining_samples": 0, "refund_micros": 0, "retained_micros": 0}


def ignored(reason: str) -> EventIgnored:
    return EventIgnored(reason=reason)


def refunded(reason: str) -> JobRefunded:
    return JobRefunded(**JOB, reason=reason, **AMOUNTS)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("elastic", ignored("job_ending")),
        ("elastic", ignored("stale_report")),
        ("experts", refunded("time_over")),
        ("auction", refunded("node_lost")),
    ],
)
def test_an_own_or_general_reason_is_added(kind: str, outcome: Outcome) -> None:
    outcomes = Outcomes()
    ZoneOutcomes(outcomes, KINDS[kind]).add(outcome)
    assert outcomes.drain() == [outcome]


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("auction", ignored("job_ending")), ("elastic", refunded("time_over"))],
)
def test_a_foreign_reason_is_an_error(kind: str, outcome: Outcome) -> None:
    outcomes = Outcomes()
    with pytest.raises(ValueError, match="is a reason of other policies"):
        ZoneOutcomes(outcomes, KINDS[kind]).extend([outcome])
    assert outcomes.drain() == []


@pytest.fixture
def without_reasons() -> Bench:
    """A cell with a policy that has registered no reasons."""
    pdftsp = replace(KINDS["pdftsp"], reasons={})
    rules = replace(RULES.newest, policies={**RULES.newest.policies, "pdftsp": pdftsp})
    bench = Bench(Cell("c", RuleBook((rules,))))
    bench.send(configuration(), tick(1))
    return bench


def test_a_foreign_reason_faults_a_zone(without_reasons: Bench) -> None:
    (fault,) = without_reasons.send(bid(units=0.1))
    assert (type(fault), fault.exception, fault.zone) == (EventFaulted, "ValueError", "z")


def test_a_foreign_reason_faults_a_quote(without_reasons: Bench) -> None:
    (fault,) = without_reasons.send(ask(deadline_s=EPOCH_S + 20.0))
    assert (type(fault), fault.exception) == (EventFaulted, "ValueError")
