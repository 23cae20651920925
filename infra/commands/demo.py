"""`millrace demo`."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from infra.commands.options import CELLS_DIRECTORY, Json, Seed, bounded
from infra.commands.output import print_json, remark
from infra.commands.replay import verdict_line
from infra.demo.demo import (
    LEAST_PATIENCE_S,
    PATIENCE_S,
    DemoRequest,
    DemoResult,
    SceneName,
    run_demo,
)
from infra.deployment.deployment import interrupted_by_sigterm
from infra.errors import CommandError
from infra.progress import Progress
from infra.workloads.arrivals import arrivals_of
from schemas.errors import require_extra
from solvers.compiled import interpreting
from streams.replay.files import LEDGER_FILE


def demo(
    scene: Annotated[
        SceneName | None,
        typer.Option(help="Play this scene alone; by default the market first, and then the others."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="CSV of a real trace to take arrivals from; by default they are generated.",
            metavar="FILE.csv",
            show_default=False,
        ),
    ] = None,
    bids: Annotated[int, bounded(least=1, most=200, help="Number of bids.")] = 10,
    span_s: Annotated[
        float, bounded("--span", least=1, most=120, help="Seconds over which they arrive.")
    ] = 10.0,
    seed: Seed = 0,
    secure: Annotated[
        bool, typer.Option("--secure", help="On a broker with TLS, SASL and a principal for each role.")
    ] = False,
    patience_s: Annotated[
        float,
        bounded(
            "--patience",
            least=LEAST_PATIENCE_S,
            most=86_400,
            help="Seconds without any progress after which it gives up; more on a slow machine.",
        ),
    ] = PATIENCE_S,
    json: Json = False,
) -> None:
    """Run a demo: bids, a crash, a verified log; then a loan, a merge, and experts that move."""
    started_s = time.monotonic()
    for extra in ("worker", "solver", "executors"):
        require_extra(extra)
    arrivals = arrivals_of(trace, bids, span_s, seed)
    scenes = get_args(SceneName) if scene is None else (scene,)
    console = Console(highlight=False, stderr=json)
    try:
        # So few events need no kernels, and those of the worker may still be compiling.
        with interrupted_by_sigterm(), interpreting(), Progress(console, timed=True).shown() as progress:
            progress.show("arrivals " + (f"from {trace}" if trace else f"generated, seed {seed}"))
            request = DemoRequest(scenes, arrivals, seed, secure, patience_s)
            result = run_demo(CELLS_DIRECTORY, request, progress, started_s)
    except KeyboardInterrupt:
        remark("millrace: the demo is interrupted, and nothing of it runs any more")
        raise
    if json:
        print_json(_fields(result))
    else:
        _show(result, Progress(console))
    if result.shortcomings:
        raise CommandError("; ".join(result.shortcomings))


def _show(result: DemoResult, screen: Progress) -> None:
    """Print the results, the folders of the files, and the next commands."""
    screen.show("")
    for name, scene in result.scenes.items():
        screen.show(f"{name}: {scene.summary}")
    screen.show(f"log: {verdict_line(result.verdict)}")
    folders, millrace = result.folders, _as_typed()
    screen.show("")
    screen.show(
        f"It took {result.duration_s:.0f} s. Adapters are in {folders.adapters}, next to the log; "
        "the next demo replaces them."
    )
    for adapter in result.summary.adapters[-1:]:
        screen.show("Why and how one of them was trained:")
        screen.command(f"{millrace} explain {adapter.job_id} --from {folders.root / LEDGER_FILE}")
    screen.show("A cell of your own, until Ctrl-C, and bids for it from another terminal:")
    screen.command(f"{millrace} up")
    screen.command(f"{millrace} submit {result.bids}")


def _as_typed() -> str:
    """Return the command `millrace` as it can be typed in this folder."""
    script = Path(sys.argv[0])
    if shutil.which("millrace") or script.name != "millrace":
        return "millrace"
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)


def _fields(result: DemoResult) -> dict[str, object]:
    fields = {
        **result.summary.as_json(),
        "replay_ok": result.verdict.ok,
        "scenes": {name: not scene.shortcomings for name, scene in result.scenes.items()},
        "folder": str(result.folders.root),
        "bids": str(result.bids),
        "first_decision_s": result.first_decision_s,
        "first_adapter_s": result.first_adapter_s,
        "duration_s": result.duration_s,
    }
    market = result.market
    if market is None:
        return fields
    return {
        **fields,
        "killed_node": market.killed_node,
        "recovered": market.recovered,
        "saved": market.saved,
        "market_adapters": len(market.completed),
        "refunds_beside_the_kill": sorted(market.lost),
        "replanned_beside_the_kill": sorted(market.slipped),
    }
