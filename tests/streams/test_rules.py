"""Two versions of the rules decide for one cell: each event by one of them, as the ledger records."""

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.cli import run
from infra.commands.replay import EXIT_UNVERIFIED
from schemas.decisions import EventIgnored, JobRejected
from streams.cell.ledger_event import LedgerEvent
from streams.cell.rules import MissingRulesError, RuleBook, WrongStateError, state_digest
from streams.cell.state_machine import SNAPSHOT_VERSION, Cell, compress
from streams.replay.files import ledger_line, state_file, verify_files
from streams.replay.heads import Head, KeptHead
from streams.replay.replay import LIVE, DecisionRecord, Verdict, verify
from streams.replay.stretches import UnfitStateError, unpacked_state
from tests.streams import events
from tests.support.examples import LONG, examples
from tests.support.rules import (
    BOTH,
    FIRST,
    FLOOR_MICROS,
    SECOND,
    TwoStretches,
    adoption,
    entry,
    two_stretches,
)

EVENTS = events.stream(90)
CUT = 40
LOG = two_stretches(EVENTS[:CUT], EVENTS[CUT:])
ADOPTED = LOG.adopted_offset
LAST = len(LOG.ledger) - 1
MISSING_FIRST = (
    f"ledger offsets 0 to {ADOPTED - 1} of cell alpha are not verified: they were decided by rules 1, which "
    "this program does not have (it has 2): version 0.1.0 of Millrace has them"
)


def verdict_of(
    book: RuleBook, log: TwoStretches = LOG, live: bool = False, kept: tuple[KeptHead, ...] = ()
) -> Verdict:
    records = [DecisionRecord(value, f"t.decisions[0]@{place}") for place, value in enumerate(log.decisions)]
    return verify(log.ledger, records, LIVE if live else (), kept, book, log.find_state)


def place_of(value: bytes) -> int:
    """The ledger offset of the event that a decision is about."""
    return int(json.loads(value)["id"].split("-")[1])


def folded(book: RuleBook, ledger: list[LedgerEvent]) -> Cell:
    cell = Cell("alpha", book)
    for event in ledger:
        cell.handle(event)
    return cell


def test_each_event_is_decided_by_its_rules() -> None:
    cell, refused = Cell("alpha", BOTH), []
    for event in LOG.ledger:
        for decision in cell.handle(event):
            outcome = decision.outcome
            if isinstance(outcome, JobRejected) and outcome.facts.get("floor_micros") == FLOOR_MICROS:
                refused.append(event.offset)
    assert refused
    assert min(refused) > ADOPTED
    assert cell.rules == 2
    before = Cell("alpha", FIRST)
    alone = [decision.canonical for event in LOG.ledger[:ADOPTED] for decision in before.handle(event)]
    assert alone == LOG.decisions[: len(alone)]


@settings(max_examples=examples(60), deadline=None)
@given(cuts=st.sets(st.integers(0, LAST)))
def test_cell_restored_anywhere_has_same_state(cuts: set[int]) -> None:
    cell = Cell("alpha", BOTH)
    for event in LOG.ledger:
        cell.handle(event)
        if event.offset in cuts:
            cell = Cell.restore(cell.snapshot(), BOTH)
    assert cell.packed() == folded(BOTH, LOG.ledger).packed()


def test_the_digest_does_not_depend_on_the_compression() -> None:
    packed = folded(FIRST, LOG.ledger[:ADOPTED]).packed()
    digest = state_digest(packed)
    assert (
        unpacked_state(zlib.compress(packed, 9), digest) == unpacked_state(compress(packed), digest) == packed
    )


def test_program_without_first_rules_continues_from_state() -> None:
    snapshot = folded(FIRST, LOG.ledger[:ADOPTED]).snapshot()
    cell = Cell.restore(snapshot, SECOND)
    assert (cell.rules, cell.awaits_rules, cell.nodes.zone_of("alpha-n0")) == (1, True, "z1")
    assert Cell.restore(cell.snapshot(), SECOND).packed() == cell.packed() == zlib.decompress(snapshot)
    decisions = [d.canonical for event in LOG.ledger[ADOPTED:] for d in cell.handle(event)]
    assert decisions == [value for value in LOG.decisions if place_of(value) >= ADOPTED]
    assert not cell.awaits_rules


