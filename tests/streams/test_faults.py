"""An event that raises is folded as nothing but a recorded fault, wherever the exception comes from."""

import inspect
import pkgutil
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any
from unittest.mock import patch

import msgpack
import pytest

import streams.cell
from schemas.base import Outcome
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.decisions import CellAccepted, EventFaulted, EventIgnored, JobAdmitted
from schemas.merging.commands import TaskAssigned
from schemas.merging.problems import MergeSolution, Share
from streams.cell.chain import chained_part, next_link
from streams.cell.ledger_event import LedgerEvent
from streams.cell.outcomes import Outcomes
from streams.cell.packing import pack, unpack
from streams.cell.recovery import Kept, on_a_fresh_stack
from streams.cell.state_machine import Cell
from streams.policies.auction.zone import AuctionZone
from streams.policies.policy import ZonePolicy
from streams.replay.replay import DecisionRecord, verify
from tests.streams.ledgers import NAMES, ledger
from tests.support.cells import Bench, bid, configuration, tick
from tests.support.examples import LONG
from tests.support.merging_script import Script, share

BEFORE, AFTER = 6, 14
"""Events around the one that raises."""
HANDLERS = sorted(name for name in vars(ZonePolicy) if not name.startswith("_"))
UNGUARDED = {"state", "restore", "describe", "broken_invariants"}
"""Methods that write, read or show the state. An exception there is no fault of any event."""


GUARD = (Cell, Kept)


class InjectedError(Exception):
    """Raised by a test."""


class NotedEvent(LedgerEvent):
    """Records which event is being folded, also when those before it are folded again."""

    present = -1
    """Its offset; -1 while none is."""

    @property
    def canonical(self) -> bytes:
        NotedEvent.present = self.offset
        return super().canonical


def noted(events: Iterable[LedgerEvent]) -> list[LedgerEvent]:
    return [NotedEvent(each.offset, each.envelope) for each in events]


def raising(function: Callable[..., Any], targets: list[int], half_way: bool) -> Callable[..., Any]:
    """The function, which raises in these events: at once, or after its first outcome or its effect."""

    def broken(*arguments: Any, **named: Any) -> Any:
        is_due = NotedEvent.present in targets
        if is_due and not half_way:
            raise InjectedError
        if not is_due:
            return function(*arguments, **named)
        with patch.object(Outcomes, "add", _add_and_raise):
            function(*arguments, **named)
        raise InjectedError

    return broken


def _add_and_raise(outcomes: Outcomes, outcome: Outcome) -> None:
    outcomes.add_without_effect(outcome)
    raise InjectedError


Point = tuple[type, str]
"""A class and the name of its method."""


def handlers(cell: Cell) -> list[Point]:
    """Every method that an event may ask of a policy of this cell."""
    kinds = {type(zone): None for zone in cell.zones.values()}
    return [(kind, name) for kind in kinds for name in HANDLERS if name not in UNGUARDED]


def stages() -> list[Point]:
    """Every method of what the cell itself is made of."""
    found = []
    for module in pkgutil.iter_modules(streams.cell.__path__, "streams.cell."):
        for kind in vars(import_module(module.name)).values():
            if inspect.isclass(kind) and kind.__module__ == module.name and kind not in GUARD:
                found += [(kind, name) for name, value in vars(kind).items() if inspect.isfunction(value)]
    return found


def called_at(monkeypatch: pytest.MonkeyPatch, points: list[Point], events: list[LedgerEvent]) -> Any:
    """By point, the offsets of the events that called it."""
    offsets: dict[Point, list[int]] = {}
    with monkeypatch.context() as patch:
        for point in points:
            counting(patch, point, offsets.setdefault(point, []))
        cell = Cell("c")
        for event in events:
            cell.handle(event)
            NotedEvent.present = -1
    return {point: sorted(set(found) - {-1}) for point, found in offsets.items()}


def counting(patch: pytest.MonkeyPatch, point: Point, offsets: list[int]) -> None:
    original = getattr(*point)

    def counted(*arguments: Any, **named: Any) -> Any:
        offsets.append(NotedEvent.present)
        return original(*arguments, **named)

    patch.setattr(*point, counted)


def with_fault(packed: bytes, event: LedgerEvent, fault: Decision) -> Cell:
    """A cell in the state before an event, whose ledger has the event and whose log has its fault."""
    state = msgpack.unpackb(packed)
    body = fault.canonical[: -len(',"chain":""}') - 64]
    state["offset"] = event.offset
    state["chain"] = next_link(state["chain"], chained_part(event.canonical), body)
    assert fault.chain == state["chain"].hex()
    return Cell.unpack(msgpack.packb(state))


