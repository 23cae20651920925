"""Faults of a service: its requests, its model, its ranks. The node lives, and serves the next."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from schemas.fleet import RunFailed, RunFinished
from tests.support.moe_nodes import MODEL, Fleet, assigned, service


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "none"}, "none: no Hugging Face model directory (config.json is missing)"),
        ({"model": "dense"}, "dense: no model with gated experts, since it has no moe.json"),
        ({"requests": {"dataset": {"path": "none.jsonl", "samples": 1}}}, "'none.jsonl': no such dataset"),
        (
            {"requests": {"dataset": {"path": "bad.jsonl", "samples": 1}}},
            'bad.jsonl, line 2: expected {"prompt": ...} or {"text": ...}; the fields are: label',
        ),
        ({"sequence_length": 4_096}, f"{MODEL}: takes 128 tokens, requests may have 4096"),
        (
            {"most_experts_per_device": 1},
            "4 experts do not fit on 2 devices with at most 1 each: take more devices, or allow more",
        ),
    ],
    ids=["no_model", "dense_model", "no_requests", "bad_requests", "too_long", "no_room"],
)
def test_a_service_that_cannot_be_fails_for_good(fleet: Fleet, fields: dict[str, Any], error: str) -> None:
    (fleet.settings.dataset_root / "bad.jsonl").write_text('{"text": "a"}\n{"label": 1}\n')
    fleet.assign("j", [("n1", 1), ("n2", 1)], service(**fields))
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed)
    assert [failure.permanent for failure in failures] == [True, True]
    assert all(error in failure.error for failure in failures)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_lost_rank_fails_run_and_next_is_served(fleet: Fleet, number: int) -> None:
    fleet.add("n1", peer_timeout_s=2.0)
    fleet.add("n2", peer_timeout_s=2.0)
    fleet.assign("j", [("n1", 1), ("n2", 1)], service(requests={"most": 10**6}))
    fleet.until(fleet.has_begun("j", "n1", "n2"))
    began_s = time.monotonic()
    os.kill(fleet.pids("n2")[0], number)
    fleet.until(lambda: [failure for failure in fleet.reports(RunFailed) if failure.node == "n1"])
    assert time.monotonic() - began_s < 2.0 + 4.0
    (failure,) = (failure for failure in fleet.reports(RunFailed) if failure.node == "n1")
    assert not failure.permanent
    assert "another rank is gone, or has not come within 2 s" in failure.error
    fleet.release("j", "node_lost")
    fleet.until(fleet.is_over("j", "n1", "n2"))
    fleet.assign("k", [("n1", 1), ("n2", 1)], service())
    fleet.until(fleet.is_over("k", "n1", "n2"))
    assert [report.job_id for report in fleet.reports(RunFinished)] == ["k"]


def test_service_without_its_other_node_fails(fleet: Fleet) -> None:
    fleet.add("n1", join_timeout_s=0.5)
    fleet.assign("j", [("n1", 1), ("n2", 1)], service(), only=["n1"])
    fleet.until(fleet.is_over("j", "n1"))
    (failure,) = fleet.reports(RunFailed)
    assert not failure.permanent
    assert failure.error == "not all 2 ranks of generation 1 have joined in 0.5 s"


def test_ranks_with_other_requests_do_not_serve_together(fleet: Fleet, tmp_path: Any) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"text": "class value"}\n')
    fleet.add("n2", dataset_root=tmp_path)
    fleet.assign("j", [("n1", 1), ("n2", 1)], service())
    fleet.until(fleet.is_over("j", "n1", "n2"))
    failures = fleet.reports(RunFailed)
    assert [failure.error for failure in failures] == [
        "the dataset of ranks [1] differs from that of rank 0"
    ] * 2


def refused(fleet: Fleet) -> Iterator[tuple[str, str]]:
    runner = fleet.nodes["n1"].runner
    for members, ranks in (
        ([("n1", 1), ("n1", 1)], 2),
        ([("n2", 2)], 2),
        ([("n1", 3)], 3),
        ([("n1", 1)], 2),
    ):
        objection = runner.validate(assigned("n1", "j", members, service(ranks)))
        assert objection is not None
        yield objection.kind, objection.detail


def test_commands_that_no_cell_would_send_are_refused(fleet: Fleet) -> None:
    assert list(refused(fleet)) == [
        ("impossible", "a node is among the members twice"),
        ("impossible", "n1 is not among the members n2"),
        ("impossible", "ranks here need 3 GPUs, the node has 2"),
        ("impossible", "the members have 1 ranks, the job 2"),
    ]


def test_commands_of_ended_generation_are_skipped(fleet: Fleet) -> None:
    fleet.assign("j", [("n1", 1)], service(1, requests={"most": 10**6}), generation=2)
    old = assigned("n1", "j", [("n1", 1)], service(1), generation=2)
    objection = fleet.nodes["n1"].runner.validate(old)
    assert objection is not None
    assert (objection.kind, objection.detail) == ("out_of_date", "j is in generation 2")
