"""`millrace prices`: the map of an auction's node-slots, from a ledger."""

import json
from pathlib import Path

import pytest

from infra.cli import run
from infra.views.auction.price_map import MOST_COLUMNS, MOST_NODES, price_map
from schemas.elastic.settings import ElasticPolicy
from streams.replay.files import ledger_line
from tests.support.cells import Bench, bid, tick, zone


def ledger_of(tmp_path: Path, bench: Bench) -> str:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(map(ledger_line, bench.ledger)))
    return str(path)


def test_prices_are_ninths_of_the_highest():
    assert list(price_map(5, {"a1": [0.0, 1e-9, 90e3], "b1": [10e3, 10.1e3, 45e3]})) == [
        "slots 5 to 7: each column is a slot; 9 is 0.0900",
        "a1  .19",
        "b1  125",
    ]


def test_long_window_shows_highest_of_slots():
    header, row = price_map(0, {"a": [float(slot % 3) for slot in range(3 * MOST_COLUMNS)]})
    assert "the highest of 3 slots" in header
    assert row == "a  " + "9" * MOST_COLUMNS


def test_more_nodes_are_counted():
    *_, last = price_map(0, {f"n{number}": [1.0] for number in range(MOST_NODES + 2)})
    assert last == "… and 2 more nodes: --json has all"


def test_zone_without_prices_is_dots():
    assert list(price_map(0, {"a": [0.0]}))[1] == "a  ."


def test_award_raises_its_node_slots(capsys, tmp_path):
    bench = Bench.configured()
    bench.send(tick(0))
    bench.send(bid("one"))
    ledger = ledger_of(tmp_path, bench)
    assert run(["prices", "c", "z", "--from", ledger, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (plan,) = bench.zone.describe()["jobs"].values()
    taken = {(each["slot"], each["node"]) for each in plan["plan"]}
    raised = {
        (shown["first_slot"] + index, node)
        for node, prices in shown["price_micros"].items()
        for index, price in enumerate(prices)
        if price > 0
    }
    assert raised == taken


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["c", "y"], "cell c has no zone y: it has z"),
        (["c", "z", "--slot", "3"], "--slot needs a ledger file"),
        (["d", "z"], "no event of cell d"),
    ],
)
def test_wrong_place_is_named(capsys, tmp_path, arguments, fault):
    ledger = [] if "--slot" in arguments else ["--from", ledger_of(tmp_path, Bench.configured())]
    assert run(["prices", *arguments, *ledger]) == 1
    assert fault in capsys.readouterr().err


def test_zone_of_other_policy_is_named(capsys, tmp_path):
    bench = Bench.configured(zones=(zone(policy=ElasticPolicy(kind="elastic", reference_gpu_type="fast")),))
    assert run(["prices", "c", "z", "--from", ledger_of(tmp_path, bench)]) == 1
    assert "zone z has no prices of node-slots" in capsys.readouterr().err
