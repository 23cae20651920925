"""Titan's answers: feasible, the best of small batches, and models that stay small for large ones."""

import random

import numpy as np
import pytest

from schemas.auction.batches import BatchProblem, OfferedBid, OfferedNodes
from solvers.auction.baselines import titan
from solvers.auction.baselines.titan import COLUMNS_SHARE, MAX_VARIABLES, instance_of, pruned, solve_batch
from solvers.auction.market.market import Placement
from solvers.auction.offline.columns import solve_by_columns
from solvers.auction.offline.instance import PlannedTask, violations, welfare_micros
from solvers.auction.offline.schedule_free import solve_schedule_free

FIRST = 7
UNIT = 1_000_000
GAP = 1e-5
LIMIT_S = 250.0
"""Never reached by a solve of this size; the first one may have to compile the searches."""


def offered_nodes(name: str, nodes: int, slots: int, source: random.Random, full: float) -> OfferedNodes:
    """Equal nodes of 100 samples and 8 GiB, some of it taken."""
    return OfferedNodes(
        nodes=tuple(f"{name}{number}" for number in range(nodes)),
        capacity_samples=100,
        capacity_quanta=8 * 1024,
        full_cost_micros=tuple(float(source.randint(10, 40) * UNIT) for _ in range(slots)),
        free_samples=tuple(
            tuple(100 - int(full * source.randint(0, 100)) for _ in range(nodes)) for _ in range(slots)
        ),
        free_quanta=tuple(tuple(source.randint(2, 8) * 1024 for _ in range(nodes)) for _ in range(slots)),
    )


