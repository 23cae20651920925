"""The demo: its first adapter, its end, and what it should not show."""

import json
import subprocess
import tempfile
from pathlib import Path

from bench.figures import Measurement, Result
from bench.start.commands import Home, millrace


def measure_demo(scene: str | None) -> Result:
    """Run the demo in an empty home; all of it, or one scene."""
    which = "the demo" if scene is None else f"its scene `{scene}` alone"
    with tempfile.TemporaryDirectory(prefix="millrace-start-") as folder:
        home = Home(Path(folder))
        options = () if scene is None else ("--scene", scene)
        command = millrace("demo", "--json", *options)
        ran = subprocess.run(
            command, env=home.environment, cwd=home.folder, check=True, stdout=subprocess.PIPE, text=True
        )
    shown = json.loads(ran.stdout)
    others = len(shown["refunds_beside_the_kill"])
    return Result(
        (
            Measurement("cold_first_adapter_s", shown["first_adapter_s"], f"{which}, nothing cached"),
            Measurement("demo_s", shown["duration_s"], f"{which}, nothing cached"),
            Measurement("demo_refunds", others, f"jobs in {which} that the killed node had no part in"),
        )
    )
