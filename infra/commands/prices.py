"""`millrace prices`."""

from typing import Annotated

import typer

from infra.commands.deciding import present_cell
from infra.commands.options import DEFAULT_PREFIX, BootstrapServers, Json, LedgerAlone, TopicPrefix, bounded
from infra.commands.output import print_json, print_line
from infra.errors import CommandError
from infra.views.auction.price_map import price_map
from streams.cell.state_machine import Cell
from streams.policies.auction.zone import AuctionZone


def prices(
    cell: Annotated[str, typer.Argument(help="The cell's name.", metavar="CELL")],
    zone: Annotated[str, typer.Argument(help="A zone of an auction.", metavar="ZONE")],
    slot: Annotated[
        int | None,
        bounded(least=0, most=10**12, help="As this slot begins; with --from.", show_default=False),
    ] = None,
    ledger: LedgerAlone = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Show the prices of an auction's node-slots as a map: a row for each node, a column for each slot."""
    if slot is not None and ledger is None:
        raise CommandError("--slot needs a ledger file: give it by --from")

    def has_begun(found: Cell) -> bool:
        return slot is not None and zone in found.zones and _auction(found, zone).present_slot >= slot

    found = present_cell(cell, ledger, bootstrap_servers, topic_prefix, until=has_begun)
    auction = _auction(found, zone)
    market = auction.auctioneer.market
    by_node = auction.auctioneer.prices.of_node_slots().T.tolist()
    rows = {node: by_node[row] for node, row in sorted(auction.fleet.row_of.items())}
    if json:
        fields = {"cell": cell, "zone": zone, "slot": auction.present_slot}
        print_json({**fields, "first_slot": market.first_slot, "price_micros": rows})
        return
    for line in price_map(market.first_slot, rows):
        print_line(line)


def _auction(cell: Cell, name: str) -> AuctionZone:
    if name not in cell.zones:
        raise CommandError(f"cell {cell.name} has no zone {name}: it has {', '.join(cell.zones)}")
    zone = cell.zones[name]
    if not isinstance(zone, AuctionZone):
        raise CommandError(f"zone {name} has no prices of node-slots: it is under another policy")
    return zone
