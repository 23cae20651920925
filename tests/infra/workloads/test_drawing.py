"""Jobs drawn for the zones of a cell, by the policies that they are under."""

from pathlib import Path

import pytest

from infra.tools import PolicyTools
from infra.workloads import drawing
from infra.workloads.drawing import draw_jobs
from infra.workloads.timed import WorkloadError
from infra.workloads.trace import TraceError
from schemas.auction.bids import BidTerms
from schemas.cells import CellConfigured, ThroughputRow, Zone
from schemas.elastic.workload import ElasticWorkload
from schemas.jobs import JobSubmitted
from tests.infra.simulation.elastic.lending import lending_cell
from tests.support.cells import configuration, zone
from tests.support.elastic import ZONE, elastic_cell, elastic_zone
from tests.support.loans import lender

ROWS = (
    ThroughputRow(
        gpu_type="fast", rank=8, batch_size=4, sequence_length=64, samples_per_s=5.0, memory_gib=2.0
    ),
)
AUCTION = configuration(zones=(zone(throughput=ROWS, horizon_slots=12),))
ELASTIC = elastic_cell(12)
DAY_S = 86_400.0
TRACE = Path(__file__).parents[3] / "../shared/traces/jobs_philly.csv.gz"


def drawn(cell: CellConfigured, **options) -> list[JobSubmitted]:
    return [timed.event for timed in draw_jobs(cell, 1, **options) if isinstance(timed.event, JobSubmitted)]


def test_an_auction_gets_bids():
    jobs = drawn(AUCTION, jobs=20, span_s=100.0)
    assert len(jobs) == 20
    assert all(isinstance(job.terms, BidTerms) for job in jobs)
    assert len(drawn(AUCTION)) == 200


def test_elastic_zone_gets_jobs_by_server_size():
    jobs = draw_jobs(ELASTIC, 1)
    assert {type(timed.event.workload) for timed in jobs} == {ElasticWorkload}
    assert 0 <= jobs[0].time_s <= jobs[-1].time_s < DAY_S
    assert max(job.workload.gpus_per_worker for job in drawn(ELASTIC)) <= 4
    twice = drawn(elastic_cell(24))
    assert len(twice) == pytest.approx(2 * len(jobs), rel=0.02)
    assert len(drawn(ELASTIC, span_s=2 * DAY_S)) == pytest.approx(2 * len(jobs), rel=0.02)
    assert len(drawn(ELASTIC, jobs=7)) == 7


def test_a_seed_draws_the_same_again():
    assert draw_jobs(ELASTIC, 3) == draw_jobs(ELASTIC, 3)
    assert draw_jobs(ELASTIC, 3) != draw_jobs(ELASTIC, 4)


def test_the_scenario_is_that_of_the_policy():
    ideal = drawn(elastic_cell(12, scenario="ideal"))
    basic = drawn(ELASTIC)
    assert all(job.workload.heterogeneous for job in ideal)
    assert not any(job.workload.heterogeneous for job in basic)


def test_options_are_those_of_the_policy():
    jobs = drawn(ELASTIC, options={"checkpoint_share": "1", "elastic_share": "1", "scaling": "lossy"})
    assert all(job.workload.keeps_checkpoints and job.workload.speedup for job in jobs)
    short = drawn(AUCTION, options={"median_work_slots": "0.1"})
    usual = drawn(AUCTION)
    assert sum(job.workload.work_samples for job in short) < sum(job.workload.work_samples for job in usual)


def test_zones_that_take_no_jobs_are_passed_over():
    assert {job.zone for job in drawn(lending_cell(12, 14))} == {ZONE}
    both = configuration(zones=(zone(throughput=ROWS, horizon_slots=12), lender(lending=None)))
    assert {job.zone for job in drawn(both, jobs=10)} == {"z"}
    assert drawn(both, jobs=10) == drawn(AUCTION, jobs=10)


def test_elastic_zones_share_jobs_by_gpus():
    small = elastic_zone(2, id="y")
    small = small.model_copy(
        update={"nodes": tuple(node.model_copy(update={"id": f"y-{node.id}"}) for node in small.nodes)}
    )
    cell = ELASTIC.model_copy(update={"zones": (*ELASTIC.zones, small)})
    jobs = drawn(cell, jobs=70)
    assert [sum(job.zone == name for job in jobs) for name in ("z", "y")] == [60, 10]
    assert len({job.job_id for job in jobs}) == 70
    assert {job.zone for job in drawn(cell, jobs=1)} == {"y"}


def test_zones_without_joint_drawing_are_refused():
    elastic = elastic_zone(id="e").model_dump_json().replace('"flat"', '"t"')
    both = configuration(zones=(zone(throughput=ROWS), Zone.model_validate_json(elastic)))
    with pytest.raises(WorkloadError, match="policies pdftsp, elastic, whose jobs are not drawn together"):
        draw_jobs(both, 1)


def test_a_cell_that_takes_no_jobs_is_refused():
    with pytest.raises(WorkloadError, match="no zone of cell c takes jobs"):
        draw_jobs(configuration(zones=(lender(lending=None),)), 1)


def test_a_policy_that_draws_no_jobs_is_named(monkeypatch):
    monkeypatch.setattr(drawing, "tools_of", lambda _policy: PolicyTools())
    with pytest.raises(WorkloadError, match="under policy elastic, for which no jobs are drawn: give"):
        draw_jobs(ELASTIC, 1)


BAD_OPTIONS = {
    "unknown": ({"median_work_slots": "3"}, "its options are elastic_share"),
    "out of range": ({"elastic_share": "2"}, "elastic_share"),
    "not a number": ({"load": "NaN"}, "load"),
}


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_invalid_option_is_named(options, message):
    with pytest.raises(WorkloadError, match=message):
        draw_jobs(ELASTIC, 1, options=options)


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    (tmp_path / "trace.csv").write_text("a,b\n")
    with pytest.raises(TraceError, match="row 1"):
        draw_jobs(ELASTIC, 1, trace=tmp_path / "trace.csv")


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    """A job of four GPUs for an hour, every quarter of an hour for four days."""
    rows = [f"j{n},u,{900 * n},3600,4,,,m" for n in range(4 * 96)]
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text("\n".join(["job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model", *rows]))
    return path


def test_elastic_zone_takes_trace_jobs_by_load(trace):
    jobs = drawn(elastic_cell(4), trace=trace, options={"load": "0.5"})
    assert len(jobs) == pytest.approx(0.5 * 16 * 24 / 4, abs=1)
    assert len(drawn(elastic_cell(4), trace=trace, options={"as_recorded": "true"})) == 4 * 96


def test_job_count_of_trace_is_refused_for_elastic(trace):
    with pytest.raises(WorkloadError, match="give the load in place of it"):
        draw_jobs(elastic_cell(4), 1, trace=trace, jobs=3)


def test_a_trace_with_too_little_work_is_named(trace):
    with pytest.raises(WorkloadError, match=r"trace.csv: the trace has 1536 GPU hours"):
        draw_jobs(elastic_cell(400), 1, trace=trace)


@pytest.mark.skipif(not TRACE.is_file(), reason=f"the trace {TRACE} is not there")
def test_real_trace_loads_cluster_for_day():
    jobs = drawn(ELASTIC, trace=TRACE)
    asked_gpu_s = sum(job.workload.work_samples / 300.0 for job in jobs)
    assert asked_gpu_s / (12 * 4 * DAY_S) == pytest.approx(0.78, rel=0.3)
