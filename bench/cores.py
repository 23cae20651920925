"""How many runs may be beside each other, and one kept to a core."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


def jobs_at_once(wanted: int, console: Console) -> int:
    """So many runs beside each other, but no more than there are cores for; says so where that is fewer."""
    usable = len(usable_cores())
    if wanted > usable:
        console.print(f"--jobs {wanted} is more than the usable cores: {usable} at a time", markup=False)
    return min(wanted, usable)


def usable_cores() -> list[int]:
    """Cores that this process may run on; where no affinity can be asked for, as many as there are."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread, and all that it starts, to one core meanwhile: solvers take all that they may use."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
