"""The chains of cells, followed through the decisions as found."""

from collections.abc import Mapping

from streams.cell.chain import CHAIN_BYTES, CHAIN_START, chained_part, next_link
from streams.replay.demands import Demanded, Link
from streams.replay.heads import Head, HeadCheck

_CHAIN_SUFFIX_BYTES = len(b',"chain":"') + 2 * CHAIN_BYTES + len(b'"}')


class Chains:
    """Follows each cell's chain through the records as they were found, whatever the fold says of them."""

    def __init__(
        self, start_chains: Mapping[tuple[str, int], bytes], kept: HeadCheck, may_end_early: bool
    ) -> None:
        """Begin with no cell.

        Args:
            start_chains: see `StretchFold`.
            kept: is told the chain after each event that was not folded.
            may_end_early: whether the last decisions of a cell may be missing.
        """
        self.broken: dict[str, str] = {}
        """By cell, the first decision whose link does not hold."""
        self.unjoined: dict[str, str] = {}
        """By cell, that the decisions before a kept state do not lead to it."""
        self.heads: dict[str, Head] = {}
        """By cell, its chain after the last event of which all decisions have been followed."""
        self._start_chains = start_chains
        self._kept = kept
        self._may_end_early = may_end_early
        self._short: dict[str, str] = {}
        """By cell, the fault if a decision is found behind a kept state that those before do not lead to."""
        self._ended: set[str] = set()
        self._chains: dict[str, tuple[Link, bytes]] = {}
        """By cell, the event that is followed, and the chain so far."""
        self._perhaps: dict[str, Head] = {}
        """By cell, the head if no decision is missing before it: the next one that is found will tell, where
        the events were not folded."""

    def follow(self, link: Link, awaited: bool) -> None:
        """Take the next event of a cell, with one of its decisions."""
        last, before = self._chains.get(link.cell, (link, CHAIN_START))
        if link.cell not in self._ended and link.offset > last.offset:
            self._pass(last, before)
        if link.cell in self._ended:
            if link.decision is not None and link.decision.found is not None and link.cell in self._short:
                self.unjoined[link.cell] = self._short.pop(link.cell)
            return
        if link.decision is not None and link.decision.found is None:
            self._end(link, None if awaited else link.decision)
            return
        found = b"" if link.decision is None else link.decision.found or b""
        body = found[:-_CHAIN_SUFFIX_BYTES]
        chain = next_link(before, chained_part(link.event), body)
        self._chains[link.cell] = link, chain
        if link.decision is None:
            return
        if found[len(body) :] != b',"chain":"' + chain.hex().encode() + b'"}':
            self._end(link, link.decision)
        elif link.cell in self._perhaps:
            self.heads[link.cell] = self._perhaps.pop(link.cell)

    def close(self) -> None:
        """Count the last event of each cell as followed."""
        for cell, (last, chain) in self._chains.items():
            if cell not in self._ended:
                self._pass(last, chain)
        if not self._may_end_early:
            self.unjoined |= self._short

    def _pass(self, link: Link, chain: bytes) -> None:
        """All decisions of an event that were found have been followed."""
        head = Head(link.offset, chain.hex())
        start = self._start_chains.get((link.cell, link.offset))
        if start not in (None, chain):
            self._short[link.cell] = (
                f"cell {link.cell}: the decisions up to ledger offset {link.offset} do not lead to the state "
                "that is kept of it"
            )
            self._ended.add(link.cell)
        elif link.is_folded or start is not None:
            self._perhaps.pop(link.cell, None)
            self.heads[link.cell] = head
        else:
            self._perhaps[link.cell] = head
        if not link.is_folded:
            self._kept.take(link.cell, link.offset, chain)

    def _end(self, link: Link, broken: Demanded | None) -> None:
        self._ended.add(link.cell)
        if broken is not None:
            self.broken[link.cell] = broken.id
