"""Commands that decide in their own process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from numba.core.event import Event, Listener, install_listener

from infra.commands.options import target_of
from infra.commands.output import remark
from infra.progress import bar
from solvers.compiled import interpreting
from solvers.kernel_cache import keeping_fault
from streams.cell.state_machine import Cell
from streams.replay.present import cell_of_file, cell_on_kafka

MOST_INTERPRETED_ELEMENTS = 1_000_000
"""Numbers that kernels process before they are compiled: the interpreter needs some seconds for them."""
_ONCE = "once for this version of Millrace"


class _Notice(Listener):
    """Prints one notice that kernels are being compiled."""

    def __init__(self) -> None:
        self._is_printed = False

    def on_start(self, _event: Event) -> None:
        if not self._is_printed:
            self._is_printed = True
            fault = keeping_fault()
            how_often = f"as in each run, since they cannot be kept in {fault}" if fault else _ONCE
            remark(f"millrace: kernels are compiled, which takes a minute or two, {how_often}")

    def on_end(self, _event: Event) -> None:
        """Do nothing, as more compilations follow."""


@contextmanager
def deciding(task: str) -> Iterator[Callable[[float], None]]:
    """Show a `bar` within the block, and print a notice if kernels are compiled in it. A small number of
    decisions is computed without kernels."""
    with (
        bar(task) as done,
        interpreting(MOST_INTERPRETED_ELEMENTS),
        install_listener("numba:compile", _Notice()),
    ):
        yield done


def present_cell(
    name: str,
    ledger: Path | None,
    bootstrap_servers: str | None,
    topic_prefix: str,
    until: Callable[[Cell], bool] = lambda _cell: False,
) -> Cell:
    """Fold a cell from Kafka, or from a ledger file if there is one: to the end, or, from a file, until it is
    in some state."""
    with deciding("folding the ledger"):
        if ledger is not None:
            return cell_of_file(ledger, name, until)
        target = target_of(bootstrap_servers, topic_prefix, "auditor")
        return cell_on_kafka(target.kafka, topic_prefix, name)
