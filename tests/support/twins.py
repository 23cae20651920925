"""A cell under test, and one that is restored from a snapshot now and then and must decide the same."""

from typing import Any

import msgpack

from schemas.codec import Decision
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from tests.support.cells import Bench
from tests.support.described import check_described
from tests.support.sentences import check_sentences

RESTORED_EVERY = 7
ZONE = "z"


class TwinBench(Bench):
    """The cell's invariants are checked after every event."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = Cell.unpack(self.cell.packed())

    def counted(self) -> tuple[Any, int]:
        """Return what the zone keeps of live jobs, and the bytes that the cell counts for it."""
        raise NotImplementedError

    def handle_entry(self, entry: LedgerEvent) -> list[Decision]:
        decisions = self.cell.handle(entry)
        check_sentences(decisions)
        assert self.twin.handle(entry) == decisions
        assert list(self.cell.broken_invariants()) == []
        self._check_live_bytes()
        if entry.offset % RESTORED_EVERY == 0:
            packed = self.cell.packed()
            assert self.twin.packed() == packed
            self.twin = Cell.unpack(packed)
            assert self.twin.packed() == packed
            assert list(self.twin.broken_invariants()) == []
            assert check_described(self.twin)["zones"] == self.cell.describe()["zones"]
        return decisions

    def _check_live_bytes(self) -> None:
        """Check that live jobs are counted with at least their bytes in a snapshot."""
        taken = len(msgpack.packb(self.cell.jobs.state()["live"]))
        if ZONE not in self.cell.zones:
            return
        assert self.cell.live_jobs_bytes == self.twin.live_jobs_bytes, "no other since it was restored"
        kept, total = self.counted()
        assert taken + len(msgpack.packb(kept)) <= total + 64, "and brackets"
