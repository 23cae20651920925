"""Decisions interpreted, compiled, and with a change from one to the other, in a process of their own."""

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from schemas.codec import decode_event_line
from solvers.compiled import Kernel, change_over, compiling, interpret
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from streams.worker.kernels import warm_up
from tests.streams.elastic.test_histories import History as ElasticHistory
from tests.streams.experts.test_histories import KNOWN, PATIENCES_S
from tests.streams.experts.test_histories import History as ExpertsHistory
from tests.streams.golden.ledger import LEDGER
from tests.streams.outcomes.table import table
from tests.support.examples import LONG, seeds

Mode = Literal["interpreted", "compiled", "changing"]
_STEPS = 80
_POLLUX_STEPS = 30
"""Few: interpreted, a genetic search takes two seconds."""
_TABLES = ("auction-default", "auction-published") if LONG else ()


class Decided(NamedTuple):
    """Histories that a process has decided."""

    chains: dict[str, str]
    """By history, the chain of a cell that decided it, or the digest of a policy's table."""
    interpreted: tuple[int, int]
    """Calls of kernels that were interpreted before the middle of the histories, and after it."""


def decided(mode: Mode) -> Decided:
    """Decide all histories in a process.

    In mode "changing" the process changes from the interpreter to machine code in the middle of all
    histories; the tables follow.
    """
    install = "from streams.installation import install_policies; install_policies()"
    program = f"{install}; from {__name__} import report; report({mode!r})"
    ran = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    chains, (before, after) = json.loads(ran.stdout)
    return Decided(chains, (before, after))


def report(mode: Mode) -> None:
    """Print what `decided` returns."""
    calls = itertools.count()
    _count_interpreted(calls)
    if mode != "compiled":
        interpret()
    if mode == "changing":
        with compiling():
            warm_up()
    histories = dict(_histories())
    for _, steps in histories.values():
        for _ in itertools.islice(steps, _STEPS):
            pass
    before = next(calls)
    change_over()
    for _, steps in histories.values():
        for _ in steps:
            pass
    found = {name: cell.chain.hex() for name, (cell, _) in histories.items()}
    found |= {name: blake2b(table(name).encode()).hexdigest() for name in _TABLES}
    print(json.dumps((found, (before, next(calls) - before - 1))))  # noqa: T201


def _count_interpreted(calls: "itertools.count[int]") -> None:
    run = Kernel._run_interpreted

    def counted(self: Kernel, *args: Any) -> Any:
        next(calls)
        return run(self, *args)

    Kernel._run_interpreted = counted


def _histories() -> Iterator[tuple[str, tuple[Cell, Iterator[None]]]]:
    """Each cell, and an iterator that makes a step of its history at each turn."""
    golden = Cell("c")
    yield "golden", (golden, _golden(golden))
    for seed in seeds(3):
        lyra = ElasticHistory(random.Random(seed), servers=4, scheme="lyra")
        yield f"lyra {seed}", (lyra.bench.cell, _steps(lyra, 2 * _STEPS))
        experts = ExpertsHistory(random.Random(KNOWN[seed]), PATIENCES_S[1])
        yield f"experts {seed}", (experts.bench.cell, _steps(experts, 2 * _STEPS))
    pollux = ElasticHistory(random.Random(1), servers=4, scheme="pollux")
    yield "pollux", (pollux.bench.cell, _steps(pollux, _POLLUX_STEPS))


def _golden(cell: Cell) -> Iterator[None]:
    for offset, line in enumerate(LEDGER.read_bytes().splitlines()):
        yield
        cell.handle(LedgerEvent(offset, decode_event_line(line)))


def _steps(history: ElasticHistory | ExpertsHistory, steps: int) -> Iterator[None]:
    for _ in range(steps):
        history.step()
        yield
