"""Replay: any altered, missing or added decision is found and named; repetitions and order do not matter."""

import json
import random
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from streams.replay.files import ledger_line, read_ledger_file, verify_files
from streams.replay.heads import Head
from streams.replay.replay import LIVE, MAX_DIFFERENCES, DecisionRecord, fold, verify
from streams.replay.sources import ReplayError
from tests.streams import events
from tests.support.examples import examples

T = TypeVar("T")
LEDGER = events.ledger(events.stream(60))
DECISIONS = [decision.canonical for _, decisions in fold(LEDGER) for decision in decisions]


def records(values: list[bytes]) -> list[DecisionRecord]:
    return [DecisionRecord(value, f"t.decisions[0]@{offset}") for offset, value in enumerate(values)]


def decision_id(value: bytes) -> str:
    return str(json.loads(value)["id"])


def write_ledger(path: Path, ledger: list[LedgerEvent]) -> Path:
    path.write_bytes(b"".join(map(ledger_line, ledger)))
    return path


def test_true_log_is_proven() -> None:
    verdict = verify(LEDGER, records(DECISIONS))

    assert verdict.ok
    assert (verdict.cells, verdict.events, verdict.decisions) == (1, len(LEDGER), len(DECISIONS))
    assert len(DECISIONS) > 10


def test_repetitions_and_order_do_not_matter_on_kafka() -> None:
    shuffled = DECISIONS + DECISIONS[5:9]
    random.Random(3).shuffle(shuffled)

    verdict = verify(LEDGER, records(shuffled), LIVE)

    assert verdict.ok
    assert verdict.duplicates == 4


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_one_altered_byte_is_named(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(DECISIONS) - 1))
    true = DECISIONS[place]
    byte = data.draw(st.integers(0, len(true) - 1))
    replacement = data.draw(st.integers(0, 255).filter(lambda value: value != true[byte]))
    altered = true[:byte] + bytes([replacement]) + true[byte + 1 :]
    log = [*DECISIONS[:place], altered, *DECISIONS[place + 1 :]]

    verdict = verify(LEDGER, records(log))

    assert not verdict.ok
    (spoiled,) = [found for found in verdict.differences if found.place == f"t.decisions[0]@{place}"]
    (true_one,) = [found for found in verdict.differences if found.decision_id == decision_id(true)]
    assert true_one.expected == true.decode()
    if true_one is spoiled:
        assert spoiled.kind == "altered"
        assert verdict.first is spoiled
        assert f"from character {byte} on" in str(spoiled)
    else:
        # The id itself is spoiled: the decision is missing, and in its place lies something unknown, or what
        # shows that it is another decision.
        assert true_one.kind == "missing"
        assert verdict.first in (true_one, spoiled)


def test_first_difference_is_that_of_ledger() -> None:
    log = [value.replace(b'"cause":"', b'"cause":"x') for value in reversed(DECISIONS)]

    verdict = verify(LEDGER, records(log))

    assert verdict.first is not None
    assert verdict.first.decision_id == decision_id(DECISIONS[0])
    assert verdict.difference_count == len(DECISIONS)


def test_listed_differences_are_first_and_all_counted() -> None:
    late, early = (value.replace(b'"cause":"', b'"cause":"x') for value in (DECISIONS[9], DECISIONS[0]))

    verdict = verify(LEDGER, records([*[late] * (MAX_DIFFERENCES + 20), early, *DECISIONS]), LIVE)

    assert verdict.difference_count == MAX_DIFFERENCES + 21
    assert len(verdict.differences) == MAX_DIFFERENCES
    assert [d.place for d in verdict.differences[:2]] == [
        f"t.decisions[0]@{MAX_DIFFERENCES + 20}",
        "t.decisions[0]@0",
    ]
    assert verdict.differences[-1].place == f"t.decisions[0]@{MAX_DIFFERENCES - 2}"


