"""A service on nodes, by the cell's commands: what it reports, and how it ends."""

import json
import time

import torch
from transformers import AutoTokenizer

from executors.moe.block import moe_blocks
from executors.moe.conversion.storage import load
from executors.moe.gating import Gating
from executors.moe.serving.statistics import ServiceSummary
from schemas.experts.commands import LayerPlacement
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunStarted
from tests.support.moe_nodes import EXPERTS, LAYERS, MODEL, PROMPTS, Fleet, service
from tests.support.nodes import is_end


def summary_of(fleet: Fleet, job_id: str) -> ServiceSummary:
    path = fleet.root / "output" / "c" / "u" / job_id / "serving.json"
    return ServiceSummary.model_validate_json(path.read_bytes())


def test_service_on_two_nodes_reports_routing_and_finishes(fleet: Fleet) -> None:
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


def test_a_service_leaves_what_it_has_answered(fleet: Fleet) -> None:
    fleet.assign("j", [("n1", 1), ("n2", 1)], service(requests={"most": 32}))
    fleet.until(fleet.is_over("j", "n1", "n2"))
    path = fleet.root / "output" / "c" / "u" / "j" / "answers.jsonl"
    answers = [json.loads(line) for line in path.read_text().splitlines()]
    assert [answer["request"] for answer in answers] == list(range(32))
    module, _ = load(fleet.settings.model_root / MODEL)
    tokenizer = AutoTokenizer.from_pretrained(fleet.settings.model_root / MODEL)
    for block in moe_blocks(module).values():
        block.gating = Gating("top1")
    prompts = (fleet.settings.dataset_root / PROMPTS).read_text().splitlines()
    for answer in answers:
        prompt = json.loads(prompts[answer["request"] % len(prompts)])["prompt"]
        tokens = tokenizer.encode(prompt, add_special_tokens=False)[-24:]
        with torch.inference_mode():
            expected = int(module.eval()(input_ids=torch.tensor([tokens])).logits[0, -1].argmax())
        assert answer["answer"] == expected
        assert answer["text"] == tokenizer.decode([expected])


def test_a_commanded_placement_stands_from_one_batch_on(fleet: Fleet) -> None:
    work = service(requests={"most": 10**6})
    fleet.assign("j", [("n1", 1), ("n2", 1)], work)
    fleet.until(lambda: fleet.reports(ExpertsProfiled))
    everywhere = tuple(range(EXPERTS))
    fleet.place("j", 1, [LayerPlacement(layer=1, devices=(everywhere, (0,)))])
    fleet.until(lambda: any(report.revision == 1 for report in fleet.reports(ExpertsRouted)))
    # An older one changes nothing, nor does one that no cell would command.
    fleet.place("j", 1, [LayerPlacement(layer=0, devices=(everywhere, everywhere))])
    fleet.place("j", 7, [LayerPlacement(layer=LAYERS, devices=(everywhere, everywhere))])
    fleet.place("j", 9, [LayerPlacement(layer=0, devices=(everywhere, everywhere))])
    fleet.until(lambda: fleet.reports(ExpertsRouted)[-1].revision == 9)
    revisions = [report.revision for report in fleet.reports(ExpertsRouted)]
    assert revisions == sorted(revisions)
    assert set(revisions) <= {0, 1, 9}
    fleet.release("j")
    fleet.until(fleet.is_over("j", "n1", "n2"))
    assert not fleet.reports(RunFailed)
    assert summary_of(fleet, "j").revision == 9


def test_generation_begins_with_commanded_placement(fleet: Fleet) -> None:
    everywhere = tuple(range(EXPERTS))
    placement = [LayerPlacement(layer=layer, devices=(everywhere, everywhere)) for layer in range(LAYERS)]
    fleet.assign("j", [("n1", 1), ("n2", 1)], service(), placement=placement)
    fleet.until(fleet.is_over("j", "n1", "n2"))
    assert {report.revision for report in fleet.reports(ExpertsRouted)} == {1}
    assert summary_of(fleet, "j").revised == 0


def test_service_resumes_after_last_served_request(fleet: Fleet) -> None:
    fleet.assign("j", [("n1", 2)], service(), resume_samples=48)
    fleet.until(fleet.is_over("j", "n1"))
    (finished,) = fleet.reports(RunFinished)
    assert finished.samples_done == 60
    assert summary_of(fleet, "j").requests == 12


def test_requests_at_a_rate_wait_for_arrival(fleet: Fleet) -> None:
    work = service(requests={"most": 20, "rate_per_s": 50.0, "seed": 4}, profile_batches=0)
    fleet.assign("j", [("n1", 2)], work)
    fleet.until(fleet.is_over("j", "n1"))
    summary = summary_of(fleet, "j")
    assert summary.requests == 20
    assert summary.batch is not None
    assert summary.request is not None
    assert summary.request.p95_s >= summary.batch.median_s
    assert not fleet.reports(ExpertsProfiled)


def test_idle_service_ends_at_its_time(fleet: Fleet) -> None:
    # Ranks wait for requests much longer than they would for each other.
    fleet.add("n1", peer_timeout_s=1.0)
    until_s = time.time() + 4.0
    work = service(requests={"most": None, "rate_per_s": 1e-3, "until_s": until_s})
    fleet.assign("j", [("n1", 2)], work)
    fleet.until(fleet.is_over("j", "n1"))
    (finished,) = fleet.reports(RunFinished)
    assert finished.samples_done == 0
    assert until_s <= time.time()


def test_withdrawn_service_ends_while_loading(fleet: Fleet) -> None:
    fleet.assign("j", [("n1", 1), ("n2", 1)], service(requests={"most": 10**6}), only=["n1"])
    fleet.until(lambda: fleet.pids("n1"))
    fleet.release("j", "withdrawn")
    fleet.until(fleet.is_over("j", "n1"))
    assert not fleet.reports(RunFailed)


def test_newer_generation_replaces_former_one(fleet: Fleet) -> None:
    fleet.assign("j", [("n1", 2)], service(requests={"most": 10**6}))
    fleet.until(fleet.has_begun("j", "n1"))
    fleet.assign("j", [("n1", 2)], service(), generation=2, resume_samples=30)
    fleet.until(fleet.is_over("j", "n1", generation=2))
    assert fleet.is_over("j", "n1")()
    assert fleet.reports(RunFinished)[-1].run_id == "2/j"


def test_runs_of_former_process_are_reported_failed(fleet: Fleet) -> None:
    fleet.assign("j", [("n1", 2)], service(requests={"most": 10**6}))
    fleet.until(fleet.has_begun("j", "n1"))
    state = fleet.nodes["n1"].runner.state()
    again = fleet.add("n3")
    again.runner.restore(state)
    again.runner.advance()
    (failure,) = fleet.reports(RunFailed)
    assert (failure.node, failure.run_id, failure.permanent) == ("n3", "1/j", False)
