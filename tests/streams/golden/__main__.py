"""`make golden`: record the ledger and its chain again, after an intended change of decisions."""

import random

from schemas.codec import Envelope
from streams.installation import install_policies
from tests.streams.golden.ledger import CHAIN, LEDGER, STATE, fold, state_of
from tests.support.cells import configuration
from tests.support.histories import recorded

install_policies()
SEED = 457
"""Chosen so that every kind of rejection, replanning, refund and withdrawal is among some 300 events."""
BIDS = 50

events = recorded(random.Random(SEED), configuration(), BIDS)
lines = [Envelope(f"e{offset}", "golden", "", event).canonical for offset, event in enumerate(events)]
LEDGER.write_bytes(b"".join(line + b"\n" for line in lines))
cell, _ = fold()
CHAIN.write_text(cell.chain.hex() + "\n")
STATE.write_text(state_of(cell))