def problem(seed: int, bids: int, nodes: int, slots: int, most_slots: int, full: float) -> BatchProblem:
    source = random.Random(f"titan/{seed}")
    offered = []
    for number in range(bids):
        samples = source.randint(10, 40)
        needed = source.randint(1, most_slots)
        ready = FIRST + source.randint(0, slots - needed)
        offered.append(
            OfferedBid(
                job_id=f"j{number}",
                bid_micros=source.randint(1, 60) * needed * UNIT,
                work_samples=samples * needed,
                slot_samples=(samples, samples // 2),
                memory_quanta=source.randint(1, 4) * 1024,
                vendor=None,
                vendor_micros=source.randint(0, 3) * UNIT,
                ready_slot=ready,
                last_slot=min(ready + 3 * needed, FIRST + slots - 1),
            )
        )
    return BatchProblem(
        relative_gap=GAP,
        first_slot=FIRST,
        classes=(
            offered_nodes("fast", nodes, slots, source, full),
            offered_nodes("slow", nodes, slots, source, full),
        ),
        bids=tuple(offered),
    )


@pytest.mark.parametrize("seed", range(6))
def test_answer_is_feasible_and_near_full_solution(seed):
    asked = problem(seed, bids=5, nodes=2, slots=4, most_slots=2, full=0.8)
    instance = instance_of(asked)
    answer = solve_batch(asked, LIMIT_S)
    options = {task.job_id: task.options[0] for task in instance.tasks}
    plans = [
        PlannedTask(
            plan.job_id,
            options[plan.job_id],
            Placement(
                tuple(slot for slot, _ in plan.node_slots),
                tuple(instance.fleet.row_of[node] for _, node in plan.node_slots),
            ),
        )
        for plan in answer.plans
    ]
    assert violations(instance, plans) == []
    whole = solve_schedule_free(instance, LIMIT_S, GAP)
    assert whole.status == "optimal"
    assert welfare_micros(instance, plans) == pytest.approx(whole.welfare_micros, rel=GAP)
    assert answer.bound_micros >= whole.welfare_micros
    proven = answer.bound_micros <= (1 + GAP) * welfare_micros(instance, plans)
    assert answer.status == ("optimal" if proven else "feasible")


def test_proven_gap_needs_no_program(monkeypatch):
    asked = problem(1, bids=80, nodes=50, slots=40, most_slots=12, full=0.5)
    asked = asked.model_copy(update={"relative_gap": 0.05})
    monkeypatch.setattr(titan, "solve_schedule_free", None)
    answer = solve_batch(asked, LIMIT_S)
    assert answer.status == "optimal"
    assert answer.plans


def test_open_gap_runs_program_and_keeps_better(
    monkeypatch,
):
    asked = problem(3, bids=12, nodes=2, slots=6, most_slots=3, full=0.8)
    limits_s = []

    def watched(instance, time_limit_s, relative_gap):
        limits_s.append((time_limit_s, relative_gap))
        return solve_schedule_free(instance, time_limit_s, relative_gap)

    monkeypatch.setattr(titan, "solve_schedule_free", watched)
    by_columns = solve_by_columns(instance_of(asked), COLUMNS_SHARE * LIMIT_S, GAP)
    assert by_columns.status == "feasible"
    answer = solve_batch(asked, LIMIT_S)
    ((limit_s, gap),) = limits_s
    assert (1 - COLUMNS_SHARE) * LIMIT_S <= limit_s < LIMIT_S
    assert gap == GAP
    assert by_columns.welfare_micros <= answer.bound_micros <= by_columns.bound_micros


@pytest.mark.slow
def test_bound_covers_room_outside_program(monkeypatch):
    asked = problem(3, bids=12, nodes=2, slots=6, most_slots=3, full=0.8)
    instance = instance_of(asked)
    whole = solve_schedule_free(instance, LIMIT_S, GAP)
    monkeypatch.setattr(titan, "MAX_VARIABLES", 1)
    part = solve_schedule_free(pruned(instance, 1), LIMIT_S, GAP)
    assert part.bound_micros < whole.welfare_micros
    assert solve_batch(asked, LIMIT_S).bound_micros >= whole.welfare_micros


def test_the_instance_is_the_request_in_other_words():
    asked = problem(0, bids=3, nodes=2, slots=4, most_slots=2, full=0.8)
    instance = instance_of(asked)
    assert instance.fleet.nodes == ("fast0", "fast1", "slow0", "slow1")
    assert instance.fleet.class_of_row == (0, 0, 1, 1)
    assert (instance.first_slot, instance.slots) == (FIRST, 4)
    assert instance.full_costs[:, 1].tolist() == list(asked.classes[1].full_cost_micros)
    assert instance.free_samples[2].tolist() == [
        *asked.classes[0].free_samples[2],
        *asked.classes[1].free_samples[2],
    ]
    assert instance.free_gib[1, 3] == asked.classes[1].free_quanta[1][1] / 1024
    task, bid = instance.tasks[1], asked.bids[1]
    assert (task.first_slot, task.last_slot) == (bid.ready_slot, bid.last_slot)
    assert task.demand.compute_share.tolist() == [samples / 100 for samples in bid.slot_samples]


def test_large_batch_is_cut_to_buildable_model():
    instance = instance_of(problem(1, bids=80, nodes=50, slots=40, most_slots=12, full=0.5))
    small = pruned(instance, MAX_VARIABLES)
    variables = sum(
        int((small.free_samples[task.first_slot - FIRST : task.last_slot - FIRST + 1] > 0).sum())
        for task in instance.tasks
    )
    assert 5_000 < variables <= MAX_VARIABLES
    for rows in (slice(0, 50), slice(50, 100)):
        kept = small.free_samples[:, rows] > 0
        assert kept.any(axis=1).all(), "some node in every slot"
        scarcer = np.minimum(instance.free_samples / 100, instance.free_gib / 8)[:, rows]
        for slot in range(40):
            left_out = scarcer[slot][~kept[slot]]
            assert left_out.max(initial=0.0) <= scarcer[slot][kept[slot]].min(), "the roomiest are kept"


def test_what_the_batch_could_fill_is_left_whole():
    instance = instance_of(problem(2, bids=6, nodes=3, slots=4, most_slots=3, full=0.9))
    small = pruned(instance, MAX_VARIABLES)
    wanted = sum(task.demand.samples[0] for task in instance.tasks)
    for slot in range(4):
        there, kept = instance.free_samples[slot, :3], small.free_samples[slot, :3]
        assert kept.sum() >= min(there.sum(), wanted) or (kept == there).all()
