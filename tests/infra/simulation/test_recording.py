"""When recorded events happened, and which nodes were there when."""

import math

import pytest

from infra.simulation.recording import BEFORE_ALL, LedgerRecording, timed
from infra.simulation.simulator import sent_at
from schemas.base import Event
from schemas.codec import Envelope
from streams.cell.ledger_event import LedgerEvent
from tests.support.cells import (
    EPOCH_S,
    bid,
    configuration,
    node_seen,
    offline,
    online,
    progressed,
    silent,
    tick,
)


def entries(*sent: tuple[str, Event]) -> list[LedgerEvent]:
    return [
        LedgerEvent(offset, Envelope(f"e{offset}", "test", time, event))
        for offset, (time, event) in enumerate(sent)
    ]


def at(offset_s: float) -> str:
    return sent_at(EPOCH_S + offset_s)


@pytest.mark.parametrize(
    ("sent", "expected_s"),
    [
        pytest.param(at(4.5), 4.5, id="between the ticks"),
        pytest.param(at(-1e3), 0.0, id="before the last tick"),
        pytest.param(at(99.0), 10.0, id="after the next tick"),
        pytest.param("", 0.0, id="not said"),
        pytest.param("noon", 0.0, id="no time"),
        pytest.param("1970-01-01T00:16:44.500", 4.5, id="without a zone it is read as UTC"),
        pytest.param("1970-01-01T02:16:44.500+02:00", 4.5, id="in another zone"),
    ],
)
def test_event_time_is_senders_within_ticks(sent, expected_s):
    ledger = entries(("", tick(0)), (sent, bid()), ("", tick(1)))
    assert [time_s - EPOCH_S for time_s, _ in timed(ledger)] == [0.0, expected_s, 10.0]


def test_ledger_order_is_kept_until_a_final_tick():
    ledger = entries(
        ("", tick(0)), (at(6.0), bid("a")), (at(3.0), bid("b")), ("", tick(1)), (at(50.0), bid("c"))
    )
    times = [time_s - EPOCH_S for time_s, _ in timed(ledger)]
    assert times == [0.0, 6.0, 6.0, 10.0, 20.0]
    assert [entry for _, entry in timed(ledger)] == ledger


def test_a_tick_that_goes_back_moves_no_time():
    ledger = entries(("", tick(2)), ("", tick(1)), ("", tick(3)))
    assert [time_s - EPOCH_S for time_s, _ in timed(ledger)] == [20.0, 20.0, 30.0]


def test_time_before_first_tick_may_be_unknown():
    assert [time_s for time_s, _ in timed(entries(("", bid())))] == [BEFORE_ALL]


def recording_of(*events: tuple[float, Event], ids: tuple[str, ...] = ()) -> LedgerRecording:
    recording = LedgerRecording(configuration())
    for number, (offset_s, event) in enumerate(events):
        id = ids[number] if ids else f"e{number}"
        recording.add(EPOCH_S + offset_s, LedgerEvent(number, Envelope(id, "test", "", event)))
    return recording


def until(recording: LedgerRecording, offset_s: float) -> float | None:
    until_s = recording.present_until_s("a1", EPOCH_S + offset_s)
    return None if until_s is None else until_s - EPOCH_S


# Silent for 20 s by then: its last report was at 10 s.
LOST = (
    (0.0, online("a1")),
    (10.0, progressed("a1", 0, 50)),
    (30.0, silent("a1")),
    (60.0, node_seen("a1")),
    (65.0, tick(6.5)),
)


@pytest.mark.parametrize(
    ("events", "offset_s", "expected"),
    [
        pytest.param((), 0.0, None, id="without a sign of life"),
        pytest.param(((5.0, online("a1")),), 4.0, None, id="before its first sign of life"),
        pytest.param(((5.0, online("a1")),), 5.0, math.inf, id="to the end"),
        pytest.param(((0.0, online("a1")), (30.0, tick(3))), 0.0, math.inf, id="nobody says it is silent"),
        pytest.param(((0.0, online("a1")), (25.0, silent("a1"))), 0.0, 5.0, id="silent to the end"),
        pytest.param(LOST, 4.0, 10.0, id="to its last sign of life before a silence"),
        pytest.param(LOST, 11.0, None, id="silent"),
        pytest.param(LOST, 60.0, math.inf, id="back"),
        pytest.param(((0.0, online("a1")), (9.0, offline("a1"))), 4.0, 9.0, id="to its leave"),
        pytest.param(((0.0, online("a1")), (9.0, offline("a1"))), 10.0, None, id="after its leave"),
        pytest.param(
            ((0.0, online("a1")), (9.0, offline("a1")), (12.0, online("a1"))), 4.0, 9.0, id="left for a while"
        ),
    ],
)
def test_node_is_present_between_signs_of_life(events, offset_s, expected):
    assert until(recording_of(*events), offset_s) == expected


def test_generations_of_what_ifs_count_up():
    assert recording_of((0.0, tick(0))).generation == 0
    ids = ("what-if-0-7", "what-if-3-1", "what-if-x-9")
    assert recording_of((0.0, tick(0)), (1.0, tick(1)), (2.0, tick(2)), ids=ids).generation == 4


def test_ledger_has_nodes_by_configuration_or_report():
    recording = recording_of((0.0, node_seen("stray")))
    assert [recording.has_node(node) for node in ("a1", "stray", "added-1")] == [True, True, False]
