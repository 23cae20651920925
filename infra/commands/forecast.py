"""`millrace forecast`."""

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from infra.commands.deciding import deciding
from infra.commands.options import CellName, ExpectHead, Json, kept_heads
from infra.commands.output import print_json, print_line, remark
from infra.commands.what_if import check_ledger
from infra.errors import CommandError
from infra.simulation.auction.price_forecast import forecast_from_ledger, own_forecasts
from infra.simulation.what_if import ledger_configuration
from infra.views.auction.basis import describe_basis


def forecast(
    ledger: Annotated[
        Path,
        typer.Argument(
            help="A ledger, as `replay --export` or `simulate --out` writes it.", metavar="LEDGER.jsonl"
        ),
    ],
    expect_head: ExpectHead = None,
    cell: CellName = None,
    json: Json = False,
) -> None:
    """Show what the zones of a ledger begin the next day with: prices that they found, or a forecast."""
    name = ledger_configuration(ledger, cell).cell
    with deciding("replaying the ledger"):
        head, notes = check_ledger(ledger, name, kept_heads(expect_head, cell))
    for note in notes:
        remark(note)
    with deciding("finding prices at which there is room for what was asked"):
        own = own_forecasts(ledger, cell)
        forecasts = forecast_from_ledger(ledger, cell, left_out=own)
    if not own and not forecasts:
        raise CommandError(f"{ledger}: no bid of the ledger can be planned, so there is no basis for prices")
    zones: dict[str, dict[str, Any]] = {
        zone: {"opening_prices": [prices.model_dump(mode="json") for prices in opening]}
        for zone, opening in forecasts.items()
    }
    for zone, (basis, expected_by_hour) in own.items():
        zones[zone] = {"basis": basis.model_dump(mode="json")}
        if expected_by_hour is not None:
            zones[zone]["expected_by_hour"] = list(expected_by_hour)
    zones = dict(sorted(zones.items()))
    if json:
        print_json({"cell": name, "head": str(head), "zones": zones})
    else:
        print_line(f"# from the ledger with head {name}={head}")
        for zone, (basis, expected_by_hour) in own.items():
            print_line(f"# {zone} finds its prices itself, from {describe_basis(basis, expected_by_hour)}")
        typer.echo(yaml.safe_dump(zones, sort_keys=False, default_flow_style=None, width=120), nl=False)
