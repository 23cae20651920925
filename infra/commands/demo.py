"""`millrace demo`."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infra.commands.options import CELLS_DIRECTORY, Json, Seed, bounded
from infra.commands.output import console, print_json
from infra.commands.replay import verdict_line
from infra.demo.demo import DemoResult, run_demo
from infra.demo.show import show
from infra.deployment.deployment import interrupted_by_sigterm
from infra.errors import CommandError
from infra.views.tables import adapter_table, summary_table
from infra.workloads.arrivals import arrivals_of
from schemas.extras import require_extra

_TRACE = Path("../shared/traces/jobs_philly.csv.gz")


def demo(
    trace: Annotated[
        Path | None,
        typer.Option(
            help=f"CSV of a real trace to take arrivals from; by default {_TRACE} if it exists.",
            metavar="FILE.csv",
            show_default=False,
        ),
    ] = None,
    bids: Annotated[int, bounded(least=10, most=200, help="Number of bids.")] = 40,
    span_s: Annotated[
        float, bounded("--span", least=10, most=120, help="Seconds over which they arrive.")
    ] = 60.0,
    seed: Seed = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep log, adapters and datasets.")] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="On a broker with TLS, SASL and a principal for each role.")
    ] = False,
    json: Json = False,
) -> None:
    """Run a demo in six minutes: all policies beside each other, a crash, and one verified log."""
    started_s = time.monotonic()
    for extra in ("worker", "solver", "executors"):
        require_extra(extra)
    source = trace or (_TRACE if _TRACE.is_file() else None)
    arrivals = arrivals_of(source, bids, span_s, seed)
    console = Console(highlight=False, soft_wrap=True, stderr=json)
    with interrupted_by_sigterm(), show(console) as stage:
        stage.say("arrivals " + (f"from {source}" if source else f"generated, seed {seed}"))
        result = run_demo(CELLS_DIRECTORY, arrivals, seed, stage, keep, secure, started_s)
    _tell(result, json)


def _tell(result: DemoResult, json: bool) -> None:
    if json:
        print_json(
            {
                **result.summary.as_json(),
                "replay_ok": result.verdict.ok,
                "killed_node": result.market.killed_node,
                "returned": result.market.returned,
                "recovered": result.market.recovered,
                "market_adapters": len(result.market.completed),
                "loan_ok": not result.loan.shortcomings,
                "merging_ok": not result.merging.shortcomings,
                "experts_ok": not result.experts.shortcomings,
                "duration_s": result.duration_s,
            }
        )
    else:
        screen = console()
        screen.print(adapter_table(result.summary))
        screen.print(summary_table("The demo", {"demo": result.summary}))
        market = result.market
        screen.print(f"executor killed: {market.killed_node}; came back and trained: {market.recovered}")
        screen.print(f"server on loan: {result.loan.told}")
        screen.print(f"jobs merged: {result.merging.told}")
        screen.print(f"experts placed: {result.experts.told}")
        screen.print(f"replay: {verdict_line(result.verdict)}")
        screen.print(f"took {result.duration_s:.0f} s")
    if result.shortcomings:
        raise CommandError("; ".join(result.shortcomings))
