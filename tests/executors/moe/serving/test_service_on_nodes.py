"""A service on nodes, by the cell's commands: what it reports, and how it ends."""

from executors.moe.serving.statistics import ServiceSummary
from schemas.experts.commands import LayerPlacement
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from tests.support.moe_nodes import EXPERTS, LAYERS, Fleet, is_end, service


def summary_of(fleet: Fleet, job_id: str) -> ServiceSummary:
    path = fleet.root / "output" / "c" / "u" / job_id / "serving.json"
    return ServiceSummary.model_validate_json(path.read_bytes())


def test_a_service_on_two_nodes_tells_what_it_has_routed_and_finishes(fleet: Fleet) -> None:
    fleet.assign("j", [("n1", 1), ("n2", 1)], service(), report_interval_s=1e-6)
    fleet.until(fleet.is_over("j", "n1", "n2"))
    assert [(report.node, report.samples_done) for report in fleet.reports(RunStarted)] == [
        ("n1", 0),
        ("n2", 0),
    ]
    (finished,) = fleet.reports(RunFinished)
    assert (finished.node, finished.samples_done) == ("n1", 60)
    ends = [report for report in fleet.reports(RunProgressed) if is_end(report)]
    assert [report.node for report in ends] == ["n2"]
    (profiled,) = fleet.reports(ExpertsProfiled)
    routed = fleet.reports(ExpertsRouted)
    assert profiled.samples_done == 24
    assert profiled.accuracy is not None
    assert sum(report.batches for report in routed) == 6
    for report in (profiled, *routed):
        assert len(report.layers) == LAYERS
        assert {len(layer.tokens) for layer in report.layers} == {EXPERTS}
    # Each layer routes the same tokens, once each under top-1 gating.
    for report in (profiled, *routed):
        assert len({sum(layer.tokens) for layer in report.layers}) == 1
        assert {layer.doubles for layer in report.layers} == {0}
    summary = summary_of(fleet, "j")
    assert (summary.requests, summary.batches, summary.request) == (60, 10, None)
    assert summary.batch is not None
    assert 0 < summary.batch.median_s <= summary.batch.p95_s