def test_nothing_that_was_read_is_held_in_memory() -> None:
    most_held = 0

    def watched(values: Iterable[T]) -> Iterator[T]:
        nonlocal most_held
        held: list[weakref.ref[T]] = []
        for value in values:
            mine = replace(value)
            held.append(weakref.ref(mine))
            yield mine
            most_held = max(most_held, sum(1 for reference in held if reference() is not None))

    ledger = events.ledger(events.stream(1_000))
    decisions = [decision.canonical for _, decided in fold(ledger) for decision in decided]
    assert verify(watched(ledger), records(decisions)).ok
    # A cell keeps the events since it was last packed, at most 256 where its state is small.
    assert most_held <= 258
    most_held = 0
    assert verify(ledger, watched(records(decisions))).ok
    assert most_held <= 2


def test_missing_decision_is_named_with_what_was_due() -> None:
    verdict = verify(LEDGER, records(DECISIONS[:6] + DECISIONS[7:]))

    assert verdict.first is not None
    assert (verdict.first.kind, verdict.first.decision_id) == ("missing", decision_id(DECISIONS[6]))
    assert verdict.first.expected == DECISIONS[6].decode()
    assert verdict.broken_links == {"alpha": decision_id(DECISIONS[6])}


def test_extra_decision_is_named_with_its_place() -> None:
    forged = DECISIONS[6].replace(b'{"id":"alpha-', b'{"id":"alpha-9')

    verdict = verify(LEDGER, records([*DECISIONS, forged]))

    assert verdict.first is not None
    assert (verdict.first.kind, verdict.first.place) == ("extra", f"t.decisions[0]@{len(DECISIONS)}")
    assert verdict.first.found == forged.decode()


def test_record_that_is_no_decision_is_named() -> None:
    verdict = verify(LEDGER, records([*DECISIONS, b"rubbish"]))

    assert verdict.first is not None
    assert (verdict.first.kind, verdict.first.place) == ("unreadable", f"t.decisions[0]@{len(DECISIONS)}")


def test_differing_duplicate_is_never_tolerated() -> None:
    altered = DECISIONS[6].replace(b'"cause":"e', b'"cause":"f')

    verdict = verify(LEDGER, records([*DECISIONS, altered]))

    assert verdict.first is not None
    assert (verdict.first.kind, verdict.first.decision_id) == ("altered", decision_id(altered))


def test_altered_event_breaks_the_chain() -> None:
    ledger = list(LEDGER)
    ledger[4] = LedgerEvent(4, replace(LEDGER[4].envelope, time="2027-01-01T00:00:00Z"))

    verdict = verify(ledger, records(DECISIONS))

    first_after = next(value for value in DECISIONS if int(decision_id(value).split("-")[1]) >= 4)
    assert verdict.broken_links == {"alpha": decision_id(first_after)}


def test_decisions_behind_last_one_are_awaited() -> None:
    for count in range(0, len(DECISIONS), 8):
        verdict = verify(LEDGER, records(DECISIONS[:count]), LIVE)

        assert verdict.ok
        assert verdict.awaited == len(DECISIONS) - count
        strict = verify(LEDGER, records(DECISIONS[:count]), LIVE - {"awaited"})
        assert strict.difference_count == len(DECISIONS) - count
        assert {difference.kind for difference in strict.differences} == {"missing"}


def test_skipped_decision_is_missing_despite_backlog() -> None:
    verdict = verify(LEDGER, records(DECISIONS[:6] + DECISIONS[7:-3]), LIVE)

    assert (verdict.difference_count, verdict.awaited) == (1, 3)
    assert verdict.first is not None
    assert (verdict.first.kind, verdict.first.decision_id) == ("missing", decision_id(DECISIONS[6]))
    assert verdict.broken_links == {"alpha": decision_id(DECISIONS[6])}


