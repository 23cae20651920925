"""The states of a node: every event in every state, as `docs/cell/changes.md` has them."""

from collections.abc import Callable
from typing import get_args

import pytest

from schemas.base import Event, Outcome
from schemas.cells import Borrower, Lending, Node
from schemas.changes import NodeCordoned, NodeLent, NodeRegistered, NodeRetired, NodeReturned, NodeUncordoned
from schemas.decisions import EventIgnored
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.loans import OfferAnswered
from streams.cell.node_record import Connection, Membership
from streams.cell.state_machine import Cell
from tests.streams.cell.node_specification import CONNECTION, MEMBERSHIP
from tests.support.cells import (
    EPOCH_S,
    SLOT_S,
    CheckedBench,
    bid,
    configuration,
    node_seen,
    offline,
    online,
    refused,
    silent,
    started,
    tick,
    withdraw,
    zone,
)

NODE = "a1"
LENT, RETURNED = NodeLent(cell="c", node=NODE, zone="y"), NodeReturned(cell="c", node=NODE)
RETIRED = NodeRetired(cell="c", node=NODE)
OFFERED = CapacityOffered(cell="c", zone="z", offer_id="o2", servers=(NODE,))
RECLAIMED = CapacityReclaimed(cell="c", zone="z", reclaim_id="r", servers=1, due_s=EPOCH_S + 4 * SLOT_S)
EVENTS: dict[str, Event] = {
    "node.lent": LENT,
    "node.returned": RETURNED,
    "node.retired": RETIRED,
    "node.registered as it is": NodeRegistered(cell="c", node=NODE, zone="z", gpu_type="fast", tariff="t"),
    "offered": OFFERED,
    "reclaimed": RECLAIMED.model_copy(update={"reclaim_id": "r2"}),
    "free": withdraw("busy"),
}
"""An event for each column."""
BUSY_AT_HOME, BUSY_ABROAD = (
    bid("busy", zone=id, work_samples=100, speed_samples_per_s={"fast": 5.0}) for id in ("z", "y")
)
ON_LOAN = (OFFERED.model_copy(update={"offer_id": "o1"}), BUSY_ABROAD)
PATHS: dict[str, tuple[Event, ...]] = {
    "owned": (BUSY_AT_HOME,),
    "lending": (BUSY_AT_HOME, LENT),
    "retiring": (BUSY_AT_HOME, RETIRED),
    "lent": (LENT, BUSY_ABROAD),
    "lent_returning": (LENT, BUSY_ABROAD, RETURNED),
    "lent_retiring": (LENT, BUSY_ABROAD, RETIRED),
    "on_loan": ON_LOAN,
    "loan_returning": (*ON_LOAN, RETURNED),
    "loan_retiring": (*ON_LOAN, RETIRED),
    "reclaimed": (*ON_LOAN, RECLAIMED),
    "reclaimed_retiring": (*ON_LOAN, RECLAIMED, RETIRED),
}
"""Events that lead to each membership: a job needs the node, so that it does not move at once."""


def bench_of_two_zones() -> CheckedBench:
    """Zone "z" may lend its nodes to zone "y"; only a1 is open in either."""
    fast, _ = zone().gpu_types
    lending = Lending(headroom=0.0, notice_s=4 * SLOT_S, borrowers=(Borrower(zone="y"),))
    other = zone(id="y", gpu_types=(fast,), nodes=(Node(id="y1", gpu_type="fast", tariff="t"),))
    bench = CheckedBench()
    bench.send(configuration(zones=(zone(lending=lending), other)), tick(0))
    bench.send(InferenceLoadReported(cell="c", zone="z", time_s=EPOCH_S, load=0.0))
    bench.send(*(NodeCordoned(cell="c", node=node) for node in ("a2", "b1", "y1")))
    return bench


def membership(bench: CheckedBench) -> str:
    node = bench.cell.describe()["nodes"].get(NODE)
    return "gone" if node is None else node["membership"]


def reasons(outcomes: list[Outcome]) -> list[str]:
    """Reasons for which an event was refused."""
    ignored = [outcome.reason for outcome in outcomes if isinstance(outcome, EventIgnored)]
    answers = [outcome for outcome in outcomes if isinstance(outcome, OfferAnswered)]
    return ignored + [one.reason for answer in answers for one in answer.refused]


def test_the_page_has_all_states():
    members = [state for part in get_args(Membership) for state in get_args(part)]
    assert [*MEMBERSHIP, "gone"] == members == [*PATHS, "gone"]
    assert list(CONNECTION) == list(get_args(Connection))
    assert all(list(row) == list(EVENTS) for row in MEMBERSHIP.values())


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", MEMBERSHIP)
def test_membership_changes_as_documented(state: str, event: str):
    bench, expected = bench_of_two_zones(), MEMBERSHIP[state][event]
    bench.send(*PATHS[state])
    assert membership(bench) == state
    if expected == "on_loan" and state == "owned":
        bench.send(withdraw("busy"))  # what its jobs need is not lent
    bench.cell = Cell.restore(bench.cell.snapshot())
    found = reasons(bench.send(EVENTS[event]))
    if expected in (*MEMBERSHIP, "gone"):
        assert (found, membership(bench)) == ([], expected)
    else:
        assert (found, membership(bench)) == ([expected], state)


SIGNS: dict[str, Callable[[str], Event]] = {
    "announces that it is fit": node_seen,
    "announces that it is unfit": lambda node: online(node, base_model="other"),
    "reports of a run": lambda node: started(node, 0, 0),
    "refuses a command": refused,
    "goes offline or silent": silent,
}


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize(
    ("state", "before"),
    [
        ("assumed", ()),
        ("watched", (node_seen,)),
        ("down", (offline,)),
        ("awaited", (SIGNS["announces that it is unfit"],)),
    ],
)
def test_connection_changes_as_documented(state, before, sign):
    bench = bench_of_two_zones()
    bench.send(*(event(NODE) for event in before))
    assert bench.cell.describe()["nodes"][NODE]["connection"] == state
    bench.send(SIGNS[sign](NODE))
    assert bench.cell.describe()["nodes"][NODE]["connection"] == CONNECTION[state][sign]


def test_nodes_are_cordoned_and_uncordoned_once():
    bench, cordoned = bench_of_two_zones(), NodeCordoned(cell="c", node=NODE)
    uncordoned = NodeUncordoned(cell="c", node=NODE)
    answers = [reasons(bench.send(event)) for event in (uncordoned, cordoned, cordoned, uncordoned)]
    assert answers == [["nothing_changes"], [], ["nothing_changes"], []]
    assert bench.cell.describe()["nodes"][NODE]["scheduling"] == "open"
