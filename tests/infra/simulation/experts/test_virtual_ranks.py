"""The simulated runner of mixture-of-experts models, by command."""

import math
from itertools import islice
from typing import Any

import pytest

from infra.simulation.event_queue import EventQueue, EventRank
from infra.simulation.experts.model import BALANCED_BATCH_S, LAYERS, TRAINED_PER_S, busiest_load
from infra.simulation.experts.routed_tokens import SimulatedRouting
from infra.simulation.experts.virtual_ranks import START_S, VirtualRanks
from schemas.base import Event
from schemas.experts.commands import ExpertsPlaced, LayerPlacement, RankMember, RanksAssigned, RanksReleased
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.fleet import RunFinished, RunProgressed, RunStarted
from tests.support.moe import serving, training

INTERVAL_S = 10.0
MEMBERS = (RankMember(node="n0", ranks=1), RankMember(node="n1", ranks=1))
BALANCED = LayerPlacement(layer=0, devices=(tuple(range(16)), tuple(range(16))))


def assigned(workload: Any, **fields: Any) -> RanksAssigned:
    """To the leader of two ranks on two nodes."""
    defaults: dict[str, Any] = {"resume_samples": 0, "generation": 1}
    defaults |= fields
    return RanksAssigned(
        zone="z",
        node="n0",
        run_id=f"{defaults['generation']}/j",
        job_id="j",
        user="ann",
        members=MEMBERS,
        report_interval_s=INTERVAL_S,
        workload=workload,
        **defaults,
    )


def released(node: str) -> RanksReleased:
    return RanksReleased(zone="z", node=node, job_id="j", generation=1, reason="node_lost")


def placed(revision: int = 1) -> ExpertsPlaced:
    layers = tuple(BALANCED.model_copy(update={"layer": layer}) for layer in range(LAYERS))
    return ExpertsPlaced(zone="z", node="n0", job_id="j", generation=1, revision=revision, layers=layers)


def reports(runner: VirtualRanks, command: Any, until_s: float = 1e6) -> list[tuple[float, Event]]:
    told = runner.carry_out(command, 0.0, until_s)
    return [(time_s, event) for time_s, event in islice(told, 10_000) if event is not None]


def test_training_job_reports_until_all_members_end():
    work = int(25 * 2 * TRAINED_PER_S)
    told = reports(VirtualRanks("c", 1.0), assigned(training(2, work)))
    assert [type(event) for _, event in told] == [
        *(RunStarted, ExpertsRouted, ExpertsRouted, RunFinished, RunProgressed)
    ]
    assert [time_s for time_s, _ in told] == [START_S + since_s for since_s in (0, 10, 20, 25, 25)]
    assert [event.samples_done for _, event in told[-2:]] == [work, work]
    assert [event.node for _, event in told[-2:]] == ["n0", "n1"]


def test_run_resumes_at_progress_of_the_cell():
    work = int(25 * 2 * TRAINED_PER_S)
    command = assigned(training(2, work), resume_samples=work - int(4 * TRAINED_PER_S), generation=2)
    told = reports(VirtualRanks("c", 1.0), command)
    assert told[0][1].samples_done == work - int(4 * TRAINED_PER_S)
    assert told[-1][0] == START_S + 2.0


def test_service_profiles_first_and_then_reports_routing():
    workload = serving(2, 10_000, most_experts_per_device=16, profile_batches=30)
    kinds = [type(event) for _, event in reports(VirtualRanks("c", 1.0), assigned(workload))]
    assert kinds[:3] == [RunStarted, ExpertsProfiled, ExpertsRouted]
    assert set(kinds[3:-2]) == {ExpertsRouted}
    assert kinds[-2:] == [RunFinished, RunProgressed]


def test_a_balanced_placement_makes_a_service_faster():
    workload = serving(2, None, until_s=200.0, most_experts_per_device=16, profile_batches=0)
    runner = VirtualRanks("c", 1.0)
    queue = EventQueue()
    queue.add_all(EventRank.REPORT, runner.carry_out(assigned(workload), 0.0))
    routed: list[ExpertsRouted] = []
    while (due := queue.pop(1e6)) is not None:
        if isinstance(due[1], ExpertsRouted):
            routed.append(due[1])
            if len(routed) == 3:
                list(runner.carry_out(placed(), due[0]))
    assert [report.revision for report in routed[:5]] == [0, 0, 0, 1, 1]
    assert routed[2].batches < routed[4].batches == INTERVAL_S / BALANCED_BATCH_S


def test_released_ranks_only_report_their_end():
    runner = VirtualRanks("c", 1.0)
    queue = EventQueue()
    queue.add_all(EventRank.REPORT, runner.carry_out(assigned(training(2, 10**6)), 0.0))
    told: list[tuple[float, Event]] = []
    while (due := queue.pop(START_S + 14.0)) is not None:
        told.append(due)
    for node in ("n0", "n1"):
        queue.add_all(EventRank.REPORT, runner.carry_out(released(node), START_S + 14.0))
    while (due := queue.pop(1e6)) is not None:
        told.append(due)
    over = [event for _, event in told if isinstance(event, RunProgressed)]
    assert [(event.node, event.complete) for event in over] == [("n0", True), ("n1", True)]
    assert not any(isinstance(event, RunFinished) for _, event in told)
    assert max(time_s for time_s, event in told if event is not None) == START_S + 14.0


def test_lost_leader_reports_nothing_more():
    told = reports(VirtualRanks("c", 1.0), assigned(training(2, 10**6)), until_s=START_S + 25.0)
    assert [time_s for time_s, _ in told] == [START_S, START_S + 10.0, START_S + 20.0]


def test_underused_service_serves_all_requests():
    workload = serving(2, None, until_s=1_000.0, profile_batches=0, most_experts_per_device=16)
    asked = workload.requests.model_copy(update={"rate_per_s": 2.0})
    told = reports(
        VirtualRanks("c", 1.0), assigned(workload.model_copy(update={"requests": asked}), resume_samples=7)
    )
    time_s, finished = next(entry for entry in told if isinstance(entry[1], RunFinished))
    assert time_s == 1_000.0
    assert finished.samples_done == pytest.approx(7 + 2.0 * (1_000.0 - START_S), abs=1)


def test_popularity_sums_to_one_and_drifts():
    routed = SimulatedRouting("s", 1, 16, drift_s=100.0)
    for time_s in (0.0, 50.0, 75.0, 99.0, 100.0):
        assert math.isclose(math.fsum(routed.popularity(0, time_s)), 1.0)
    assert routed.popularity(0, 0.0) == routed.popularity(0, 49.0), "it stands still for half of a period"
    assert routed.popularity(0, 0.0) != routed.popularity(0, 100.0)
    end, begin = routed.popularity(0, 99.999), routed.popularity(0, 100.0)
    assert max(abs(one - other) for one, other in zip(end, begin, strict=True)) < 1e-3
    again = SimulatedRouting("s", 1, 16, drift_s=100.0)
    assert again.counts(0, 60.0, 1_000) == routed.counts(0, 60.0, 1_000)


@pytest.mark.parametrize(
    ("experts", "popularity", "load"),
    [
        (None, [0.25, 0.25, 0.25, 0.25], 1.0),
        (None, [0.7, 0.1, 0.1, 0.1], 1.6),
        ([[0, 1], [0, 2, 3]], [0.7, 0.1, 0.1, 0.1], 1.0),
    ],
    ids=["even", "skewed", "replicated"],
)
def test_the_busiest_device(experts, popularity, load):
    assert busiest_load(experts, popularity, 2) == pytest.approx(load)
