"""A second version of the rules, and logs that go from the first to it.

As a program, it is a worker with the rules that `MILLRACE_TEST_RULES` names: `first`, `both` or `second`.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

from schemas.auction.bids import bid_micros_of
from schemas.base import Event
from schemas.codec import Envelope
from schemas.decisions import JobRejected
from schemas.installed import KINDS
from schemas.rules import RulesAdopted
from streams.cell.jobs import Job
from streams.cell.ledger_event import LedgerEvent
from streams.cell.rules import RULES, RuleBook, Rules, State, state_digest
from streams.cell.state_machine import SNAPSHOT_VERSION, Cell
from streams.installation import install_policies
from streams.policies.auction.zone import AuctionZone
from streams.policies.policy import ZoneContext
from streams.worker.worker import run_worker

FLOOR_MICROS = 8_000


class FlooredZone(AuctionZone):
    """The auction with a mended rule: bids below a floor are rejected, and counted."""

    def __init__(self, context: ZoneContext) -> None:
        super().__init__(context)
        self._refused = 0

    def submitted(self, job: Job) -> None:
        if bid_micros_of(job) >= FLOOR_MICROS:
            super().submitted(job)
            return
        self._refused += 1
        self._outcomes.add(
            JobRejected(
                job_id=job.job_id,
                user=job.user,
                zone=job.zone,
                reason="price_not_below_bid",
                facts={"refused_bids": self._refused, "floor_micros": FLOOR_MICROS},
            )
        )

    def state(self) -> dict[str, Any]:
        return {**super().state(), "refused": self._refused}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._refused = state["refused"]


def count_from_zero(state: State) -> State:
    """Return a state of the second rules from one of the first."""
    return {**state, "zones": {id: {**zone, "refused": 0} for id, zone in state["zones"].items()}}


install_policies()
FIRST = RULES
FLOORED = replace(KINDS["pdftsp"], zone="tests.support.rules:FlooredZone")
SECOND_RULES = Rules(2, "0.2.0", {"pdftsp": FLOORED}, count_from_zero)
BOTH = RuleBook((RULES.newest, SECOND_RULES))
SECOND = RuleBook((SECOND_RULES,), {1: "0.1.0"})
"""Rule book of a program that has dropped the first rules."""


@dataclass
class TwoStretches:
    """A log whose rules change once."""

    ledger: list[LedgerEvent]
    decisions: list[bytes]
    states: dict[str, bytes]
    """Packed, by digest."""
    adopted_offset: int
    """Ledger offset of the adoption."""

    def find_state(self, _cell: str, digest: str) -> bytes | None:
        return self.states.get(digest)


def adoption(cell: Cell, **changes: Any) -> RulesAdopted:
    """Return the adoption of the second rules at the cell's position."""
    fields = {
        "cell": cell.name,
        "rules": 2,
        "previous_rules": 1,
        "release": "0.2.0",
        "state_offset": max(cell.offset, 0),
        "state_digest": state_digest(cell.packed()),
        "state_layout": SNAPSHOT_VERSION,
    }
    return RulesAdopted(**fields | changes)


def entry(offset: int, event: Event) -> LedgerEvent:
    return LedgerEvent(offset, Envelope(f"e{offset}", "tests", "2026-01-01T00:00:00Z", event))


def two_stretches(before: list[Event], after: list[Event], **changes: Any) -> TwoStretches:
    """The first events of one cell under the first rules, and the others under the second.

    Args:
        changes: fields of the adoption that differ.
    """
    cell = Cell(before[0].cell, BOTH)
    ledger: list[LedgerEvent] = []
    decisions: list[bytes] = []

    def feed(event: Event) -> None:
        ledger.append(entry(len(ledger), event))
        decisions.extend(decision.canonical for decision in cell.handle(ledger[-1]))

    for event in before:
        feed(event)
    packed = cell.packed()
    feed(adoption(cell, **changes))
    for event in after:
        feed(event)
    return TwoStretches(ledger, decisions, {state_digest(packed): packed}, len(before))


if __name__ == "__main__":
    run_worker(book={"first": FIRST, "both": BOTH, "second": SECOND}[os.environ["MILLRACE_TEST_RULES"]])
