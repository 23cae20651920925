"""The first decision: how long after `millrace up`, with empty caches, warm ones, and one core busy."""

import json
import subprocess
import tempfile
import time
from pathlib import Path

from bench.figures import Measurement, Result
from bench.start.commands import Home, Running, busy_core, millrace

_BID = {
    "cell": "home",
    "user": "newcomer",
    "zone": "tiny",
    "workload": {
        "kind": "lora",
        "work_samples": 2_000,
        "dataset": {"path": "poems.jsonl", "samples": 500},
        "hyperparameters": {"rank": 8, "batch_size": 4, "sequence_length": 64},
    },
    "terms": {"kind": "bid", "bid": 100, "deadline_in_s": 1_800},
}
_UP_LIMIT_S = 600.0
_WORKER = "streams.worker"
"""Part of the command lines of the worker and of the process that compiles for it."""


def measure_first_decision() -> Result:
    """Start a deployment and bid, again and again."""
    with tempfile.TemporaryDirectory(prefix="millrace-start-") as folder:
        idle, busy = Home(Path(folder, "idle")), Home(Path(folder, "busy"))
        cold_s, cpu_s = _first_decision(idle)
        warm_s, _ = _first_decision(idle)
        with busy_core():
            busy_s, _ = _first_decision(busy)
            busy_warm_s, _ = _first_decision(busy)
    note = "from `millrace up --no-executors` to the answer of `millrace submit`"
    return Result(
        (
            Measurement("cold_first_decision_s", cold_s, f"{note}, nothing cached, Kafka's jars neither"),
            Measurement("warm_first_decision_s", warm_s, f"{note}, started for the second time"),
            Measurement("cold_first_decision_busy_s", busy_s, f"{note}, as cold, one core kept busy"),
            Measurement("warm_first_decision_busy_s", busy_warm_s, f"{note}, as warm, one core kept busy"),
            Measurement(
                "cold_compile_cpu_s",
                cpu_s,
                "processor time of the worker and of the process that compiles its kernels, until then, cold",
            ),
        )
    )


def _first_decision(home: Home) -> tuple[float, float]:
    """Seconds until the first bid of a deployment is decided, and what its worker took of the processor."""
    home.folder.mkdir(exist_ok=True)
    bids = home.folder / "bids.json"
    bids.write_text(json.dumps([_BID]))
    with Running(home, "up", "--no-executors") as up:
        up.await_line("up:", _UP_LIMIT_S)
        submit = millrace("submit", str(bids), "--json")
        subprocess.run(submit, env=home.environment, check=True, stdout=subprocess.DEVNULL)
        passed_s = time.monotonic() - up.started_s
        return passed_s, up.cpu_s(f"-m {_WORKER}")
