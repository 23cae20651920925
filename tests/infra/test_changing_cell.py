"""Views show a cell that changes: nodes join, are lent, return and retire; zones change."""

from collections.abc import Iterator
from typing import Any

import pytest

from infra.figures.board import Board
from infra.figures.nodes import UNSEEN, NodeState
from infra.figures.summary import summarise
from schemas.base import HOURS_PER_DAY, Outcome
from schemas.cells import GpuType, Tariff
from schemas.cells import Node as ConfiguredNode
from schemas.changes import (
    NodeCordoned,
    NodeLent,
    NodeRegistered,
    NodeRetired,
    NodeReturned,
    NodeUncordoned,
    ZoneConfigured,
)
from schemas.decisions import EventIgnored, NodeMoved, ZoneAccepted
from tests.infra.test_tables import column, shown
from tests.support.cells import (
    UNIT,
    Bench,
    bid,
    finished,
    node_seen,
    nodes_by_slot,
    offline,
    online,
    progressed,
    silent,
    started,
    tick,
    zone,
)

JOINED = NodeRegistered(cell="c", node="a9", zone="z", gpu_type="fast", tariff="t")
LENT = NodeLent(cell="c", node="a9", zone="y")
RETURNED = NodeReturned(cell="c", node="a9")
RETIRED = NodeRetired(cell="c", node="a9")


def node(name: str, gpu_type: str = "fast") -> ConfiguredNode:
    return ConfiguredNode(id=name, gpu_type=gpu_type, tariff="t")


def reconfigured(**changes: Any) -> ZoneConfigured:
    """Zone "z" with changes."""
    return ZoneConfigured(cell="c", zone=zone(**{"nodes": (node("a1"),), **changes}))


@pytest.fixture
def bench() -> Bench:
    """Return a cell at slot 0, with zone "z" of node a1 and zone "y" of node y1, both online."""
    bench = Bench.configured(zones=(zone(nodes=(node("a1"),)), zone(id="y", nodes=(node("y1"),))))
    bench.send(tick(0), online("a1"), online("y1"))
    return bench


def boards(bench: Bench) -> Iterator[Board]:
    """Yield boards of the cell: with all events folded first, all decisions first, and both in order."""
    yield Board.of("c", bench.ledger, bench.decisions)
    decisions_first, in_order = Board("c"), Board("c")
    for decision in bench.decisions:
        decisions_first.fold_decision(decision)
    for entry in bench.ledger:
        decisions_first.fold_event(entry)
        in_order.fold_event(entry)
        for decision in bench.decisions:
            if decision.place[0] == entry.offset:
                in_order.fold_decision(decision)
    yield decisions_first
    yield in_order


def seen(bench: Bench) -> dict[str, NodeState]:
    """Return the nodes, after asserting that they do not depend on the order in which the log is read."""
    first, *others = (board.nodes.by_id for board in boards(bench))
    assert [first] * len(others) == others
    return first


def status(bench: Bench, name: str = "a9") -> tuple[str, str, str]:
    """Owner, zone and status of a node."""
    found = seen(bench)[name]
    return found.owner, found.zone, found.status


def utilisation(bench: Bench) -> float:
    """Return the utilisation, after asserting that it does not depend on the order in which the log is
    read."""
    first, *others = (summarise(board).utilisation for board in boards(bench))
    assert others == pytest.approx([first] * len(others))
    return first


def kinds(outcomes: list[Outcome]) -> list[type[Outcome]]:
    return [type(outcome) for outcome in outcomes]


