"""`millrace forecast`."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from infra.commands.options import CellName, ExpectHead, Json, kept_heads
from infra.commands.output import print_json, progress, remark, say
from infra.commands.what_if import check_ledger
from infra.errors import CommandError
from infra.simulation.auction.price_forecast import bases_from_ledger, forecast_from_ledger
from infra.simulation.what_if import ledger_configuration
from infra.views.auction.offers import describe_basis


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
    own = ledger_configuration(ledger, cell)
    with progress("folding the ledger again"):
        head, notes = check_ledger(ledger, own.cell, kept_heads(expect_head, cell))
    for note in notes:
        remark(note)
    with progress("finding prices at which there is room for what was asked"):
        bases = bases_from_ledger(ledger, cell)
        forecasts = forecast_from_ledger(ledger, cell, left_out=bases)
    if not bases and not forecasts:
        raise CommandError(f"{ledger}: no bid of the ledger can be judged, so there is no basis for prices")
    plain = {
        zone: {"basis": bases[zone].model_dump(mode="json")}
        if zone in bases
        else {"opening_prices": [prices.model_dump(mode="json") for prices in forecasts[zone]]}
        for zone in sorted({*bases, *forecasts})
    }
    if json:
        print_json({"cell": own.cell, "head": str(head), "zones": plain})
    else:
        say(f"# from the ledger with head {own.cell}={head}")
        for zone, basis in bases.items():
            say(f"# {zone} finds its prices itself, from {describe_basis(basis)}")
        typer.echo(yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=120), nl=False)