def test_missing_rules_are_named() -> None:
    old = folded(FIRST, LOG.ledger[:ADOPTED])
    backlog = Cell.restore(old.snapshot(), SECOND)
    with pytest.raises(MissingRulesError, match=r"offset 41 of cell alpha is to be .* rules 1, .* 0\.1\.0"):
        backlog.handle(entry(ADOPTED + 1, events.bid(7)))
    with pytest.raises(
        MissingRulesError, match=r"from here on it is decided by rules 2, .* 0\.2\.0 of Millr"
    ):
        old.handle(LOG.ledger[ADOPTED])
    with pytest.raises(MissingRulesError, match=r"rules 2, which .* does not have .* a newer version"):
        Cell.restore(folded(BOTH, LOG.ledger).snapshot(), FIRST)
    named = events.configuration().model_copy(update={"rules": 2})
    with pytest.raises(MissingRulesError, match=r"offset 0 of cell alpha: .* rules 2"):
        Cell("alpha", FIRST).handle(entry(0, named))
    first = Cell("alpha", BOTH)
    first.handle(entry(0, named))
    assert (first.rules, first.awaits_rules) == (2, False)


@pytest.mark.parametrize(
    "changes",
    [{"state_offset": 3}, {"state_offset": ADOPTED}, {"previous_rules": 3, "rules": 4}, {"rules": 1}],
    ids=["behind", "ahead", "of other rules", "of the same rules"],
)
@pytest.mark.parametrize("book", [FIRST, BOTH], ids=["first", "both"])
def test_an_adoption_that_fits_nowhere_changes_nothing(book: RuleBook, changes: dict[str, int]) -> None:
    cell = folded(book, LOG.ledger[:ADOPTED])
    (ignored,) = cell.handle(entry(ADOPTED, adoption(cell, **changes)))
    assert isinstance(ignored.outcome, EventIgnored)
    assert (ignored.outcome.reason, cell.rules) == ("stale_adoption", 1)


def test_an_adoption_before_the_configuration_changes_nothing() -> None:
    cell = Cell("alpha", BOTH)
    wrong = adoption(cell, state_offset=0)
    (ignored,) = cell.handle(entry(0, wrong))
    assert isinstance(ignored.outcome, EventIgnored)
    assert (ignored.outcome.reason, cell.rules) == ("cell_not_configured", None)


def test_rules_are_adopted_from_no_other_state() -> None:
    cell = folded(BOTH, LOG.ledger[:ADOPTED])
    with pytest.raises(WrongStateError, match=f"offset {ADOPTED} of cell alpha: rules 2 were adopted from"):
        cell.handle(entry(ADOPTED, adoption(cell, state_digest="0" * 64)))


# Replay


def test_log_verifies_with_both_rules() -> None:
    verdict = verdict_of(BOTH)
    assert verdict.ok
    found = [(s.rules, s.first_offset, s.last_offset, s.unverified) for s in verdict.stretches]
    assert found == [(1, 0, ADOPTED - 1, None), (2, ADOPTED, LAST, None)]
    assert verdict.stretches[1].state_digest in LOG.states


def test_second_stretch_verifies_without_first_rules() -> None:
    whole = verdict_of(BOTH)
    within = folded(BOTH, LOG.ledger[: ADOPTED - 5])
    kept = KeptHead(None, Head(within.offset, within.chain.hex()))
    verdict = verdict_of(SECOND, kept=(kept,))
    assert (verdict.ok, verdict.has_faults) == (False, False)
    assert [str(stretch) for stretch in verdict.unverified] == [MISSING_FIRST]
    assert verdict.heads == whole.heads
    assert verdict.settled == whole.settled
    wrong = KeptHead("alpha", Head(within.offset, "0" * 64))
    assert "is another one" in verdict_of(SECOND, kept=(wrong,)).head_faults[0]


def test_first_stretch_verifies_without_second_rules() -> None:
    verdict = verdict_of(FIRST)
    assert (verdict.ok, verdict.has_faults) == (False, False)
    (stretch,) = verdict.unverified
    assert (stretch.first_offset, stretch.last_offset) == (ADOPTED, LAST)
    assert "rules 2" in str(stretch)
    assert "version 0.2.0 of Millrace has them" in str(stretch)
    # What may still be missing of the last events' decisions is not in the head.
    last = max(map(place_of, LOG.decisions))
    assert verdict.heads["alpha"].offset == last - 1 == verdict.settled["alpha"]
    assert verdict.heads["alpha"].chain == folded(BOTH, LOG.ledger[:last]).chain.hex()


