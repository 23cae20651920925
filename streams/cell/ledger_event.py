"""An event of a cell's ledger."""

from dataclasses import dataclass

from schemas.codec import Envelope


@dataclass(frozen=True)
class LedgerEvent:
    """An event and its place in the ledger, which gives the decisions their ids."""

    offset: int
    envelope: Envelope

    @property
    def canonical(self) -> bytes:
        """Offset, attributes and event as one JSON object. The chain covers this object, and it is one line
        of a ledger file."""
        return b'{"offset":%d,%s' % (self.offset, self.envelope.canonical[1:])
