"""Mutated events among good ones, under every policy: none raises in the cell, none is over its bound."""

import copy
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from bench.spine.slow_events import REFERENCE_MS, calibration_s
from infra.figures.board import Board
from infra.figures.summary import summarise
from infra.views.tables import board_view
from infra.views.words import describe, happening
from schemas.auction.batches import BatchProblem
from schemas.auction.settings import TitanPolicy
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.changes import NodeCordoned, NodeRetired, ZoneConfigured
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope, InvalidRecordError, decode_event_line
from schemas.decisions import EventFaulted
from schemas.fleet import CommandRefused, NodeOffline, NodeSilent, RunFailed, RunFinished
from schemas.jobs import JobWithdrawalRequested
from schemas.kind import Problem
from schemas.solves import SolveFinished, SolveRequested
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from tests.streams.elastic import test_histories as elastic
from tests.streams.experts import test_histories as experts
from tests.streams.ledgers import MARKETS
from tests.streams.merging import test_histories as merging
from tests.support.cells import EPOCH_S, SLOT_S, Bench, configuration, zone
from tests.support.examples import LONG
from tests.support.histories import history
from tests.support.loans import SERVERS, lending_cell, offered, reclaimed, reported
from tests.support.merging import answer
from tests.support.mutations import any_odd_value, mutated_json
from tests.support.solves import titan_answer
from tests.support.twins import TwinBench

MUTANTS = 50_000 if LONG else 1_200
"""Mutants of all policies together."""
STEPS = 60
JOBS_AT_ONCE = 4
MUTANTS_BETWEEN = 3
"""After each event of a history."""
ANSWERS_AT_FIRST, ANSWERS_PER_QUESTION = 60, 3
"""Mutants of them; to the first question of a kind the most."""
PACKED_EVERY = 10
TICK_AHEAD_S = 100_000.0
ENDING = (
    *(CellConfigured, ZoneConfigured, NodeOffline, NodeSilent, NodeRetired, NodeCordoned),
    *(JobWithdrawalRequested, RunFinished, RunFailed, CommandRefused),
)
"""Mutants of these would soon leave a cell with nothing to do: most are tried without consequences."""
BOUND_MS = 100.0
"""Processor time of an event by the calibration of the search for slow events, as the gate of
`event_worst_ms` has it."""
SUSPECT_PART = 0.5
"""An event that takes this part of its bound, as the machine was at the start, is folded again."""
FOLDS = 8
"""Most folds of such an event from the same state; the first within the bound ends them. On a busy machine
few are."""
INTEGERS = (0, 1, 2, 3, 64, 1_024, 10**6, 2**31 - 1, 10**12, 2 * 10**12, 10**15, 2**53, 2**63)
NUMBERS = (0.0, 5e-324, 1e-300, 1e-12, 1e-3, 0.5, 1.0, 2.5, 60.0, 1e6, 1e9, 1e12, 1e15, 1e300, 1.7e308, -1.0)