def test_second_stretch_needs_its_start_state() -> None:
    verdict = verdict_of(SECOND, replace(LOG, states={}))
    assert (verdict.ok, verdict.has_faults) == (False, False)
    first, second = verdict.unverified
    assert str(first) == MISSING_FIRST
    assert f"rules 2, and the state that they start from is missing (digest {next(iter(LOG.states))})" in str(
        second
    )


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data(), book=st.sampled_from([FIRST, SECOND]))
def test_altered_byte_breaks_chain_without_rules(data: st.DataObject, book: RuleBook) -> None:
    within = [n for n, value in enumerate(LOG.decisions) if (place_of(value) < ADOPTED) == (book is SECOND)]
    place = data.draw(st.sampled_from(within))
    true = LOG.decisions[place]
    byte = data.draw(st.integers(0, len(true) - 1))
    altered = true[:byte] + bytes([true[byte] ^ 1]) + true[byte + 1 :]
    decisions = [*LOG.decisions[:place], altered, *LOG.decisions[place + 1 :]]
    for live in (False, True):
        assert verdict_of(book, replace(LOG, decisions=decisions), live).has_faults


@pytest.mark.slow
@pytest.mark.parametrize("book", [FIRST, SECOND], ids=["first", "second"])
def test_missing_or_repeated_decision_is_named(book: RuleBook) -> None:
    for place in range(0, len(LOG.decisions) - 1, 1 if LONG else 5):
        value = LOG.decisions[place]
        without = [*LOG.decisions[:place], *LOG.decisions[place + 1 :]]
        assert verdict_of(book, replace(LOG, decisions=without), live=True).has_faults, place
        if place % 10 == 0:
            twice = replace(LOG, decisions=[*LOG.decisions, value])
            assert {each.kind for each in verdict_of(book, twice).differences} == {"repeated"}
            assert not verdict_of(book, twice, live=True).has_faults
            other = replace(LOG, decisions=[*LOG.decisions, value.replace(b'"cause":"', b'"cause":"x')])
            assert {each.kind for each in verdict_of(book, other, live=True).differences} == {"altered"}
    swapped = [LOG.decisions[1], LOG.decisions[0], *LOG.decisions[2:]]
    assert {d.kind for d in verdict_of(book, replace(LOG, decisions=swapped)).differences} == {"misplaced"}


@pytest.mark.parametrize("book", [FIRST, BOTH, SECOND], ids=["first", "both", "second"])
def test_unpublished_decisions_are_no_fault(book: RuleBook) -> None:
    for count in range(0, len(LOG.decisions), 7):
        verdict = verdict_of(book, replace(LOG, decisions=LOG.decisions[:count]), live=True)
        assert not verdict.has_faults, count
        head = verdict.heads.get("alpha")
        assert head is None or folded(BOTH, LOG.ledger[: head.offset + 1]).chain.hex() == head.chain
        assert verdict.settled["alpha"] == (-1 if head is None else head.offset)


def with_adoption(log: TwoStretches, **changes: object) -> TwoStretches:
    """Return a log whose adoption has other fields."""
    ledger = list(log.ledger)
    old = ledger[ADOPTED]
    event = old.envelope.event.model_copy(update=changes)
    ledger[ADOPTED] = LedgerEvent(old.offset, replace(old.envelope, event=event))
    return replace(log, ledger=ledger)


def test_digest_of_other_layout_is_not_compared() -> None:
    """Millrace packed states otherwise when the rules changed, and has both still."""
    log = two_stretches(EVENTS[:CUT], EVENTS[CUT:], state_layout=SNAPSHOT_VERSION - 1, state_digest="0" * 64)
    assert verdict_of(BOTH, log).ok
    assert [stretch.rules for stretch in verdict_of(SECOND, log).unverified] == [1, 2]


def test_tampered_digest_is_found_under_any_rules() -> None:
    tampered = with_adoption(LOG, state_digest="0" * 64)
    joined = verdict_of(BOTH, tampered)
    assert "were adopted from a state of digest 000" in joined.join_faults[0]
    first_after = next(json.loads(v)["id"] for v in LOG.decisions if place_of(v) > ADOPTED)
    for book in (BOTH, SECOND, FIRST):
        assert verdict_of(book, tampered).broken_links == {"alpha": first_after}