def check_fault(events: list[LedgerEvent], target: int, packed_before: bytes) -> EventFaulted | None:
    """Fold the ledger around the event that raises; return its fault, None if nothing raised.

    Args:
        packed_before: the state before the first of the events.
    """
    fault: EventFaulted | None = None
    cell, sound = Cell.unpack(packed_before), Cell.unpack(packed_before)
    for event in events:
        decisions = cell.handle(event)
        NotedEvent.present = -1
        if event.offset == target and [type(each.outcome) for each in decisions] == [EventFaulted]:
            fault = decisions[0].outcome
            sound = with_fault(sound.packed(), event, decisions[0])
        else:
            assert sound.handle(event) == decisions, "no other event is decided otherwise"
    assert cell.packed() == sound.packed()
    return fault


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_handler_that_raises_loses_no_other_event(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events = noted(ledger(name))
    cell = Cell("c")
    packed = [cell.packed()]
    for event in events:
        cell.handle(event)
        packed.append(cell.packed())
    calls = called_at(monkeypatch, handlers(cell), events)
    source = random.Random(name)
    checked = Counter[str]()
    for (kind, handler), offsets in calls.items():
        for half_way in (False, True) if offsets else ():
            target = source.choice(offsets)
            first = max(target - BEFORE, 0)
            around = events[first : target + AFTER]
            with monkeypatch.context() as patch:
                patch.setattr(kind, handler, raising(getattr(kind, handler), [target], half_way))
                fault = check_fault(around, target, packed[first])
            assert fault is not None
            assert (fault.exception, fault.place) == ("Exception", handler)
            assert fault.zone in cell.zones
            assert fault.event_id == events[target].envelope.id
            checked[handler] += 1
    assert {"wake", "submitted"} <= set(checked)


def test_every_handler_is_called_by_some_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    called: set[str] = set()
    for name in NAMES:
        events = noted(ledger(name))
        cell = Cell("c")
        for event in events:
            cell.handle(event)
        calls = called_at(monkeypatch, handlers(cell), events)
        called |= {handler for (_, handler), offsets in calls.items() if offsets}
    assert called == set(HANDLERS) - UNGUARDED


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loans", "experts"])
def test_raising_stage_loses_no_other_event(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack = Cell.unpack

    def unpack_unnoted(packed: bytes, *book: Any) -> Cell:
        NotedEvent.present = -1
        return unpack(packed, *book)

    monkeypatch.setattr(Cell, "unpack", unpack_unnoted)
    events = noted(ledger(name))
    cell = Cell("c")
    packed = [cell.packed()]
    for event in events:
        cell.handle(event)
        packed.append(cell.packed())
    source, faults = random.Random(name), 0
    for point, offsets in called_at(monkeypatch, stages(), events).items():
        for half_way in ((False, True) if LONG else (source.random() < 0.5,)) if offsets else ():
            target = source.choice(offsets)
            first = max(target - BEFORE, 0)
            around = events[first : target + AFTER]
            with monkeypatch.context() as patch:
                patch.setattr(*point, raising(getattr(*point), [target], half_way))
                faults += check_fault(around, target, packed[first]) is not None
    assert faults > 50, "most of them are needed"


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, times: int = 10**9) -> None:
    """Ticks raise this from now on, so often."""
    wake, left = AuctionZone.wake, iter(range(times))

    def broken(zone: AuctionZone, time_s: float) -> None:
        wake(zone, time_s)
        if next(left, None) is not None:
            raise error

    monkeypatch.setattr(AuctionZone, "wake", broken)


def test_fault_names_event_error_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.configured()
    failing(monkeypatch, OverflowError("too large"))
    (fault,) = bench.send(tick(1))
    assert fault == EventFaulted(
        reason="policy_raised",
        event_id="e1",
        event_type=ClockTicked.TYPE,
        exception="OverflowError",
        zone="z",
        place="wake",
        job_id=None,
    )
    assert bench.cell.time_s is None, "the clock has not advanced"
    assert "OverflowError: too large" in bench.cell.last_fault


@pytest.mark.parametrize(
    ("error", "name"),
    [(InjectedError(), "Exception"), (OverflowError(), "OverflowError")],
)
def test_fault_names_built_in_type(error: Exception, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.configured()
    failing(monkeypatch, error)
    (fault,) = bench.send(tick(1))
    assert fault.exception == name


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(28, "No space left"), ImportError(), KeyboardInterrupt()]
)
def test_lack_of_memory_or_disk_is_no_fault(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.configured()
    failing(monkeypatch, error)
    with pytest.raises(type(error)):
        bench.send(tick(1))


def test_error_caused_by_lack_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, error = Bench.configured(), ValueError("no plan")
    error.__cause__ = MemoryError()
    failing(monkeypatch, error)
    with pytest.raises(ValueError, match="no plan"):
        bench.send(tick(1))


def test_single_raise_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    sound, bench = Bench.configured(), Bench.configured()
    failing(monkeypatch, RuntimeError(), times=1)
    assert bench.send(tick(1), bid("a")) == sound.send(tick(1), bid("a"))
    assert bench.cell.packed() == sound.cell.packed()


def test_how_deep_the_caller_is_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(levels: int) -> int:
        return deep(levels - 1) + 1 if levels else 0

    wake = AuctionZone.wake

    def nested(zone: AuctionZone, time_s: float) -> None:
        deep(sys.getrecursionlimit() - 200)
        wake(zone, time_s)

    def send_from(levels: int) -> list[Outcome]:
        return send_from(levels - 1) if levels else bench.send(tick(1))

    monkeypatch.setattr(AuctionZone, "wake", nested)
    bench, sound = Bench.configured(), Bench.configured()
    assert on_a_fresh_stack(lambda: send_from(150)) == on_a_fresh_stack(lambda: sound.send(tick(1)))
    assert not any(isinstance(each.outcome, EventFaulted) for each in bench.decisions)


def test_unencodable_decision_is_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def unencodable(zone: AuctionZone, _time_s: float) -> None:
        facts = {"error": "half an emoji: \ud83d"}
        zone._outcomes.add(EventIgnored.model_construct(reason="unknown_job", facts=facts))

    bench = Bench.configured()
    monkeypatch.setattr(AuctionZone, "wake", unencodable)
    (fault,) = bench.send(tick(1))
    assert (fault.exception, fault.zone, fault.place) == ("ValueError", None, "encode")


def test_raising_configuration_leaves_cell_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    with monkeypatch.context() as patch:
        patch.setattr(AuctionZone, "__init__", lambda *_: 1 / 0)
        (fault,) = bench.send(configuration())
    assert (fault.exception, fault.zone, fault.place) == ("ZeroDivisionError", "z", "configured")
    assert (bench.cell.configuration, bench.cell.rules) == (None, None)
    (accepted,) = bench.send(configuration())
    assert isinstance(accepted, CellAccepted)


def test_faulted_event_is_folded_when_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.configured()
    bench.send(tick(0))
    submission = Envelope("bid-a", "test", "", bid("a"))
    with monkeypatch.context() as patch:
        patch.setattr(AuctionZone, "submitted", lambda *_: 1 / 0)
        (fault,) = bench.cell.handle(LedgerEvent(5, submission))
    assert isinstance(fault.outcome, EventFaulted)
    assert fault.outcome.job_id == "a"
    assert not bench.cell.jobs.live
    (decided,) = bench.cell.handle(LedgerEvent(6, submission))
    assert isinstance(decided.outcome, JobAdmitted), "neither the event's id nor the job's is taken"


def test_cell_survives_faults_and_replay_agrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = noted(ledger("auction"))
    targets = [event.offset for event in events if isinstance(event.envelope.event, ClockTicked)][3:]
    flood = [
        NotedEvent(
            events[-1].offset + 1 + number, Envelope(f"flood-{number}", "test", "", tick(1_000 + number))
        )
        for number in range(40)
    ]
    targets += [event.offset for event in flood]
    monkeypatch.setattr(AuctionZone, "wake", raising(AuctionZone.wake, targets, half_way=True))
    cell, restored, decisions = Cell("c"), Cell("c"), list[Decision]()
    for event in [*events, *flood]:
        decided = cell.handle(event)
        assert restored.handle(event) == decided
        if event.offset % 7 == 0:
            restored = Cell.restore(cell.snapshot())
        decisions += decided
    assert sum(isinstance(each.outcome, EventFaulted) for each in decisions) == len(targets)
    assert cell.packed() == restored.packed()
    log = [DecisionRecord(each.canonical, each.id) for each in decisions]
    assert verify([*events, *flood], log).ok


@pytest.mark.parametrize("number", [0, -1, 2**63, 2**64, -(2**64), 10**40])
def test_a_state_holds_integers_of_any_size(number: int) -> None:
    assert unpack(pack({"sums": [number, {"of": number}]})) == {"sums": [number, {"of": number}]}


def test_answer_outside_schema_ends_no_cell() -> None:
    script = Script(bench=Bench())
    script.ready("a", "b")
    asked = script.ask()
    unfit = Share.model_construct(job_ids=("a",), mode="temporal", gpus=1)
    answer = script.solved(asked, MergeSolution.model_construct(kind="merge", shares=(unfit,)))
    (fault,) = script.send(answer)
    assert (type(fault), fault.zone, fault.place) == (EventFaulted, "z", "solved")
    assert any(isinstance(each, TaskAssigned) for each in script.answer(share("a"), share("b"), asked=asked))


def test_events_kept_for_refolding_are_bounded() -> None:
    small = LedgerEvent(0, Envelope("e", "test", "", tick(0)))
    large = LedgerEvent(0, Envelope("e", "test", "", tick(0), stored=bytes(2**20)))
    assert [Kept().follow(small), Kept(bytes(32 * 2**20)).follow(large)] == [False, False]
    for packed, event, most in ((b"", small, 256), (bytes(32 * 2**20), small, 2_048), (b"", large, 4)):
        kept, count = Kept(packed), 1
        while not kept.follow(event):
            count += 1
        assert count == most
        kept.keep(packed)
        assert not kept.follow(event)
