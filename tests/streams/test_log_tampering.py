"""Files of a log that were altered, swapped, repeated, appended to or cut are noticed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from schemas.fleet import NodeSeen, RunStarted
from streams.cell.ledger_event import LedgerEvent
from streams.replay.files import ledger_line, verify_files
from streams.replay.heads import Head, KeptHead
from streams.replay.replay import Verdict, fold
from streams.replay.sources import ReplayError
from tests.streams import events
from tests.support.cells import with_bid
from tests.support.examples import LONG


@dataclass(frozen=True)
class Log:
    """A ledger file and a decisions file, line by line."""

    ledger: tuple[bytes, ...]
    decisions: tuple[bytes, ...]

    @classmethod
    def of(cls, ledger: list[LedgerEvent]) -> "Log":
        decided = [decision for _, decisions in fold(ledger) for decision in decisions]
        return cls(tuple(map(ledger_line, ledger)), tuple(decision.canonical + b"\n" for decision in decided))


SEEN = NodeSeen(cell="alpha", node="alpha-n0", base_model="tiny", runners=("lora",))
LEDGER = events.ledger([SEEN if isinstance(event, RunStarted) else event for event in events.stream(7)])
"""A configuration, a tick, three bids, one for an unknown zone, a node's sign of life, which decides nothing,
and a bid: so the last event is decided."""
LOG = Log.of(LEDGER)
SHORT = Log.of(LEDGER[:3])
"""The log up to the first bid, for the cases that change every byte."""
QUIET = next(index for index, entry in enumerate(LEDGER) if entry.envelope.event is SEEN)
LAST = len(LEDGER) - 1


def verdict_on(folder: Path, log: Log, kept: tuple[KeptHead, ...] = ()) -> Verdict:
    (folder / "ledger.jsonl").write_bytes(b"".join(log.ledger))
    (folder / "decisions.jsonl").write_bytes(b"".join(log.decisions))
    return verify_files(folder / "ledger.jsonl", folder / "decisions.jsonl", kept=kept)


def noticed(folder: Path, log: Log, kept: tuple[KeptHead, ...] = ()) -> str | None:
    """Return the kind of the first difference, `chain`, `head`, or `refused`; None without one."""
    try:
        verdict = verdict_on(folder, log, kept)
    except ReplayError:
        return "refused"
    if verdict.first is not None:
        return verdict.first.kind
    if verdict.broken_links:
        return "chain"
    return None if verdict.ok else "head"


def without(lines: tuple[bytes, ...], index: int) -> tuple[bytes, ...]:
    return lines[:index] + lines[index + 1 :]


def swapped(lines: tuple[bytes, ...], index: int) -> tuple[bytes, ...]:
    return (*lines[:index], lines[index + 1], lines[index], *lines[index + 2 :])


def put(lines: tuple[bytes, ...], index: int, line: bytes) -> tuple[bytes, ...]:
    return (*lines[:index], line, *lines[index:])


def edited(lines: tuple[bytes, ...], index: int, old: bytes, new: bytes) -> tuple[bytes, ...]:
    assert lines[index].count(old) >= 1
    return (*lines[:index], lines[index].replace(old, new, 1), *lines[index + 1 :])


def test_the_log_itself_is_proven(tmp_path: Path) -> None:
    assert verdict_on(tmp_path, LOG).ok
    assert not [d for d in LOG.decisions if b'"alpha-%d-' % QUIET in d[:20]]
    assert b'"alpha-%d-' % LAST in LOG.decisions[-1][:20]


L, D = LOG.ledger, LOG.decisions
APPENDED = Log.of([*LEDGER, LedgerEvent(LAST + 1, events.envelope(events.bid(77), "late"))])


def ledger(*lines: bytes) -> Log:
    return replace(LOG, ledger=lines)


def decisions(*lines: bytes) -> Log:
    return replace(LOG, decisions=lines)


TAMPERINGS: dict[str, tuple[Log, str]] = {
    # The ledger.
    "an event's value": (ledger(*edited(L, 2, b'"bid_micros":', b'"bid_micros":9')), "altered"),
    "an event's time, which decides nothing": (
        ledger(*edited(L, 2, b"T00:", b"T01:")),
        "altered",
    ),
    "an event's source, which decides nothing": (
        ledger(*edited(L, 2, b'"tests"', b'"rests"')),
        "altered",
    ),
    "a number spelled otherwise": (ledger(*edited(L, 1, b".0}", b".00}")), "refused"),
    "a space": (ledger(*edited(L, 1, b":", b": ")), "refused"),
    "a line break as on Windows": (ledger(*edited(L, 1, b"\n", b"\r\n")), "refused"),
    "a letter escaped": (ledger(*edited(L, 1, b"tests", b"\\u0074ests")), "refused"),
    "a letter of the data escaped": (
        ledger(*edited(L, 2, b'"user"', b'"\\u0075ser"')),
        "refused",
    ),
    "a key twice": (
        ledger(*edited(L, 1, b'{"offset":1,', b'{"offset":1,"offset":1,')),
        "refused",
    ),
    "a key of the data twice": (
        ledger(*edited(L, 1, b'"data":{', b'"data":{"cell":"alpha",')),
        "refused",
    ),
    "a key deep in the data twice": (
        ledger(*edited(L, 2, b'"dataset":{', b'"dataset":{"samples":500,')),
        "refused",
    ),
    "an unknown attribute": (ledger(*edited(L, 1, b',"data"', b',"x":1,"data"')), "refused"),
    "an unknown attribute at the end": (ledger(*edited(L, 1, b"}\n", b',"x":1}\n')), "refused"),
    "an unknown field of the data": (
        ledger(*edited(L, 1, b'"data":{', b'"data":{"x":1,')),
        "refused",
    ),
    "attributes in another order": (
        ledger(*edited(L, 1, b'{"offset":1,"id":"e1"', b'{"id":"e1","offset":1')),
        "refused",
    ),
    "a default left out": (
        ledger(*edited(L, 2, b',"needs_preprocessing":false', b"")),
        "altered",
    ),
    "junk behind an event": (ledger(*edited(L, 1, b"\n", b"x\n")), "refused"),
    "a second object behind an event": (ledger(*edited(L, 1, b"\n", b"{}\n")), "refused"),
    "an empty line": (ledger(*put(L, 3, b"\n")), "refused"),
    "an event twice": (ledger(*put(L, 3, L[3])), "refused"),
    "two events swapped": (ledger(*swapped(L, 2)), "refused"),
    "two events swapped, offsets kept": (
        ledger(
            *(
                *L[:2],
                L[3].replace(b'{"offset":3', b'{"offset":2'),
                L[2].replace(b'{"offset":2', b'{"offset":3'),
                *L[4:],
            ),
        ),
        "altered",
    ),
    "an event deleted": (ledger(*without(L, 2)), "altered"),
    "an event without decisions deleted": (ledger(*without(L, QUIET)), "altered"),
    "an event inserted": (
        ledger(
            *put(edited(L, LAST, b'{"offset":6', b'{"offset":7'), LAST, L[QUIET].replace(b":5", b":6", 1)),
        ),
        "altered",
    ),
    "an event appended": (ledger(*(*L, APPENDED.ledger[-1])), "missing"),
    "the ledger cut within its last line": (ledger(*(*L[:-1], L[-1][:-9])), "refused"),
    "the ledger cut before its last line break": (ledger(*(*L[:-1], L[-1][:-1])), "refused"),
    "the ledger cut by its last line": (ledger(*L[:-1]), "extra"),
    "an empty ledger": (ledger(), "extra"),
    "the ledger without its beginning": (ledger(*L[1:]), "altered"),
    "a ledger behind itself": (ledger(*L + L), "refused"),
    # The decisions.
    "a decision's value": (decisions(*edited(D, 2, b'"reason":"', b'"reason":"x')), "altered"),
    "a decision's link": (decisions(*edited(D, 2, b'"chain":"', b'"chain":"0')), "altered"),
    "a decision's id": (decisions(*edited(D, 2, b'"id":"alpha-', b'"id":"alpha-9')), "missing"),
    "a space in a decision": (decisions(*edited(D, 2, b":", b": ")), "missing"),
    "a decision's line break as on Windows": (
        decisions(*edited(D, 2, b"\n", b"\r\n")),
        "altered",
    ),
    "a decision's key twice": (
        decisions(*edited(D, 2, b',"data"', b',"cell":"alpha","data"')),
        "altered",
    ),
    "a decision's unknown attribute": (decisions(*edited(D, 2, b"}\n", b',"x":1}\n')), "altered"),
    "junk behind a decision": (decisions(*edited(D, 2, b"\n", b" x\n")), "altered"),
    "a space behind a decision": (decisions(*edited(D, 2, b"\n", b" \n")), "altered"),
    "an empty line among the decisions": (decisions(*put(D, 2, b"\n")), "unreadable"),
    "a decision twice": (decisions(*put(D, 2, D[2])), "repeated"),
    "a decision again at the end": (decisions(*(*D, D[2])), "repeated"),
    "two decisions swapped": (decisions(*swapped(D, 2)), "misplaced"),
    "a decision deleted": (decisions(*without(D, 2)), "missing"),
    "a decision appended": (decisions(*(*D, APPENDED.decisions[-1])), "extra"),
    "what is no decision inserted": (decisions(*put(D, 2, b"rubbish\n")), "unreadable"),
    "the decisions cut within their last line": (decisions(*(*D[:-1], D[-1][:-9])), "refused"),
    "the decisions cut before their last line break": (
        decisions(*(*D[:-1], D[-1][:-1])),
        "refused",
    ),
    "the decisions cut by their last line": (decisions(*D[:-1]), "missing"),
    "no decisions": (decisions(), "missing"),
    "decisions behind themselves": (decisions(*D + D), "repeated"),
}


@pytest.mark.parametrize(("log", "how"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_what_is_noticed_and_how(tmp_path: Path, log: Log, how: str) -> None:
    assert noticed(tmp_path, log) == how


@pytest.mark.parametrize(("index", "how"), [(QUIET, "altered"), (LAST, "missing")], ids=["quiet", "decided"])
def test_event_at_other_offset_is_noticed(tmp_path: Path, index: int, how: str) -> None:
    """An event that decided nothing is noticed, too: only the chain depends on its offset."""
    log = Log.of([LedgerEvent(2 * entry.offset, entry.envelope) for entry in LEDGER])
    assert verdict_on(tmp_path, log).ok
    moved = edited(log.ledger, index, b'{"offset":%d' % (2 * index), b'{"offset":%d' % (2 * index - 1))
    assert noticed(tmp_path, replace(log, ledger=moved)) == how


def rewritten() -> Log:
    bid = with_bid(LEDGER[2].envelope.event, 999_999)
    return Log.of([*LEDGER[:2], LedgerEvent(2, replace(LEDGER[2].envelope, event=bid)), *LEDGER[3:]])


UNNOTICED: dict[str, Log] = {
    "both rewritten consistently": rewritten(),
    "both cut at the same event": Log.of(LEDGER[:4]),
    "the last event cut, which decided nothing": Log.of(LEDGER[: QUIET + 1]),
    "both empty": Log((), ()),
}


@pytest.mark.parametrize("log", UNNOTICED.values(), ids=UNNOTICED)
def test_kept_head_reveals_consistent_rewrite(tmp_path: Path, log: Log) -> None:
    head = verdict_on(tmp_path, LOG).heads["alpha"]

    assert noticed(tmp_path, log) is None
    assert noticed(tmp_path, log, (KeptHead("alpha", head),)) == "head"


def test_grown_log_contains_kept_head(tmp_path: Path) -> None:
    kept = tuple(
        KeptHead(cell, verdict_on(tmp_path, Log.of(LEDGER[:length])).heads["alpha"])
        for length in range(1, len(LEDGER) + 1)
        for cell in ("alpha", None)
    )
    assert verdict_on(tmp_path, APPENDED, kept).ok


@pytest.mark.parametrize(
    ("kept", "fault"),
    [
        ("alpha=0:" + 64 * "0", "the chain of cell alpha at offset 0 is "),
        ("9:" + 64 * "0", "the ledger of cell alpha ends at offset 6, and a head was kept of offset 9"),
        ("beta=0:" + 64 * "0", "the ledger has no event of cell beta"),
    ],
)
def test_a_head_that_is_not_found_is_named(tmp_path: Path, kept: str, fault: str) -> None:
    verdict = verdict_on(tmp_path, LOG, (KeptHead.parse(kept),))
    assert (verdict.ok, verdict.difference_count) == (False, 0)
    (line,) = verdict.head_faults
    assert line.startswith(fault)


def test_head_names_its_cell_among_several(tmp_path: Path) -> None:
    other = [
        LedgerEvent(offset, events.envelope(event, f"b{offset}"))
        for offset, event in enumerate(events.stream(7, "beta"))
    ]
    both = Log.of([*LEDGER, *other])
    head = verdict_on(tmp_path, both).heads["beta"]

    assert verdict_on(tmp_path, both, (KeptHead("beta", head),)).ok
    (line,) = verdict_on(tmp_path, both, (KeptHead(None, head),)).head_faults
    assert "alpha, beta: name one, as CELL=6:" in line


@pytest.mark.parametrize(
    "text", ["", "1", "1:", ":" + 64 * "0", "-1:" + 64 * "0", "a=b=1:" + 64 * "0", "1:" + 64 * "g"]
)
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no head: expected OFFSET:CHAIN or CELL=OFFSET:CHAIN"):
        KeptHead.parse(text)
    assert KeptHead.parse("c=1:" + 64 * "0") == KeptHead("c", Head(1, 64 * "0"))


def of_two_cells() -> tuple[list[LedgerEvent], list[LedgerEvent]]:
    """Two ledgers of one partition: a cell has the even offsets, the other the odd ones."""
    one, other = (
        [
            LedgerEvent(2 * index + first, events.envelope(event, f"{cell}{index}"))
            for index, event in enumerate(events.stream(7, cell))
        ]
        for first, cell in enumerate(("alpha", "beta"))
    )
    return one, other


def test_an_export_behind_an_earlier_one_is_refused(tmp_path: Path) -> None:
    earlier = Log.of(LEDGER[:4])
    for log in (
        Log(earlier.ledger + L, earlier.decisions + D),
        Log(L + earlier.ledger, D + earlier.decisions),
    ):
        assert noticed(tmp_path, log) == "refused"


def test_joined_logs_of_two_cells_are_valid(tmp_path: Path) -> None:
    one, other = map(Log.of, of_two_cells())
    both = verdict_on(tmp_path, Log(one.ledger + other.ledger, one.decisions + other.decisions))
    assert (both.ok, both.cells) == (True, 2)


@pytest.mark.parametrize("file", ["ledger", "decisions"])
def test_swapped_lines_of_two_cells_are_noticed(tmp_path: Path, file: str) -> None:
    one, other = of_two_cells()
    log = Log.of(sorted([*one, *other], key=lambda entry: entry.offset))
    lines = getattr(log, file)
    assert verdict_on(tmp_path, log).ok
    for index in range(len(lines) - 1):
        assert noticed(tmp_path, replace(log, **{file: swapped(lines, index)})) is not None, index


@pytest.mark.parametrize("change", [without, swapped], ids=["deleted", "swapped"])
@pytest.mark.parametrize("file", ["ledger", "decisions"])
def test_deleted_or_swapped_line_is_noticed(
    tmp_path: Path, file: str, change: Callable[[tuple[bytes, ...], int], tuple[bytes, ...]]
) -> None:
    lines = getattr(LOG, file)
    for index in range(len(lines) - (change is swapped)):
        assert noticed(tmp_path, replace(LOG, **{file: change(lines, index)})) is not None, index


@pytest.mark.parametrize("file", ["ledger", "decisions"])
def test_any_line_repeated_anywhere_is_noticed(tmp_path: Path, file: str) -> None:
    lines = getattr(LOG, file)
    for place in range(len(lines) + 1):
        for line in lines:
            assert noticed(tmp_path, replace(LOG, **{file: put(lines, place, line)})) is not None, place


@pytest.mark.parametrize("file", ["ledger", "decisions"])
def test_a_file_cut_anywhere_is_noticed(tmp_path: Path, file: str) -> None:
    content = b"".join(getattr(SHORT, file))
    for length in range(0, len(content), 3 if LONG else 23):
        assert noticed(tmp_path, replace(SHORT, **{file: (content[:length],)})) is not None, length


@pytest.mark.parametrize("file", ["ledger", "decisions"])
def test_any_byte_altered_is_noticed(tmp_path: Path, file: str) -> None:
    """Into another digit or letter, its other case, or what ends strings, lines and values, in turn."""
    content = b"".join(getattr(SHORT, file))
    for place in range(0, len(content), 1 if LONG else 7):
        byte = content[place]
        others = sorted({byte ^ 1, byte ^ 0x20, ord(" "), ord("\n"), 0xFF} - {byte})
        other = others[place % len(others)]
        altered = content[:place] + bytes([other]) + content[place + 1 :]
        assert noticed(tmp_path, replace(SHORT, **{file: (altered,)})) is not None, (place, other)
