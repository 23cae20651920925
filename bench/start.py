"""The suite `start`: time until a new user sees a decision, an adapter, and the end of the demo.

Each part runs commands as a new user does, in a home of its own without caches.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from bench.figures import Measurement, Result
from bench.suite import Suite, SuitePart, SuiteRun
from schemas.interpreters import python_command

_LOOK_EVERY_S = 0.05
_STOP_S = 60.0


def millrace(*arguments: str) -> list[str]:
    """Return the command line of a Millrace command."""
    return python_command("-m", "infra.cli", *arguments)


class Home:
    """Data and caches of one new user, empty at first."""

    def __init__(self, folder: Path) -> None:
        """Describe a home in a folder."""
        self.folder = folder

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a command, without those of this process that name a cluster."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        return {
            **kept,
            "MILLRACE_DATA_DIR": str(self.folder / "data"),
            "MILLRACE_CACHE_DIR": str(self.folder / "cache"),
            "NUMBA_CACHE_DIR": str(self.folder / "kernels"),
        }


class Running:
    """A running command, with all processes that it has started."""

    def __init__(self, home: Home, *arguments: str) -> None:
        """Start it, with its output in the home."""
        self.output = home.folder / f"{arguments[0]}.log"
        self.started_s = time.monotonic()
        with self.output.open("w") as output:
            self._process = subprocess.Popen(
                millrace(*arguments),
                env=home.environment,
                cwd=home.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def await_line(self, part: str, limit_s: float) -> None:
        """Wait for a line of its output that contains a text.

        Raises:
            TimeoutError: it does not appear in time.
            RuntimeError: the command ends before.
        """
        while part not in self.output.read_text():
            if self._process.poll() is not None:
                raise RuntimeError(f"ended with status {self._process.returncode}: {self.output.read_text()}")
            if time.monotonic() - self.started_s > limit_s:
                raise TimeoutError(f"no line with {part!r} within {limit_s:g} s: {self.output.read_text()}")
            time.sleep(_LOOK_EVERY_S)

    def cpu_s(self, part: str) -> float:
        """Return the processor time of its running processes whose command lines contain a text (s)."""
        total_s = 0.0
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended just now
                if part in " ".join(process.cmdline()):
                    times = process.cpu_times()
                    total_s += times.user + times.system
        return total_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(_STOP_S)


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy during the block."""
    with subprocess.Popen(python_command("-c", "while True: pass")) as spinning:
        try:
            yield
        finally:
            spinning.kill()


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


def measure_first_decision(_bench: SuiteRun[None, Any, Any]) -> Result:
    """Start a deployment and bid, several times."""
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
    """Return the time until the first bid of a deployment is decided, and the processor time of its worker
    (s)."""
    home.folder.mkdir(exist_ok=True)
    bids = home.folder / "bids.json"
    bids.write_text(json.dumps([_BID]))
    with Running(home, "up", "--no-executors") as up:
        up.await_line("up:", _UP_LIMIT_S)
        submit = millrace("submit", str(bids), "--json")
        subprocess.run(submit, env=home.environment, check=True, stdout=subprocess.DEVNULL)
        passed_s = time.monotonic() - up.started_s
        return passed_s, up.cpu_s(f"-m {_WORKER}")


def measure_demo(bench: SuiteRun[None, Any, Any]) -> Result:
    """Run the demo in an empty home; in the quick form, one of its scenes."""
    scene = "market" if bench.conditions.quick else None
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


SUITE: Suite[None, Any, Any] = Suite(
    parts=(SuitePart("first decision", measure_first_decision), SuitePart("demo", measure_demo)),
    scope=lambda _: None,
)
