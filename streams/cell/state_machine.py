"""A cell: the state machine that turns a ledger of events into a chained log of decisions.

`Cell.handle` depends only on the cell's state and the event: no clock, no I/O, no randomness. The same ledger
gives the same bytes on any machine.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.codec import Decision, Envelope
from schemas.decisions import CellAccepted, EventIgnored
from schemas.jobs import JobQuoteRequested, JobSubmitted
from schemas.rules import RulesAdopted
from streams.cell.chain import CHAIN_START, chained_part, next_link
from streams.cell.configured import ConfiguredCell, refused
from streams.cell.jobs import JobRegister
from streams.cell.layout import Layout
from streams.cell.ledger_event import LedgerEvent
from streams.cell.live_bytes import LiveBytes
from streams.cell.nodes import NodePool
from streams.cell.packing import pack, unpack
from streams.cell.places import FaultBoundary, note
from streams.cell.recovery import Kept, fault_of, is_of_the_machine, on_a_fresh_stack, traced
from streams.cell.rules import (
    RULES,
    MissingRulesError,
    RuleBook,
    Rules,
    State,
    WrongStateError,
    adoption_holds,
    state_digest,
)
from streams.policies.policy import ZonePolicy

SNAPSHOT_VERSION = 41
"""Version of the layout of a packed state. The rules have a version of their own."""
_NO_JOBS = JobRegister(0, LiveBytes(0))


@dataclass(frozen=True)
class _ForeignState:
    """The state of a cell whose rules are missing: it can only adopt others."""

    packed: bytes
    nodes: NodePool
    """Names of the nodes; their states are in `packed`."""


class Cell:
    """The state of one cell, folded from its ledger."""

    def __init__(self, name: str, book: RuleBook = RULES) -> None:
        """Begin with an empty cell. `book` has the rules that it may adopt."""
        self.name = name
        self.rules: int | None = None
        """Version of the rules that decide; None before the configuration, which names the first."""
        self.offset = -1
        """Ledger offset of the last event folded in."""
        self.chain = CHAIN_START
        self._book = book
        self._configured: ConfiguredCell | None = None
        """None before the configuration, and where `book` lacks the rules."""
        self._foreign: _ForeignState | None = None
        self.last_fault: str | None = None
        """Traceback of the last event that raised and changed nothing, for a log."""
        self._kept = Kept()

    def handle(self, event: LedgerEvent) -> list[Decision]:
        """Fold one event and return the decisions on it, in order.

        An event that raises is folded again, from a restored state. If it raises again, it changes nothing,
        and the only decision is `EventFaulted`.

        Raises:
            ValueError: the event's offset is not after the last one folded in. The cell is unchanged.
            RulesError: the rules that are to decide it are missing, or were adopted from another state than
                this one. The cell is unchanged.
            MemoryError, OSError, ImportError: a resource of this machine is missing. The cell must not be
                used again.
        """
        # 1. Check the event's place.
        if event.offset <= self.offset:
            raise ValueError(f"cell {self.name}: offset {event.offset} comes after {self.offset}")
        # 2. Adopt other rules, if the event names them. It has no decisions.
        if self._is_next_adoption(event.envelope.event):
            self._adopt(event.envelope.event, event.offset)
            self.offset = event.offset
            self.chain = next_link(self.chain, chained_part(event.canonical), b"")
            self.packed()
            return []
        # 3. Stop if the rules that are to decide it are missing.
        self._require_rules(event.envelope.event, event.offset)
        # 4. Decide: pass it to jobs, nodes, loans and zones (steps 4.1 to 4.4 in `ConfiguredCell.react`), and
        # chain their decisions.
        try:
            decisions = self._fold(event)
        except Exception as error:
            if is_of_the_machine(error):
                raise
            # 5. Return to the state before it, and decide it again; if it raises again, record the fault.
            return on_a_fresh_stack(lambda: self._fold_again(event))
        # 6. Note it, to be folded again after a later event that raises.
        self._keep(event)
        return decisions

    def _keep(self, event: LedgerEvent) -> None:
        """Keep an event, to be folded again after a later event that raises."""
        if self._kept.follow(event):
            self.packed()

    def _fold(self, event: LedgerEvent) -> list[Decision]:
        """Fold an event. If it raises, the state is undefined."""
        part, self.offset = chained_part(event.canonical), event.offset
        decisions: list[Decision] = []
        for index, outcome in enumerate(self._react(event.envelope)):
            decisions.append(self._decide(event, part, index, outcome))
        if not decisions:
            self.chain = next_link(self.chain, part, b"")
        return decisions

    def _decide(self, event: LedgerEvent, part: bytes, index: int, outcome: Outcome) -> Decision:
        id, cause = f"{self.name}-{event.offset}-{index}", event.envelope.id
        try:
            body = Decision.body(id, self.name, cause, self.time_s, outcome)
        except Exception as error:
            note(error, FaultBoundary(None, "encode"))
            raise
        self.chain = next_link(self.chain, part, body)
        return Decision(id, self.name, cause, self.time_s, outcome, self.chain.hex(), encoded=body)

    def _fold_again(self, event: LedgerEvent) -> list[Decision]:
        """Fold an event that has raised, from the state that a snapshot before it gives."""
        self._return_to_kept()
        try:
            decisions = self._fold(event)
        except Exception as error:
            if is_of_the_machine(error):
                raise
            self._return_to_kept()
            self.last_fault = traced(error)
            self.offset = event.offset
            decision = self._decide(event, chained_part(event.canonical), 0, fault_of(event, error))
            self._kept.pass_over(self.offset, self.chain)
            return [decision]
        self._keep(event)
        return decisions

    def _return_to_kept(self) -> None:
        """Return to the state after the last folded event, and keep it packed. If another event raises, the
        events before it then need not be folded again.

        Raises:
            Exception: if an event raises that was folded before: the state does not follow from the ledger.
        """
        kept, empty = self._kept, Cell(self.name, self._book)
        restored = empty if kept.packed is None else Cell.unpack(kept.packed, self._book)
        if kept.place is not None:
            restored.offset, restored.chain = kept.place
        for event in kept.since:
            restored._fold(event)
        self.rules, self.offset, self.chain = restored.rules, restored.offset, restored.chain
        self._configured = restored._configured
        if kept.since:
            self.packed()

    @property
    def time_s(self) -> float | None:
        """Time of the cell's clock; None before its first tick."""
        return None if self._configured is None else self._configured.time_s

    @property
    def configuration(self) -> CellConfigured | None:
        """Present configuration, each node in the zone that owns it; None before the first."""
        return None if self.nodes is None else self.nodes.layout.owned

    @property
    def nodes(self) -> NodePool | None:
        """Nodes of the cell; None before the configuration."""
        if self._foreign is not None:
            return self._foreign.nodes
        return None if self._configured is None else self._configured.nodes

    @property
    def jobs(self) -> JobRegister:
        """Jobs of the cell; an empty register before the configuration."""
        return _NO_JOBS if self._configured is None else self._configured.jobs

    @property
    def live_jobs_bytes(self) -> int:
        """Most bytes of live jobs in a snapshot; 0 before the configuration."""
        return 0 if self._configured is None else self._configured.live_jobs_bytes

    @property
    def zones(self) -> Mapping[str, ZonePolicy]:
        """Zones by id; empty before the configuration."""
        return {} if self._configured is None else self._configured.zones

    def broken_invariants(self) -> Iterator[str]:
        """Yield a line for each broken invariant."""
        if self._configured is not None:
            yield from self._configured.broken_invariants()

    def describe(self) -> dict[str, Any]:
        """Describe the state for an operator, in values that JSON has. Changes nothing.

        Returns:
            its place in the ledger, its rules and its zones by id, each as `ZonePolicy.describe` gives it;
            before the configuration, and where its rules are missing, it has no zones. With zones also its
            time, its number of jobs by state, the part of a snapshot that live jobs take, and its nodes and
            loans by id.
        """
        return {
            "cell": self.name,
            "ledger_offset": self.offset,
            "chain": self.chain.hex(),
            "rules": self.rules,
            **({"zones": {}} if self._configured is None else self._configured.describe()),
        }

    def packed(self) -> bytes:
        """Return the whole state in msgpack. It is cheap enough to do between two events.

        Equal histories give equal bytes, however often the cell was restored meanwhile.
        """
        if self._foreign is not None:
            return self._foreign.packed
        packed = pack(
            {
                "version": SNAPSHOT_VERSION,
                "name": self.name,
                "rules": self.rules,
                "offset": self.offset,
                "chain": self.chain,
                **({"configuration": None} if self._configured is None else self._configured.state()),
            }
        )
        self._kept.keep(packed)
        return packed

    def snapshot(self) -> bytes:
        """Return the whole state as one compressed record, for `restore`."""
        return compress(self.packed())

    @classmethod
    def restore(cls, snapshot: bytes, book: RuleBook = RULES) -> "Cell":
        """Return the cell that a snapshot was made of.

        Raises:
            ValueError: if the snapshot is of another version.
            MissingRulesError: if it is of newer rules than `book` has.
        """
        return cls.unpack(zlib.decompress(snapshot), book)

    @classmethod
    def unpack(cls, packed: bytes, book: RuleBook = RULES) -> "Cell":
        """Return the cell that was packed. If `book` lacks its rules, the cell can only adopt newer ones.

        Raises:
            ValueError: if the state is in another layout.
            MissingRulesError: if it is of newer rules than `book` has.
        """
        state = unpack(packed)
        cell, version = cls(state["name"], book), state["rules"]
        rules = book.newest if version is None else book.get(version)
        if rules is not None:
            cell._restore(state, rules)
            cell._kept.keep(packed if state["version"] == SNAPSHOT_VERSION else cell.packed())
            return cell
        if version > book.newest.version:
            raise MissingRulesError(
                f"cell {cell.name} is decided by {book.lack_of(version)}: start that one, or a newer one"
            )
        cell.rules, cell.offset, cell.chain = version, state["offset"], state["chain"]
        nodes = NodePool(Layout(CellConfigured.model_validate_json(state["configuration"])))
        cell._foreign = _ForeignState(packed, nodes)
        return cell

    @property
    def awaits_rules(self) -> bool:
        """Whether the program has newer rules than those that decide."""
        return self.rules is not None and self.rules < self._book.newest.version

    def _restore(self, state: State, rules: Rules) -> None:
        """Set the state, converted to these rules where it is of others."""
        if state["rules"] not in (rules.version, None) or state["version"] != SNAPSHOT_VERSION:
            state = rules.convert(state)
        if state["version"] != SNAPSHOT_VERSION:
            raise ValueError(
                f"snapshot of cell {self.name} is of version {state['version']}, this code reads "
                f"{SNAPSHOT_VERSION}: delete the snapshot, and the cell is folded from its whole ledger"
            )
        self.offset, self.chain = state["offset"], state["chain"]
        if state["configuration"] is not None:
            self.rules = rules.version
            self._configured = ConfiguredCell.restore(self.name, state, rules)

    def _is_next_adoption(self, event: Event) -> TypeGuard[RulesAdopted]:
        return (
            isinstance(event, RulesAdopted)
            and self.rules is not None
            and adoption_holds(event, self.rules, self.offset)
        )

    def _adopt(self, adopted: RulesAdopted, offset: int) -> None:
        """Adopt other rules, in the present state."""
        where = f"ledger offset {offset} of cell {self.name}"
        packed = self.packed()
        digest = state_digest(packed)
        if digest != adopted.state_digest and adopted.state_layout == layout_of(packed):
            raise WrongStateError(
                f"{where}: rules {adopted.rules} were adopted from a state of digest {adopted.state_digest}, "
                f"and the ledger leads to {digest}: `millrace replay` checks whether the log was altered"
            )
        rules = self._book.get(adopted.rules)
        if rules is None:
            lack = self._book.lack_of(adopted.rules, adopted.release)
            raise MissingRulesError(f"{where}: from here on it is decided by {lack}: start that one")
        self._restore(unpack(packed), rules)
        self._foreign = None

    def _require_rules(self, event: Event, offset: int) -> None:
        """Refuse an event whose rules are missing."""
        if self._foreign is not None and self.rules is not None:
            raise MissingRulesError(
                f"ledger offset {offset} of cell {self.name} is to be decided by "
                f"{self._book.lack_of(self.rules)}: start that one, let it fold its ledger, stop it in good "
                "order, and then start this one again"
            )
        named = event.rules if self.configuration is None and isinstance(event, CellConfigured) else None
        if named is not None and self._book.get(named) is None:
            raise MissingRulesError(
                f"ledger offset {offset} of cell {self.name}: from here on it is decided by "
                f"{self._book.lack_of(named)}: start that one"
            )

    def _react(self, envelope: Envelope) -> list[Outcome]:
        event = envelope.event
        if self._configured is not None:
            return self._configured.react(envelope)
        if isinstance(event, CellConfigured):
            rules = self._book.get(event.rules)
            assert rules is not None
            self.rules = rules.version
            self._configured = ConfiguredCell.first(self.name, envelope, event, rules)
            return [CellAccepted(reason="first_configuration", zones=tuple(self.zones))]
        if isinstance(event, JobSubmitted | JobQuoteRequested):
            return [refused(event, "cell_not_configured")]
        return [EventIgnored(reason="cell_not_configured", facts={"event_type": event.TYPE})]


def layout_of(packed: bytes) -> int:
    """Return the version of the layout of a packed state."""
    return int(unpack(packed)["version"])


def compress(packed: bytes) -> bytes:
    """Compress a packed state to a snapshot. It releases the interpreter lock, so a thread may do it."""
    return zlib.compress(packed, level=1)
