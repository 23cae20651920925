"""Heads of cells' chains: a saved head reveals later that a whole log was rewritten or truncated."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_KEPT = re.compile(
    r"(?:(?P<cell>[A-Za-z0-9][A-Za-z0-9._-]{0,127})=)?(?P<offset>[0-9]{1,18}):(?P<chain>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class Head:
    """Chain of a cell after one event: it proves every byte of the log up to there."""

    offset: int
    """Ledger offset of the event."""
    chain: str
    """Chain in hexadecimal digits."""

    def __str__(self) -> str:
        return f"{self.offset}:{self.chain}"


@dataclass(frozen=True)
class KeptHead:
    """Saved head, to be found again in a log."""

    cell: str | None
    """Cell of the head; None for the only cell of the log."""
    head: Head

    @classmethod
    def parse(cls, text: str) -> "KeptHead":
        """Read `OFFSET:CHAIN` or `CELL=OFFSET:CHAIN`.

        Raises:
            ValueError: the text has another form.
        """
        found = _KEPT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text[:200]!r} is no head: expected OFFSET:CHAIN or CELL=OFFSET:CHAIN, with 64 hexadecimal "
                "digits, as replay prints it"
            )
        return cls(found["cell"], Head(int(found["offset"]), found["chain"]))


class HeadCheck:
    """Check for kept heads in a log while it is folded."""

    def __init__(self, kept: Iterable[KeptHead]) -> None:
        self._kept = tuple(kept)
        self._offsets = {each.head.offset for each in self._kept}
        self._found: dict[tuple[str, int], str] = {}
        self._last: dict[str, tuple[int, bytes]] = {}

    def check(self, cell: str, offset: int, chain: bytes) -> None:
        """Compare the chain of a cell after an event."""
        self._last[cell] = max(self._last.get(cell, (-1, b"")), (offset, chain))
        if offset in self._offsets:
            self._found[cell, offset] = chain.hex()

    def heads(self) -> dict[str, Head]:
        """Return the last head of each cell."""
        return {cell: Head(offset, chain.hex()) for cell, (offset, chain) in sorted(self._last.items())}

    def faults(self) -> tuple[str, ...]:
        """Return a line for each saved head that the folded log does not contain."""
        return tuple(fault for kept in self._kept if (fault := self._fault(kept)) is not None)

    def _fault(self, kept: KeptHead) -> str | None:
        offset, chain = kept.head.offset, kept.head.chain
        if kept.cell is None and len(self._last) > 1:
            cells = ", ".join(sorted(self._last))
            return f"head {offset}:{chain[:16]}… is of one of the cells {cells}: name one, as CELL={offset}:…"
        cell = kept.cell if kept.cell is not None else next(iter(self._last), None)
        if cell is None or cell not in self._last:
            of_cell = "" if cell is None else f" of cell {cell}"
            return f"the ledger has no event{of_cell}, and a head was kept of one at offset {offset}"
        found = self._found.get((cell, offset))
        if found == chain:
            return None
        if found is not None:
            return (
                f"the chain of cell {cell} at offset {offset} is {found}, that of the head that was kept is "
                f"{chain}: the log up to there is another one"
            )
        last, _ = self._last[cell]
        if last < offset:
            return (
                f"the ledger of cell {cell} ends at offset {last}, and a head was kept of offset {offset}: "
                "it is cut, or an earlier copy"
            )
        return f"the ledger of cell {cell} has no event at offset {offset}, of which a head was kept"


def head_lines(heads: Mapping[str, Head]) -> list[str]:
    """Return heads by cell, in the form that `KeptHead.parse` reads."""
    return [f"{cell}={head}" for cell, head in sorted(heads.items())]
