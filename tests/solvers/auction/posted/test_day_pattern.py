"""The hours of a day are learned, and weighted by their evidence."""

import random
import time
from collections.abc import Callable

import msgpack
import pytest

from solvers.auction.market.fleet import Calendar
from solvers.auction.posted.day_pattern import DayPattern

SLOT_S = 600.0
PER_HOUR = 6
PER_DAY = 24 * PER_HOUR
TEN_OCLOCK = 10 * PER_HOUR
THREE_OCLOCK = 3 * PER_HOUR
ROOM_UNITS = 100.0


def pattern_of(days: float, units_of: Callable[[int], float], epoch_s: float = 0.0) -> DayPattern:
    """After so many days, each slot of which asked for `units_of(slot)`."""
    pattern = DayPattern(Calendar(epoch_s, SLOT_S), 0, PER_DAY)
    for slot in range(round(days * PER_DAY)):
        pattern.advance(1, units_of(slot), ROOM_UNITS)
    return pattern


def hour_of(slot: int) -> int:
    return slot // PER_HOUR % 24


def by_day(slot: int) -> float:
    """Nine times as much from eight to eight as by night: 1.8 and 0.2 of the mean."""
    return 90.0 if 8 <= hour_of(slot) < 20 else 10.0


def noisy(slot: int) -> float:
    """Return the load of a slot, with a random change of up to a half for each hour of each day."""
    return by_day(slot) * random.Random(slot // PER_HOUR).uniform(0.5, 1.5)


def expected_of_day(pattern: DayPattern) -> list[float]:
    """Return the expected loads of a day by a pattern whose present slot is the day's first."""
    return pattern.expected(PER_DAY).tolist()


def test_forecast_needs_two_equal_days():
    for days in (0, 0.5, 1.0, 1.9, 2.0):
        pattern = pattern_of(days, by_day)
        assert pattern.believed_part == 0.0
        assert pattern.expected(PER_DAY).tolist() == [1.0] * PER_DAY
        assert pattern.expected_ahead(PER_DAY, PER_DAY // 5) == PER_DAY
    pattern = pattern_of(2 + 1 / PER_DAY, by_day)
    assert pattern.believed_part == pytest.approx(1.0)
    expected = [pattern.expected(PER_DAY)[slot - 1] for slot in (TEN_OCLOCK, THREE_OCLOCK)]
    assert expected == pytest.approx([1.8, 0.2])


def test_partly_seen_day_is_not_compared():
    assert pattern_of(2.6, by_day, epoch_s=8 * 3_600.0).believed_part == 0.0
    assert pattern_of(2.7, by_day, epoch_s=8 * 3_600.0).believed_part == pytest.approx(1.0)


def test_varying_hour_weakens_the_pattern():
    parts = [pattern_of(6, units_of).believed_part for units_of in (by_day, noisy)]
    drawn = random.Random(7)
    hours = [drawn.expovariate(1.0) ** 2 * 30 for _ in range(24 * 6)]
    parts.append(pattern_of(6, lambda slot: hours[slot // PER_HOUR]).believed_part)
    assert parts[0] == pytest.approx(1.0)
    assert 0.7 < parts[1] < 0.98
    assert parts[2] < 0.3


def test_irregular_bursts_are_hardly_trusted():
    parts = []
    for seed in range(10):
        bursts = random.Random(seed)
        hours = [30 * bursts.expovariate(1.0) ** 3 for _ in range(24 * 6)]
        parts.append(pattern_of(6, lambda slot, hours=hours: hours[slot // PER_HOUR]).believed_part)
    assert sum(parts) / len(parts) < 0.1


@pytest.mark.parametrize("levels", [[1, 2, 4, 8, 16, 32, 64], [5, 5.5, 6.5, 6, 10, 15, 50]])
def test_level_of_day_changes_no_hours(levels):
    pattern = pattern_of(6.5, lambda slot: float(levels[slot // PER_DAY]))
    assert pattern.believed_part == 0.0


def test_days_without_bids_are_not_compared():
    week, after = pattern_of(5, noisy), pattern_of(5, noisy)
    for _ in range(2 * PER_DAY + 1):
        week.advance(1, 0.0, ROOM_UNITS)
    after.advance(1, 0.0, ROOM_UNITS)
    for learned in ("shape", "days", "sums", "mean"):
        assert week.state()[learned] == after.state()[learned]
    assert pattern_of(4, lambda _: 0.0).believed_part == 0.0


def a_burst_at(hour: int) -> Callable[[int], float]:
    return lambda slot: 240.0 if hour_of(slot) == hour else 0.0


@pytest.mark.parametrize(
    ("habit", "units_of", "hours"),
    [
        (by_day, lambda slot: by_day(slot + PER_DAY // 2), 2),
        (by_day, lambda _: 50.0, 6),
        (a_burst_at(9), lambda _: 10.0, 8),
        (a_burst_at(9), a_burst_at(8), 8.5),
        (a_burst_at(9), a_burst_at(21), 9.5),
    ],
    ids=["days turn round", "no hours", "no burst", "an earlier burst", "no burst at its hour"],
)
def test_a_habit_that_ends_is_doubted_within_hours(habit, units_of, hours):
    def changed(slot: int) -> float:
        return habit(slot) if slot < 5 * PER_DAY else units_of(slot)

    assert pattern_of(5, changed).believed_part > 0.9
    assert pattern_of(5 + hours / 24, changed).believed_part < 0.2


def test_continued_habit_is_trusted_all_day():
    habit = pattern_of(5, by_day)
    for slot in range(5 * PER_DAY, 6 * PER_DAY):
        habit.advance(1, by_day(slot), ROOM_UNITS)
        assert habit.believed_part > 0.99
    for slot in range(6 * PER_DAY, 7 * PER_DAY):
        habit.advance(1, 4 * by_day(slot), ROOM_UNITS)
        if 12 <= hour_of(slot) < 20:
            assert habit.believed_part > 0.8


def test_a_large_bid_by_night_ends_no_habit():
    def burst(slot: int) -> float:
        return 1e9 if slot == 5 * PER_DAY + THREE_OCLOCK else by_day(slot)

    assert pattern_of(5 + 3.5 / 24, burst).believed_part > 0.7


def test_reversed_days_are_not_trusted():
    pattern = pattern_of(3.5, lambda slot: by_day(slot + (slot // PER_DAY) * PER_DAY // 2))
    assert pattern.believed_part == 0.0


def test_single_huge_burst_is_forgotten_within_days():
    def burst(slot: int) -> float:
        return 1e9 if slot == 5 * PER_DAY + THREE_OCLOCK else noisy(slot)

    def part_after(days: int) -> float:
        return pattern_of(days + 1 / PER_DAY, burst).believed_part

    assert part_after(5) > 0.7
    assert part_after(6) > 0.5
    assert part_after(8) > 0.7


def test_expected_night_and_morning_change_prices_gradually():
    evening, night = pattern_of(3 + 19 / 24, by_day), pattern_of(3 + 7 / 24, by_day)
    assert evening.expected_ahead(5 * PER_HOUR, PER_HOUR) == pytest.approx(5 * PER_HOUR * 1.8)
    by_nine = PER_HOUR * 0.2 + 8 * PER_HOUR * 1.8
    assert night.expected_ahead(9 * PER_HOUR, 2 * PER_HOUR) == pytest.approx(by_nine)
    assert night.expected_ahead(PER_HOUR, 1) == pytest.approx(PER_HOUR * 0.2)


@pytest.mark.parametrize("slots", range(1, 15))
@pytest.mark.parametrize("part", [1, 3, 5])
def test_busiest_stretch_has_minimum_length(slots, part):
    pattern = pattern_of(3 + 19.5 / 24, by_day)
    by_slot, shortest = pattern.expected(slots), -(-slots // part)
    means = [by_slot[:some].mean() for some in range(shortest, slots + 1)]
    assert pattern.expected_ahead(slots, shortest) == pytest.approx(slots * max(means))


def test_no_hour_is_expected_to_ask_for_nothing():
    once_a_day = pattern_of(4 + 1 / PER_DAY, lambda slot: 100.0 if hour_of(slot) == 10 else 0.0)
    expected = once_a_day.expected(PER_DAY)
    assert expected.min() == 1 / 64
    assert expected.max() == pytest.approx(24.0)


def test_skipped_slots_count_as_empty():
    alone, at_once = pattern_of(2, by_day), pattern_of(2, by_day)
    at_once.advance(PER_DAY + 20, 7.0, ROOM_UNITS)
    for slot in range(PER_DAY + 20):
        alone.advance(1, 7.0 if slot == 0 else 0.0, ROOM_UNITS)
    one_by_one, together = alone.state(), at_once.state()
    assert one_by_one.pop("lately") == pytest.approx(together.pop("lately"))
    assert one_by_one == together


@pytest.mark.parametrize("epoch_s", [0.0, 1_234.5])
@pytest.mark.parametrize("slot_s", [0.01, 7.0, 3_599.0, 5_000.0])
def test_day_long_pause_is_fast_with_short_slots(slot_s, epoch_s, monkeypatch):
    passed = []
    pass_slots = DayPattern._pass
    monkeypatch.setattr(
        DayPattern,
        "_pass",
        lambda self, slot, slots, units: passed.append(slots) or pass_slots(self, slot, slots, units),
    )
    pattern = DayPattern(Calendar(epoch_s, slot_s), 0, PER_DAY)
    slots = int(46 * 3_600 / slot_s)
    pattern.advance(slots, 5.0, ROOM_UNITS)
    assert sum(passed) == slots
    assert len(passed) <= 1 + 47


def test_long_pause_restarts_day_at_once():
    pattern = pattern_of(4, by_day)
    before_s = time.process_time()
    pattern.advance(10**10, 5.0, ROOM_UNITS)
    assert time.process_time() - before_s < 0.5
    assert pattern.believed_part == pytest.approx(1.0)
    pause = DayPattern(Calendar(0.0, SLOT_S), 0, PER_DAY)
    pause.advance(10**10, 5.0, ROOM_UNITS)
    assert pause.believed_part == 0.0


@pytest.mark.parametrize(
    ("slot_s", "is_known"), [(4.0, True), (3_600.0, True), (10_800.0, True), (86_400.0, False), (2e5, False)]
)
def test_long_slots_have_no_hours(slot_s, is_known):
    pattern = DayPattern(Calendar(0.0, slot_s), 0, 9)
    slots = max(round(2 * 86_400 / slot_s), 1)
    for slot in range(slots + 1):
        hour = slot * slot_s // 3_600 % 24
        pattern.advance(1, 90.0 if 8 <= hour < 20 else 10.0, ROOM_UNITS)
    assert (pattern.believed_part > 0.9) == is_known


def test_it_goes_on_from_its_state():
    pattern = pattern_of(2.3, noisy)
    twin = DayPattern(Calendar(0.0, SLOT_S), 0, PER_DAY)
    twin.restore(msgpack.unpackb(msgpack.packb(pattern.state())))
    for one in (pattern, twin):
        for slot in range(round(2.3 * PER_DAY), 4 * PER_DAY):
            one.advance(1, noisy(slot), ROOM_UNITS)
    assert twin.state() == pattern.state()
    assert twin.expected_ahead(PER_DAY, 29) == pattern.expected_ahead(PER_DAY, 29) != PER_DAY