class Mutator:
    """Follows every event of a cell with mutants of the events before it, and of answers to its questions."""

    def __init__(self, seed: object, left: int) -> None:
        self.source = random.Random(f"mutants/{seed}")
        self.left = left
        self.seen: dict[type[Event], Event] = {}
        self.words: dict[str, list[str]] = {}
        """Words of the closed lists in the mutated event, by each word of theirs."""
        self.names = ["x" * 128, "nobody"]
        self.board = Board("c")
        self.asked = Counter[type[Problem]]()
        self.faults: list[tuple[EventFaulted, str, Event]] = []
        self.slow: list[tuple[float, Event]] = []
        """Events over their bound, each with its least calibrated time in milliseconds."""
        self.suspect_s = SUSPECT_PART * BOUND_MS / REFERENCE_MS * calibration_s()

    def handle(self, bench: Bench, entry: LedgerEvent) -> list[Decision]:
        """A good event, and mutants behind it in the ledger."""
        event = entry.envelope.event
        self.seen[type(event)] = event
        for name in ("job_id", "node", "zone", "run_id", "request_id", "user"):
            if isinstance(value := getattr(event, name, None), str) and value not in self.names:
                self.names.append(value)
        if entry.offset == 0:
            self.board = Board(event.cell)
        decisions = self._fold_next(bench, entry)
        for decision in decisions:
            if isinstance(asked := decision.outcome, SolveRequested):
                self._answer(bench.cell, asked)
        is_idle = isinstance(event, ClockTicked) and self.source.random() < 0.7
        if bench.cell.configuration is None or is_idle:
            return decisions
        for _ in range(MUTANTS_BETWEEN):
            mutant = LedgerEvent(len(bench.ledger), self._envelope(self._mutant()))
            if self._ends_it(bench.cell, mutant.envelope.event):
                self._fold_aside(bench.cell, mutant.envelope.event, event)
            else:
                self.left -= 1
                bench.ledger.append(mutant)
                self._fold_next(bench, mutant)
        if len(bench.ledger) % PACKED_EVERY == 0:
            bench.cell.packed()
            board_view(self.board, most_jobs=20)
            summarise(self.board)
        return decisions

    def _show(self, entry: LedgerEvent, decisions: list[Decision]) -> list[Decision]:
        """Have views fold it too."""
        self.board.fold_event(entry)
        assert describe(entry.envelope.event)
        for decision in decisions:
            self.board.fold_decision(decision)
            assert describe(decision.outcome)
            happening(decision)
        assert not self.board.omissions, self.board.last_omission
        return decisions

    def _fold_next(self, bench: Bench, entry: LedgerEvent) -> list[Decision]:
        """Fold the next event of the ledger in, and show what comes of it."""
        return self._show(entry, self._fold(bench.cell, entry, lambda: folded(bench, entry)))

    def _fold(self, cell: Cell, entry: LedgerEvent, before: Callable[[], Cell]) -> list[Decision]:
        """Fold an event in.

        Args:
            before: gives a cell in the state before it.
        """
        began_s = time.thread_time()
        decisions = cell.handle(entry)
        if time.thread_time() - began_s > self.suspect_s:
            least_ms = least_calibrated_ms(entry, before)
            if least_ms > BOUND_MS:
                self.slow.append((least_ms, entry.envelope.event))
        for decision in decisions:
            assert json.loads(decision.canonical)["id"] == decision.id
            if isinstance(decision.outcome, EventFaulted):
                self.faults.append((decision.outcome, cell.last_fault or "", entry.envelope.event))
        return decisions

    def _answer(self, cell: Cell, asked: SolveRequested) -> None:
        """Mutants of the answer to a question, each followed by what may come then."""
        good = answer_to(asked)
        self.asked[type(asked.problem)] += 1
        for _ in range(max(ANSWERS_AT_FIRST // self.asked[type(asked.problem)], ANSWERS_PER_QUESTION)):
            tick = ClockTicked(cell=cell.name, time_s=(cell.time_s or 0.0) + 1.0)
            self._fold_aside(cell, self._mutate(good), tick, good, self._mutant())

    def _fold_aside(self, cell: Cell, *events: Event) -> None:
        """Return the outcomes of events, without consequences."""
        twin = Cell.restore(cell.snapshot())
        for event in events:
            self.left -= 1
            packed = twin.packed()
            self._fold(
                twin,
                LedgerEvent(twin.offset + 1, self._envelope(event)),
                lambda packed=packed: Cell.unpack(packed),
            )
        twin.packed()

    def _envelope(self, event: Event) -> Envelope:
        return Envelope(f"m{self.left}", "test", "", event)

    def _ends_it(self, cell: Cell, event: Event) -> bool:
        """Whether little could happen after it."""
        if isinstance(event, ClockTicked):
            return event.time_s > (cell.time_s or 0.0) + TICK_AHEAD_S
        return isinstance(event, ENDING) and self.source.random() < 0.9

    def _mutant(self) -> Event:
        kinds = sorted(self.seen, key=lambda kind: kind.TYPE)
        event = self.seen[self.source.choice(kinds)]
        job_id = getattr(event, "job_id", None)
        if type(event).TYPE == "millrace.job.submitted.v1" and job_id is not None:
            event = event.model_copy(update={"job_id": f"m{self.left}"})
        return self._mutate(event)

    def _mutate(self, event: Event) -> Event:
        payload = json.loads(event.model_dump_json())
        self.words = words_of(type(event))
        while True:
            mutated = copy.deepcopy(payload)
            for _ in range(self.source.choice((1, 1, 1, 2, 4))):
                if self.source.random() < 0.5:
                    mutated = mutated_json(self.source, mutated, self._plausible)
                elif isinstance(mutated, dict):
                    self._change_a_leaf(mutated)
            line = {"id": "e", "type": event.TYPE, "source": "test", "data": mutated}
            try:
                return decode_event_line(json.dumps(line).encode()).event
            except (InvalidRecordError, UnicodeEncodeError):
                continue

    def _change_a_leaf(self, document: dict[str, Any]) -> None:
        # Of a solver's answer, what is in it rather than what it answers.
        within = document.get("solution") or document
        *path, last = self.source.choice(list(leaves(within)) or [()]) or ("x",)
        holder = within
        for name in path:
            holder = holder[name]
        if isinstance(holder, dict | list) and (isinstance(holder, list) or last in holder):
            holder[last] = self._plausible(self.source, holder[last])

    def _plausible(self, source: random.Random, value: Any) -> Any:
        """A value of the same type, mostly one that some field may hold."""
        if source.random() < 0.1:
            return any_odd_value(source, value)
        match value:
            case bool():
                return not value
            case int():
                return source.choice([*INTEGERS, value + 1, max(value - 1, 0), 2 * value])
            case float() | None:
                return source.choice([*NUMBERS, None, 2 * (value or 1.0), (value or 1.0) / 2])
            case str():
                return source.choice(self.words.get(value, self.names))
            case list() if value:
                return source.choice([[], value[:1], [*value, *value], value[::-1], value * 20])
        return value


@cache
def words_of(event: type[Event]) -> dict[str, list[str]]:
    """See `Mutator.words`."""
    words: dict[str, list[str]] = {}
    for listed in _lists(event.model_json_schema()):
        for word in listed:
            words.setdefault(word, []).extend(listed)
    return words


def _lists(schema: Any) -> Iterator[list[str]]:
    if isinstance(schema, dict):
        if isinstance(listed := schema.get("enum"), list):
            yield [each for each in listed if isinstance(each, str)]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _lists(part)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a document that hold no others."""
    match value:
        case dict() if value:
            for name, part in value.items():
                yield from leaves(part, (*path, name))
        case list() if value:
            for index, part in enumerate(value):
                yield from leaves(part, (*path, index))
        case _:
            yield path


def folded(bench: Bench, until: LedgerEvent) -> Cell:
    """Return a cell that has folded the ledger before an event."""
    cell = Cell(bench.cell.name)
    for entry in bench.ledger:
        if entry.offset == until.offset:
            break
        cell.handle(entry)
    return cell


def least_calibrated_ms(entry: LedgerEvent, before: Callable[[], Cell]) -> float:
    """Fold an event until it is within its bound, a few times at most, and return its least time."""
    least_ms = float("inf")
    for _ in range(FOLDS):
        cell, unit_s = before(), calibration_s()
        began_s = time.thread_time()
        cell.handle(entry)
        event_s = time.thread_time() - began_s
        least_ms = min(least_ms, event_s / max(unit_s, calibration_s()) * REFERENCE_MS)
        if least_ms <= BOUND_MS:
            break
    return least_ms


def answer_to(asked: SolveRequested) -> SolveFinished:
    """Answers of a solver."""
    return titan_answer(asked) if isinstance(asked.problem, BatchProblem) else answer(asked)


def play(name: str, mutator: Mutator) -> None:
    """Histories under a policy until there were enough mutants."""
    seed = 0
    while mutator.left > 0:
        rng = random.Random(f"{name}/{seed}")
        seed += 1
        match name:
            case "elastic":
                steps = _steps(elastic.History(rng, 3))
            case "merging":
                steps = _steps(merging.History(rng, scheme=rng.choice(["ymir", "ymir", "themis"])))
            case "experts":
                steps = _steps(experts.History(rng, rng.choice(experts.PATIENCES_S)))
            case _:
                steps = _market(name, rng)
        for _ in steps:
            if mutator.left <= 0:
                return


def _steps(course: Any) -> Iterator[None]:
    for _ in range(JOBS_AT_ONCE if hasattr(course, "submit") else 0):
        course.submit()
    for _ in range(STEPS):
        course.step()
        yield


def _market(name: str, rng: random.Random) -> Iterator[None]:
    bench = Bench()
    if name == "loans":
        bench.send(lending_cell())
    else:
        policy = TitanPolicy(kind="titan") if name == "titan" else MARKETS[name]
        bench.send(configuration(zones=(zone(policy=policy, horizon_slots=20),)))
    coming = history(rng, bids=30, late_share=0.2)
    event = next(coming)
    while True:
        outcomes = bench.send(event)
        outcomes += bench.send(*(titan_answer(each) for each in outcomes if isinstance(each, SolveRequested)))
        if name == "loans":
            bench.send(*inference_reports(rng, bench))
        yield
        try:
            event = coming.send(outcomes)
        except StopIteration:
            return


def inference_reports(rng: random.Random, bench: Bench) -> list[Event]:
    """Something about servers that are lent; the cell checks whether it is valid."""
    if bench.cell.time_s is None:
        return []
    number, slot = len(bench.ledger), (bench.cell.time_s - EPOCH_S) / SLOT_S
    says = (
        reported(rng.choice([0.0, 0.2, 0.5]), slot),
        offered(*rng.sample(SERVERS, 4), id=f"o{number}"),
        reclaimed(rng.randint(1, 3), slot + 4, id=f"r{number}"),
    )
    return [rng.choice(says)]


POLICIES = (*MARKETS, "titan", "loans", "elastic", "merging", "experts")


@pytest.mark.parametrize("name", POLICIES)
def test_mutated_event_raises_nothing_and_stays_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutator = Mutator(name, MUTANTS // len(POLICIES))
    for bench in (Bench, TwinBench):
        monkeypatch.setattr(bench, "handle_entry", lambda bench, entry: mutator.handle(bench, entry))
    play(name, mutator)
    assert not mutator.faults, mutator.faults[0]
    assert not mutator.slow, max(mutator.slow, key=lambda slow: slow[0])