class TestNodes:
    def test_node_joins_is_lent_returns_and_retires(self, bench: Bench) -> None:
        bench.send(JOINED)
        assert status(bench) == ("z", "z", "down"), "nobody has node_seen it yet"
        bench.send(online("a9"))
        assert status(bench) == ("z", "z", "up")
        bench.send(LENT)
        assert status(bench) == ("z", "y", "up"), "and no more leaving"
        assert column(shown(bench), "node", "zone") == {"a1": "z", "y1": "y", "a9": "y, lent by z"}
        bench.send(RETURNED)
        assert status(bench) == ("z", "z", "up")
        bench.send(RETIRED)
        assert list(seen(bench)) == ["a1", "y1"]
        assert column(shown(bench), "node", "zone") == {"a1": "z", "y1": "y"}

    def test_a_node_leaves_when_its_job_is_over(self, bench: Bench) -> None:
        bench.send(JOINED, online("a9"), silent("a1"))
        (admitted,) = bench.send(bid())
        assert set(nodes_by_slot(admitted).values()) == {"a9"}
        bench.send(LENT)
        assert status(bench) == ("z", "z", "leaving")
        bench.send(tick(1), started("a9", 1, 0), progressed("a9", 1, 50))
        bench.send(tick(2), started("a9", 2, 50), finished("a9", 2))
        assert status(bench) == ("z", "y", "up")

    def test_cancelled_loan_leaves_node_in_place(self, bench: Bench) -> None:
        bench.send(JOINED, online("a9"), silent("a1"), bid(), LENT, RETURNED)
        assert status(bench) == ("z", "z", "up")

    def test_a_lent_node_is_still_down_or_cordoned(self, bench: Bench) -> None:
        bench.send(JOINED, LENT)
        assert status(bench) == ("z", "y", "down")
        bench.send(NodeCordoned(cell="c", node="a9"), online("a9"))
        assert status(bench) == ("z", "y", "cordoned")
        bench.send(RETURNED)
        assert status(bench) == ("z", "z", "cordoned")
        bench.send(NodeUncordoned(cell="c", node="a9"))
        assert status(bench) == ("z", "z", "up")

    def test_node_lent_to_other_model_is_awaited(self) -> None:
        other = zone(id="y", base_model="other", nodes=(node("y1"),))
        bench = Bench.configured(zones=(zone(nodes=(node("a1"),)), other))
        bench.send(JOINED, online("a9"), LENT)
        assert status(bench) == ("z", "y", "down")
        bench.send(online("a9", base_model="other"))
        assert status(bench) == ("z", "y", "up")

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (JOINED.model_copy(update={"zone": "nozone"}), "unknown_zone"),
            (JOINED.model_copy(update={"gpu_type": "unheard-of"}), "invalid_configuration"),
            (JOINED.model_copy(update={"node": "a1", "gpu_type": "slow"}), "node_already_registered"),
            (reconfigured(nodes=(node("a1", "slow"), node("y1"))), "invalid_configuration"),
        ],
    )
    def test_what_the_cell_refuses_changes_nothing(self, bench: Bench, change: Any, reason: str) -> None:
        before = seen(bench)
        (ignored,) = bench.send(change)
        assert (type(ignored), ignored.reason) == (EventIgnored, reason)
        assert seen(bench) == before

    def test_refused_node_joins_by_later_event(self, bench: Bench) -> None:
        bench.send(JOINED.model_copy(update={"zone": "nozone", "gpu_type": "slow"}), JOINED)
        assert seen(bench)["a9"].gpu_type == "fast"

    def test_configured_node_is_up_after_report(self) -> None:
        bench = Bench.configured()
        bench.send(online("a1"), node_seen("a2"))
        board, *_ = boards(bench)
        statuses = {name: found.status for name, found in board.nodes.by_id.items()}
        assert statuses == {"a1": "up", "a2": "up", "b1": UNSEEN}


class TestZones:
    def test_zone_is_reconfigured_with_nodes_types_and_tariffs(self, bench: Bench) -> None:
        cheap = Tariff(name="cheap", micros_per_kwh=(UNIT,) * HOURS_PER_DAY)
        changed = ConfiguredNode(id="a1", gpu_type="slow", tariff="cheap")
        outcomes = bench.send(
            ZoneConfigured(cell="c", zone=zone(nodes=(changed, node("a2"))), tariffs=(cheap,))
        )
        assert {ZoneAccepted, NodeMoved} <= set(kinds(outcomes))
        found = seen(bench)
        assert (found["a1"].gpu_type, found["a1"].tariff) == ("slow", "cheap")
        assert status(bench, "a2") == ("z", "z", "down")
        bench.send(reconfigured(nodes=(node("a2"),)))
        assert list(seen(bench)) == ["y1", "a2"], "what is left out retires"

    def test_a_zone_is_added_and_borrows(self, bench: Bench) -> None:
        bench.send(ZoneConfigured(cell="c", zone=zone(id="x", nodes=(node("x1"),))), JOINED)
        bench.send(NodeLent(cell="c", node="a9", zone="x"))
        assert status(bench, "x1") == ("x", "x", "down")
        assert status(bench) == ("z", "x", "down")


