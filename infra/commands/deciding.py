"""Commands that decide in their own process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core.event import Event, Listener, install_listener

from infra.commands.output import remark
from infra.progress import bar


class _Notice(Listener):
    """Says once that kernels are being compiled."""

    def __init__(self) -> None:
        self._is_said = False

    def on_start(self, _event: Event) -> None:
        if not self._is_said:
            self._is_said = True
            remark("millrace: kernels are compiled first, once for this version of Millrace: a minute or two")

    def on_end(self, _event: Event) -> None:
        """Others follow."""


@contextmanager
def deciding(what: str) -> Iterator[Callable[[float], None]]:
    """Show a `bar` for the length of the block, and say so if kernels are compiled in it."""
    with bar(what) as done, install_listener("numba:compile", _Notice()):
        yield done
