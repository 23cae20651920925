"""The tables of `watch` show a cell whose zones are auctions."""

from collections.abc import Iterable
from io import StringIO

from rich.console import Console

from infra.figures.board import Board
from infra.views.tables import board_view
from schemas.cells import Node
from tests.support.cells import Bench, bid, offline, online, progressed, started, tick, zone


def shown(bench: Bench) -> list[list[str]]:
    """The lines of the tables, cell by cell."""
    board = Board.of("c", bench.ledger, bench.decisions)
    screen = StringIO()
    Console(file=screen, width=200).print(board_view(board, 10))
    return [
        [cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")]
        for line in screen.getvalue().splitlines()
    ]


def column(rows: Iterable[list[str]], first: str, name: str) -> dict[str, str]:
    """Return column `name` of the table whose first column is `first`, by first column."""
    table = list(rows)
    start = next(number for number, row in enumerate(table) if row[0] == first)
    place = table[start].index(name)
    body = (row for row in table[start + 1 :] if len(row) == len(table[start]))
    return {row[0]: row[place] for row in body}


def test_rejected_job_shows_winning_bid() -> None:
    bench = Bench.configured()
    bench.send(bid("j"), bid("k", units=0.5))
    assert column(shown(bench), "job", "offers") == {"j": "50.0000", "k": "0.5000"}
    won = column(shown(bench), "job", "would have won")
    assert won["j"] == "–"
    assert float(won["k"]) > 0.5


def test_node_shows_prices_of_its_zone() -> None:
    nodes = (Node(id="y1", gpu_type="fast", tariff="t"),)
    bench = Bench.configured(zones=(zone(), zone(id="y", nodes=nodes)))
    bench.send(tick(0), bid(zone="y"), tick(1))
    used = column(shown(bench), "node", "used ahead")
    assert used["a1"] == "0%"
    assert used["y1"] != "0%"


def test_node_shows_reported_runs_until_it_leaves() -> None:
    bench = Bench.configured()
    (admitted,) = bench.send(bid())
    slot, node = admitted.evidence.offer.plan.node_slots[0]
    bench.send(*(tick(number) for number in range(slot + 1)), online(node))
    assert column(shown(bench), "node", "runs")[node] == "–", "told to, and not yet begun"
    bench.send(started(node, slot, 0))
    assert column(shown(bench), "node", "runs")[node] == "j"
    bench.send(offline(node))
    assert column(shown(bench), "node", "runs")[node] == "–"
    bench.send(online(node), started(node, slot, 0), progressed(node, slot, 50))
    assert column(shown(bench), "job", "node")["j"] == "–"
