"""The checker of plans: each kind of violation is found and named, and nothing else is."""

import pytest

from solvers.auction.market.market import Placement
from solvers.auction.market.window import VendorOption
from solvers.auction.offline.instance import Instance, OfferedTask, PlannedTask, violations, welfare_micros
from tests.support.instances import FIRST_SLOT, NO_VENDOR, empty_instance
from tests.support.markets import demand, fleet

FLEET = fleet((2, 10.0, 8.0), (1, 5.0, 4.0))
"""Rows 0 and 1 are fast nodes, row 2 is a slow one."""
PREPARED = VendorOption("vendor", 3, 1)
TASKS = [
    OfferedTask("a", 20, demand(FLEET, 8, [4, 2], 3.0), NO_VENDOR, 4, 6),
    OfferedTask("b", 20, demand(FLEET, 4, [4, 0], 3.0), (PREPARED,), 3, 6),
    OfferedTask("c", 20, demand(FLEET, 7, [7, 2], 6.0), NO_VENDOR, 3, 6),
]


def instance() -> Instance:
    """Five slots, 3 to 7; the slow node is down in slot 6."""
    made = empty_instance(FLEET, 5, TASKS, [7.0, 5.0])
    made.free_samples[6 - FIRST_SLOT, 2] = made.free_gib[6 - FIRST_SLOT, 2] = 0.0
    return made


def plan(job_id: str, *node_slots: tuple[int, int], option: VendorOption = NO_VENDOR[0]) -> PlannedTask:
    return PlannedTask(
        job_id, option, Placement(tuple(s for s, _ in node_slots), tuple(r for _, r in node_slots))
    )


FEASIBLE = [plan("a", (4, 0), (6, 1)), plan("b", (4, 0), option=PREPARED), plan("c", (4, 1))]


def test_feasible_plans_bring_bids_less_costs():
    assert violations(instance(), FEASIBLE) == []
    # a: two slots of 4/10 of 7, each rounded up; b: a vendor and one such slot; c: 7/10 of 7, rounded up.
    assert welfare_micros(instance(), FEASIBLE) == (20 - 3 - 3) + (20 - 3 - 3) + (20 - 5)


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        pytest.param([plan("z", (4, 0))], "job z: the instance has no such task", id="unknown task"),
        pytest.param(FEASIBLE[:1] * 2, "job a: planned more than once", id="planned twice"),
        pytest.param([plan("b", (4, 0))], "is not one of the 1 offered (4a)", id="no vendor"),
        pytest.param(
            [plan("b", (4, 0), option=PREPARED._replace(price_micros=0))],
            "(4a)",
            id="vendor at another price",
        ),
        pytest.param(
            [plan("a", (4, 0), (4, 1))],
            "job a: runs more than once in slots [4] (4b)",
            id="two nodes at once",
        ),
        pytest.param(
            [plan("a", (3, 0), (4, 0))], "job a: runs in slot 3, but its first is 4", id="too early"
        ),
        pytest.param(
            [plan("b", (3, 0), option=PREPARED)], "ready after 1 more, in slot 4 (4c)", id="before its data"
        ),
        pytest.param(
            [plan("a", (6, 0), (7, 0))],
            "job a: runs in slot 7, after its last, 6 (4d)",
            id="after its deadline",
        ),
        pytest.param([plan("a", (4, 0))], "job a: trains 4 of 8 samples (4e)", id="work not done"),
        pytest.param(
            [plan("b", (4, 2), option=PREPARED)],
            "job b: cannot run on node node1-0, as it does in slot 4",
            id="a class that it cannot run on",
        ),
        pytest.param(
            [plan("c", (4, 0)), plan("b", (4, 0), option=PREPARED)],
            "slot 4, node node0-0: c, b train 11 of 10 free samples (4f)",
            id="more samples than a node has",
        ),
        pytest.param(
            [plan("c", (4, 0)), plan("b", (4, 0), option=PREPARED)],
            "slot 4, node node0-0: c, b hold 9 of 8 free GiB (4g)",
            id="more memory than a node has",
        ),
        pytest.param(
            [plan("a", (4, 0), (5, 2), (6, 2))],
            "slot 6, node node1-0: a train 2 of 0 free samples (4f)",
            id="a node that is down",
        ),
        pytest.param(
            [plan("a", (4, 3), (5, 0), (6, 0))], "slot 4, node row 3 is no node-slot", id="no such node"
        ),
        pytest.param(
            [plan("a", (4, -1), (5, 0), (6, 0))], "slot 4, node row -1 is no node-slot", id="a node before"
        ),
        pytest.param([plan("a", (4, 0), (8, 0))], "slot 8, node row 0 is no node-slot", id="no such slot"),
        pytest.param([plan("a")], "job a: trains 0 of 8 samples (4e)", id="no slot at all"),
    ],
)
def test_a_violation_is_named(plans: list[PlannedTask], message: str):
    assert any(message in found for found in violations(instance(), plans))
