"""Commands that decide in their own process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core.event import Event, Listener, install_listener

from infra.commands.output import remark
from infra.progress import bar
from solvers.compiled import interpreting
from solvers.kernel_cache import keeping_fault

MOST_INTERPRETED_ELEMENTS = 1_000_000
"""Numbers that kernels are given before they are compiled: the interpreter takes some seconds for them."""
_ONCE = "once for this version of Millrace"


class _Notice(Listener):
    """Says once that kernels are being compiled."""

    def __init__(self) -> None:
        self._is_said = False

    def on_start(self, _event: Event) -> None:
        if not self._is_said:
            self._is_said = True
            fault = keeping_fault()
            how_often = f"as in each run, since they cannot be kept in {fault}" if fault else _ONCE
            remark(f"millrace: kernels are compiled, which takes a minute or two, {how_often}")

    def on_end(self, _event: Event) -> None:
        """Others follow."""


@contextmanager
def deciding(what: str) -> Iterator[Callable[[float], None]]:
    """Show a `bar` for the length of the block, and say so if kernels are compiled in it: little is decided
    without them."""
    with (
        bar(what) as done,
        interpreting(MOST_INTERPRETED_ELEMENTS),
        install_listener("numba:compile", _Notice()),
    ):
        yield done
