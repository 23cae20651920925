"""For which types the kernels are there in a fresh process, after a warm-up and after trials."""

import importlib
import json
import pkgutil
import subprocess
import sys
import time
from typing import Any

from numba.core.dispatcher import Dispatcher

import solvers


def after_warm_up(module: str, *measures: str) -> dict[str, Any]:
    """Return the signatures compiled in a process of its own; a shared process has long compiled all.

    Args:
        module: whose `warm_up` is called first.
        measures: of `bench.auction.trials`, made of a day of the quick form after it.

    Returns:
        `warmed`: what the kernels are there for after the warm-up; `added`: by measure, what more they are
        there for after it; `again_s`: what a second warm-up takes.
    """
    install = "from streams.installation import install_policies; install_policies()"
    program = f"{install}; from {__name__} import report; report({module!r}, {measures!r})"
    ran = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ran.stdout)


def report(module: str, measures: tuple[str, ...]) -> None:
    """Print what `after_warm_up` returns."""

    from bench.auction.scope import quick
    from bench.auction.trials import MEASURES

    warm_up = importlib.import_module(module).warm_up
    warm_up()
    warmed = known = signatures()
    start_s = time.perf_counter()
    warm_up()
    again_s = time.perf_counter() - start_s
    setting = quick(1).high
    added = {}
    for name in measures:
        MEASURES[name](setting, 1)
        added[name] = sorted(signatures() - known)
        known = signatures()
    print(json.dumps({"warmed": sorted(warmed), "added": added, "again_s": again_s}))  # noqa: T201


def signatures() -> set[str]:
    """Return the signatures of every kernel of the solvers."""
    found = set()
    for module in pkgutil.walk_packages(solvers.__path__, "solvers."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Dispatcher):
                found |= {f"{name}{signature}" for signature in value.signatures}
    return found
