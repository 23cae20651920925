"""`millrace forecast`."""

from pathlib import Path
from typing import Annotated

import typer

from infra.commands.options import CellName, Json


def forecast(
    ledger: Annotated[
        Path,
        typer.Argument(
            help="A ledger, as `replay --export` or `simulate --out` writes it.", metavar="LEDGER.jsonl"
        ),
    ],
    cell: CellName = None,
    json: Json = False,
) -> None:
    """Say what prices zones should open at, from what their bids offered: a policy's `opening_prices`."""
    import yaml

    from infra.commands.output import print_json, progress
    from infra.errors import CommandError
    from infra.simulation.price_forecast import forecast_from_ledger

    with progress("finding prices at which there is room for what was asked"):
        zones = forecast_from_ledger(ledger, cell)
    if not zones:
        raise CommandError(f"{ledger}: no bid of the ledger can be judged, so nothing tells prices")
    plain = {
        zone: {"opening_prices": [prices.model_dump(mode="json") for prices in forecasts]}
        for zone, forecasts in zones.items()
    }
    if json:
        print_json(plain)
    else:
        typer.echo(yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=120), nl=False)
