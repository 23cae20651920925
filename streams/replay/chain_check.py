"""Chains of cells, followed through the found decisions."""

from collections.abc import Mapping

from streams.cell.chain import CHAIN_BYTES, CHAIN_START, chained_part, next_link
from streams.replay.demanded_decisions import Demanded, Link
from streams.replay.heads import Head, HeadCheck

_CHAIN_SUFFIX_BYTES = len(b',"chain":"') + 2 * CHAIN_BYTES + len(b'"}')


class Chains:
    """Check of each cell's chain through the found records, independent of the fold."""

    def __init__(
        self, start_chains: Mapping[tuple[str, int], bytes], kept: HeadCheck, may_end_early: bool
    ) -> None:
        """Start without cells.

        Args:
            start_chains: see `StretchFold`.
            kept: receives the chain after each event that was not folded.
            may_end_early: whether the last decisions of a cell may be missing.
        """
        self.broken: dict[str, str] = {}
        """First decision with a broken link, by cell."""
        self.unjoined: dict[str, str] = {}
        """Fault that the decisions before a kept state do not lead to it, by cell."""
        self.heads: dict[str, Head] = {}
        """Chain after the last event whose decisions have all been followed, by cell."""
        self._start_chains = start_chains
        self._kept = kept
        self._may_end_early = may_end_early
        self._short: dict[str, str] = {}
        """Fault by cell. It applies if a decision is found after a kept state that earlier decisions do not
        reach."""
        self._ended: set[str] = set()
        self._chains: dict[str, tuple[Link, bytes]] = {}
        """Present event and the chain so far, by cell."""
        self._perhaps: dict[str, Head] = {}
        """Head if no decision is missing before it, by cell: for events that were not folded, the next found
        decision shows this."""

    def follow(self, link: Link, awaited: bool) -> None:
        """Follow the next event of a cell, with one of its decisions."""
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
        """Complete an event whose found decisions have all been followed."""
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
            self._kept.check(link.cell, link.offset, chain)

    def _end(self, link: Link, broken: Demanded | None) -> None:
        self._ended.add(link.cell)
        if broken is not None:
            self.broken[link.cell] = broken.id