def test_altered_decision_proves_no_progress() -> None:
    altered = DECISIONS[-1].replace(b'"cause":"e', b'"cause":"f')

    verdict = verify(LEDGER, records([*DECISIONS[:-5], altered]), LIVE)

    assert (verdict.ok, verdict.difference_count, verdict.awaited) == (False, 1, 4)
    assert verdict.first is not None
    assert (verdict.first.kind, verdict.first.decision_id) == ("altered", decision_id(altered))


@pytest.mark.slow
def test_the_head_is_that_of_what_is_there() -> None:
    """Awaited decisions are not in it, not even where one of an event's two is there."""
    cell = Cell("alpha")
    heads = {-1: None}
    published = [0]
    for event in LEDGER:
        published.append(published[-1] + len(cell.handle(event)))
        heads[event.offset] = Head(event.offset, cell.chain.hex())
    assert max(after - before for before, after in pairwise(published)) > 1
    for count in range(len(DECISIONS) + 1):
        verdict = verify(LEDGER, records(DECISIONS[:count]), LIVE)

        assert verdict.ok
        assert verdict.awaited == len(DECISIONS) - count
        whole = max(number for number, before in enumerate(published) if before <= count) - 1
        assert verdict.heads.get("alpha") == heads[whole]
        assert verdict.settled == {"alpha": whole}


def test_cells_are_distinguished() -> None:
    other = [
        LedgerEvent(offset, events.envelope(event, f"o{offset}"))
        for offset, event in enumerate(events.stream(60, "beta"))
    ]
    both = [event for pair in zip(LEDGER, other, strict=False) for event in pair]
    values = [decision.canonical for _, decisions in fold(both) for decision in decisions]

    verdict = verify(both, records(values))

    assert verdict.ok
    assert verdict.cells == 2


def test_files_are_verified_like_topics(tmp_path: Path) -> None:
    ledger = write_ledger(tmp_path / "ledger.jsonl", LEDGER)
    decisions = tmp_path / "decisions.jsonl"
    decisions.write_bytes(b"\n".join(DECISIONS) + b"\n")

    assert list(read_ledger_file(ledger)) == LEDGER
    assert verify_files(ledger, decisions).ok
    assert verify_files(ledger, decisions, "alpha").decisions == len(DECISIONS)

    decisions.write_bytes(b"\n".join(DECISIONS[:7] + DECISIONS[8:]) + b"\n")
    first = verify_files(ledger, decisions).first
    assert first is not None
    assert first.decision_id == decision_id(DECISIONS[7])


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        pytest.param(b"{", "not a ledger event", id="no JSON"),
        pytest.param(b"[]", "not a ledger event", id="no object"),
        pytest.param(b'{"id":"a"}', "not a ledger event", id="no offset"),
        pytest.param(b'{"offset":-1}', "offset", id="negative offset"),
        pytest.param(b'{"offset":true}', "offset", id="offset that is no number"),
        pytest.param(b'{"offset":1,"id":"a"}', "data", id="no event"),
        pytest.param(b"[" * 100_000, "not a ledger event", id="deeply nested"),
    ],
)
def test_bad_line_is_named_by_file_and_number(tmp_path: Path, line: bytes, fault: str) -> None:
    ledger = write_ledger(tmp_path / "ledger.jsonl", LEDGER[:2])
    ledger.write_bytes(ledger.read_bytes() + line + b"\n")

    with pytest.raises(ReplayError, match=f"ledger.jsonl:3: .*{fault}"):
        list(read_ledger_file(ledger))


def test_events_out_of_order_are_refused(tmp_path: Path) -> None:
    ledger = write_ledger(tmp_path / "ledger.jsonl", [LEDGER[1], LEDGER[0]])
    decisions = tmp_path / "decisions.jsonl"
    decisions.touch()

    with pytest.raises(ReplayError, match=r"ledger\.jsonl:2: .*offset 0 comes after 1"):
        verify_files(ledger, decisions)


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match=r"absent\.jsonl: No such file"):
        list(read_ledger_file(tmp_path / "absent.jsonl"))
