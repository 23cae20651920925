"""Compilation of kernels, which a worker interprets until their machine code is loaded.

`python -P -m streams.worker.kernels KIND` compiles those of a policy to disk, for a worker that interprets
them meanwhile.
"""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from pkgutil import resolve_name

from schemas.cells import CellConfigured, Zone
from schemas.codec import Envelope
from schemas.installed import KINDS
from schemas.interpreters import python_command
from schemas.service_base import stay_in_background
from solvers.compiled import NotKeptError, change_over, compiling, interpret, loading
from solvers.kernel_cache import COMPILED_WITHIN_S, kernels_folder
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from streams.installation import install_policies

_TIME = "1970-01-01T00:00:00Z"


_LOOK_EVERY_S = 0.5


def warm_up(kinds: Iterable[str] = KINDS) -> None:
    """Fold the warm-up events of some kinds of policies."""
    for events_name in dict.fromkeys(KINDS[kind].warm_up for kind in kinds):
        if events_name is not None:
            _fold(events_name)


def _fold(events_name: str) -> None:
    cells: dict[str, Cell] = {}
    for offset, event in enumerate(resolve_name(events_name)()):
        cell = cells.setdefault(event.cell, Cell(event.cell))
        cell.handle(LedgerEvent(offset, Envelope(f"warm-up-{offset}", "/warm-up", _TIME, event)))


_log = logging.getLogger(__name__)


class Kernels:
    """The kernels of a process, which are interpreted until their machine code is loaded.

    Machine code is compiled by another process, kept on disk and loaded by a thread. The change-over happens
    in the event loop, between two events, for one kind of policy after the other. Cells with a zone that is
    too large for the interpreter wait for it.
    """

    def __init__(self, needed: Callable[[], set[str]], at_once: Collection[str] = ()) -> None:
        """Interpret kernels from now on.

        Args:
            needed: the kinds of policies that decide in this process.
            at_once: the kinds whose kernels are compiled before this returns.
        """
        self._needed = needed
        self._loaded = set(at_once)
        self._change = asyncio.Event()
        warm_up(sorted(at_once))
        interpret()

    async def run(self) -> None:
        """Compile the needed kernels. Never returns."""
        while True:
            for kind in sorted(self._needed() - self._loaded):
                await self._load(kind)
                self._loaded.add(kind)
                self._change.set()
                self._change = asyncio.Event()
                _log.info("kernels of policy %s run as machine code", kind)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def ready_for(self, configuration: CellConfigured) -> None:
        """Wait for machine code if a cell has a zone that is too large for the interpreter."""
        while missing := self._missing(configuration):
            _log.info("cell %s waits until %s runs as machine code", configuration.cell, ", ".join(missing))
            await self._change.wait()

    def _missing(self, configuration: CellConfigured) -> list[str]:
        return sorted(
            {zone.policy.kind for zone in configuration.zones if awaits_kernels(zone)} - self._loaded
        )

    async def _load(self, kind: str) -> None:
        if not await asyncio.to_thread(_is_loaded, kind):
            await _compile(kind)
            if not await asyncio.to_thread(_is_loaded, kind):
                _log.warning(
                    "kernels of policy %s cannot be kept in %s and are compiled at each start: "
                    "check its permissions and free space, or set NUMBA_CACHE_DIR to another folder",
                    *(kind, kernels_folder()),
                )
                await asyncio.to_thread(_compile_here, kind)
        change_over()


def _is_loaded(kind: str) -> bool:
    try:
        with loading():
            warm_up([kind])
    except NotKeptError:
        return False
    return True


def _compile_here(kind: str) -> None:
    with compiling():
        warm_up([kind])


def awaits_kernels(zone: Zone) -> bool:
    """Return whether a zone is too large for interpreted kernels."""
    rule = KINDS[zone.policy.kind].awaits_kernels
    return rule is not None and bool(resolve_name(rule)(zone))


async def _compile(kind: str) -> None:
    """Compile the kernels of a policy to disk by another process, which ends with this one."""
    command = python_command("-m", "streams.worker.kernels", kind)
    compiler = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
    try:
        status = await asyncio.wait_for(compiler.wait(), COMPILED_WITHIN_S)
    except TimeoutError:
        compiler.kill()
        status = await compiler.wait()
    if status:
        _log.warning("the process that compiles the kernels of policy %s ended with status %d", kind, status)


if __name__ == "__main__":
    stay_in_background()
    install_policies()
    warm_up(sys.argv[1:])
