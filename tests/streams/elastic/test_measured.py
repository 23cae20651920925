"""The speed that a job's workers reach corrects what the zone expects of the job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import Outcome
from schemas.cells import CellConfigured, Node
from schemas.elastic.commands import WorkersAssigned
from schemas.fleet import RunProgressed
from schemas.profiles import MeasuredSteps
from streams.policies.elastic.elastic_job import LEAST_PACE, MOST_PACE
from tests.support.elastic import (
    INTERVAL_S,
    ElasticBench,
    elastic_cell,
    progressed,
    started,
    submit,
    tick,
)


def assigned(outcomes: list[Outcome]) -> WorkersAssigned:
    """The order to the leader."""
    return next(o for o in outcomes if isinstance(o, WorkersAssigned))


def reached(command: WorkersAssigned, samples_per_s: float, samples_done: int = 10) -> RunProgressed:
    measured = MeasuredSteps(
        micro_batch_size=8,
        step_s=64 / samples_per_s,
        tokens_per_sample=40.0,
        steps=10,
        precision="float32",
        gpus=sum(member.workers for member in command.members),
        samples_per_step=64,
    )
    return progressed(command, samples_done).model_copy(update={"measured": measured})


def running(bench: ElasticBench, **fields: object) -> WorkersAssigned:
    """A job that runs alone on all workers that it may have."""
    order = assigned(bench.send(submit("j", 6_000.0, (1, 4), **fields), tick(INTERVAL_S)))
    bench.send(started(order))
    return order


def after_preemption(bench: ElasticBench, order: WorkersAssigned) -> WorkersAssigned:
    """The next order, after a run that ends for no fault of the job."""
    ended = progressed(order, 20, complete=True)
    return assigned(bench.send(ended, tick(3 * INTERVAL_S), tick(4 * INTERVAL_S)))


@pytest.fixture
def bench() -> ElasticBench:
    bench = ElasticBench()
    bench.send(elastic_cell(servers=1), tick(0.0))
    return bench


def test_measured_speed_replaces_declared_one(bench: ElasticBench) -> None:
    order = running(bench)
    assert order.expected_samples_per_s == 4.0
    bench.send(*[reached(order, 1.0, done) for done in range(10, 20)])
    again = after_preemption(bench, order)
    assert again.expected_samples_per_s == pytest.approx(1.0, rel=0.01)
    described = bench.zone.describe()["jobs"]["j"]
    assert described["samples_per_s"] == pytest.approx(0.25, rel=0.01)
    assert described["speed_from"] == "measured"


def test_job_without_measured_speed_is_as_declared(bench: ElasticBench) -> None:
    order = running(bench)
    bench.send(progressed(order, 10))
    assert after_preemption(bench, order).expected_samples_per_s == 4.0


@given(st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=20))
def test_false_speeds_stay_within_bounds(speeds: list[float]) -> None:
    bench = ElasticBench()
    bench.send(elastic_cell(servers=1), tick(0.0))
    order = running(bench)
    bench.send(submit("other", 600.0, (1, 1), user="eve"))
    bench.send(*[reached(order, speed, done) for done, speed in enumerate(speeds, start=10)])
    jobs = bench.zone.describe()["jobs"]
    assert LEAST_PACE <= jobs["j"]["pace"] <= MOST_PACE
    assert jobs["other"]["pace"] == 1.0


def mixed_cell() -> CellConfigured:
    """A server of four V100 and one of four T4, both the zone's own."""
    cell = elastic_cell(servers=1, scenario="ideal")
    (zone,) = cell.zones
    slow = Node(id="s1", gpu_type="T4", tariff="flat")
    return cell.model_copy(update={"zones": (zone.model_copy(update={"nodes": (*zone.nodes, slow)}),)})


def mixed(bench: ElasticBench) -> WorkersAssigned:
    """A running job with workers on all V100, its base demand, and on T4."""
    bench.send(mixed_cell(), tick(0.0))
    order = assigned(bench.send(submit("j", 60_000.0, (4, 5), heterogeneous=True), tick(INTERVAL_S)))
    if len(order.members) == 1:
        bench.send(started(order))
        order = assigned(bench.send(reached(order, 4.0), tick(2 * INTERVAL_S)))
    assert {member.node for member in order.members} == {"s0", "s1"}
    bench.send(*[started(order.model_copy(update={"node": node})) for node in ("s0", "s1")])
    return order


def test_unmeasured_gain_of_mixed_job_is_not_kept() -> None:
    bench = ElasticBench()
    order = mixed(bench)
    assert order.expected_samples_per_s == 5.0
    bench.send(*[reached(order, 2.0, done) for done in range(20, 30)])
    job = bench.zone.describe()["jobs"]["j"]
    assert job["spanning_speed"] == pytest.approx(0.4, rel=0.01)
    assert job["pace"] == 1.0


def test_workers_that_do_not_help_are_given_back() -> None:
    bench = ElasticBench()
    order = mixed(bench)
    bench.send(*[reached(order, 3.96, done) for done in range(20, 40)])
    alone = assigned(bench.send(tick(3 * INTERVAL_S), tick(4 * INTERVAL_S)))
    assert {member.node: member.workers for member in alone.members} == {"s0": 4}
    assert alone.expected_samples_per_s == 4.0
    bench.send(started(alone), *[reached(alone, 4.0, done) for done in range(40, 60)])
    later = bench.send(*[tick(number * INTERVAL_S) for number in range(5, 20)])
    assert not [outcome for outcome in later if isinstance(outcome, WorkersAssigned)]