def forged(change: Callable[[dict[str, object]], object]) -> TwoStretches:
    """A log whose adoption names another state, consistently, by whoever may write all of it."""
    (packed,) = LOG.states.values()
    state = msgpack.unpackb(packed)
    change(state)
    other = msgpack.packb(state)
    log = with_adoption(LOG, state_digest=state_digest(other))
    return replace(log, states={state_digest(other): other})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda state: state.update(chain=bytes(32)), "do not lead to the state that is kept of it"),
        (lambda state: state.update(offset=3), "it is of cell, rules and ledger offset ('alpha', 1, 3)"),
        (lambda state: state.update(name="beta"), "('beta', 1, 39), where ('alpha', 1, 39) was due"),
        (lambda state: state.clear(), "it cannot be read: KeyError"),
    ],
    ids=["chain", "offset", "cell", "content"],
)
def test_a_forged_start_state_does_not_join(
    change: Callable[[dict[str, object]], object], fault: str
) -> None:
    assert any(fault in found for found in verdict_of(SECOND, forged(change)).join_faults)


def test_stale_adoption_changes_no_stretch() -> None:
    cell = folded(FIRST, LOG.ledger[:20])
    stale = adoption(cell, state_offset=5)
    log = two_stretches([*EVENTS[:20], stale, *EVENTS[20:CUT]], [stale, *EVENTS[CUT:]])
    for book in (FIRST, BOTH, SECOND):
        assert not verdict_of(book, log).has_faults
        assert [s.first_offset for s in verdict_of(book, log).stretches] == [0, CUT + 1]


def test_events_before_configuration_have_no_rules() -> None:
    cell = Cell("alpha")
    ledger = [entry(n, event) for n, event in enumerate([events.bid(1), *EVENTS[:10]])]
    decisions = [decision.canonical for event in ledger for decision in cell.handle(event)]
    verdict = verdict_of(FIRST, TwoStretches(ledger, decisions, {}, 0))
    assert verdict.ok
    assert [(s.rules, s.first_offset, s.last_offset) for s in verdict.stretches] == [(None, 0, 0), (1, 1, 10)]


# Files


def written(folder: Path, log: TwoStretches = LOG) -> Path:
    ledger = folder / "ledger.jsonl"
    ledger.write_bytes(b"".join(map(ledger_line, log.ledger)))
    (folder / "decisions.jsonl").write_bytes(b"".join(value + b"\n" for value in log.decisions))
    for digest, packed in log.states.items():
        path = state_file(ledger, digest)
        path.parent.mkdir()
        path.write_bytes(compress(packed))
    return ledger


def test_files_hold_the_states_as_well(tmp_path: Path) -> None:
    ledger = written(tmp_path)
    decisions = ledger.with_name("decisions.jsonl")
    assert verify_files(ledger, decisions, book=BOTH).ok
    verdict = verify_files(ledger, decisions, book=SECOND)
    assert (verdict.has_faults, len(verdict.unverified)) == (False, 1)
    (state,) = (tmp_path / "states").iterdir()
    state.write_bytes(compress(folded(FIRST, LOG.ledger[: ADOPTED - 1]).packed()))
    (fault,) = verify_files(ledger, decisions, book=SECOND).join_faults
    assert "it was altered" in fault
    state.write_bytes(b"rubbish")
    (fault,) = verify_files(ledger, decisions, book=SECOND).join_faults
    assert "it cannot be read" in fault
    state.unlink()
    assert len(verify_files(ledger, decisions, book=SECOND).unverified) == 2


def test_oversized_state_is_not_expanded() -> None:
    with pytest.raises(UnfitStateError, match="it was altered"):
        unpacked_state(zlib.compress(bytes(64 * 2**20)), "0" * 64)


def test_command_names_unverified_stretch_and_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = written(tmp_path)
    command = ["replay", "--from", str(ledger)]
    assert run(command) == EXIT_UNVERIFIED
    said = capsys.readouterr()
    assert said.out.startswith("VERIFIED IN PART: 1 cell")
    assert f"stretch alpha 0 to {ADOPTED - 1}: rules 1, verified\n" in said.out
    assert f"stretch alpha {ADOPTED} to {LAST}: rules 2, not verified\n" in said.out
    assert "head alpha=" in said.out
    assert "version 0.2.0 of Millrace has them" in said.err
    assert run([*command, "--json"]) == EXIT_UNVERIFIED
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert [stretch["rules"] for stretch in found["stretches"]] == [1, 2]
    altered = [*LOG.decisions[:5], LOG.decisions[5].replace(b'"cause":"', b'"cause":"x'), *LOG.decisions[6:]]
    (tmp_path / "decisions.jsonl").write_bytes(b"".join(value + b"\n" for value in altered))
    assert run(command) == 1