class TestUtilisation:
    """A fast node trains 10 samples per second: 200 samples are 20 s of its time. A slot has 10 s."""

    def test_joined_node_counts_since_it_joined(self, bench: Bench) -> None:
        bench.send(tick(2), JOINED, online("a9"), silent("a1"), bid())
        bench.send(tick(3), started("a9", 3, 0), finished("a9", 3), tick(6))
        assert utilisation(bench) == pytest.approx(20 / (60 + 60 + 40)), "of a1, y1 and a9"

    def test_a_node_that_has_left_counts_until_then(self, bench: Bench) -> None:
        bench.send(JOINED, online("a9"), silent("a1"), bid())
        bench.send(tick(1), started("a9", 1, 0), finished("a9", 1), tick(2), RETIRED, tick(10))
        assert utilisation(bench) == pytest.approx(20 / (100 + 100 + 20))

    def test_departed_configured_node_counts_from_first_tick(self, bench: Bench) -> None:
        bench.send(JOINED, tick(3), NodeRetired(cell="c", node="a1"), tick(4))
        assert list(seen(bench)) == ["y1", "a9"]
        bench.send(online("a9"), bid(deadline_s=1_100.0))
        bench.send(tick(5), started("a9", 5, 0), finished("a9", 5), tick(10))
        assert utilisation(bench) == pytest.approx(20 / (30 + 100 + 100))

    def test_lent_node_works_at_borrowers_speed(self) -> None:
        fast, slow = zone().gpu_types
        slower = fast.model_copy(update={"samples_per_s": 8.0})
        other = zone(id="y", nodes=(node("y1"),), gpu_types=(slower, slow))
        bench = Bench.configured(zones=(zone(nodes=(node("a1"), node("a9"))), other))
        bench.send(tick(0), LENT, silent("y1"), bid(zone="y"))
        bench.send(tick(1), started("a9", 1, 0), finished("a9", 1), tick(2), RETURNED, tick(10))
        assert utilisation(bench) == pytest.approx(25 / 300)

    def test_work_counts_at_speed_of_its_time(self, bench: Bench) -> None:
        bench.send(bid("j"), tick(1), started("a1", 1, 0), finished("a1", 1), tick(2))
        types = (GpuType(name="fast", samples_per_s=20.0, memory_gib=10.0, power_kw=1.0), zone().gpu_types[1])
        assert kinds(bench.send(reconfigured(gpu_types=types)))[0] is ZoneAccepted
        bench.send(bid("k"), tick(3), started("a1", 3, 0, "k"), finished("a1", 3, job_id="k"), tick(10))
        assert utilisation(bench) == pytest.approx((20 + 10) / 200)


def test_decisions_that_are_published_twice_count_once(bench: Bench) -> None:
    bench.send(JOINED, tick(2), RETIRED, offline("a1"), bid("k", units=0.5), tick(4))
    once, twice = Board("c"), Board("c")
    for entry in bench.ledger:
        once.fold_event(entry)
        twice.fold_event(entry)
    for decision in bench.decisions:
        once.fold_decision(decision)
    for decision in [*bench.decisions, *bench.decisions[2:]]:
        twice.fold_decision(decision)
    assert summarise(once).as_json() == summarise(twice).as_json()
    assert (once.nodes.losses, once.jobs.rejections.total()) == (1, 1)


def test_job_on_several_nodes_is_shown_on_each(bench: Bench) -> None:
    bench.send(bid(), tick(1), started("a1", 1, 0), started("y1", 1, 0))
    assert column(shown(bench), "job", "node") == {"j": "a1, y1"}
    assert column(shown(bench), "node", "runs") == {"a1": "j", "y1": "j"}
    bench.send(progressed("a1", 1, 50))
    assert column(shown(bench), "job", "node") == {"j": "y1"}
