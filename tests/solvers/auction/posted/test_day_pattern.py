"""What is learned of the hours of a day, and how far it is believed."""

import random

import msgpack
import numpy as np
import pytest

from solvers.auction.market.fleet import Calendar
from solvers.auction.posted.day_pattern import DayPattern

SLOT_S = 600.0
PER_HOUR = 6
PER_DAY = 24 * PER_HOUR
TEN_OCLOCK = 10 * PER_HOUR
THREE_OCLOCK = 3 * PER_HOUR


def pattern_of(days: float, units_of) -> DayPattern:
    """After so many days, each slot of which asked for `units_of(slot)`."""
    pattern = DayPattern(Calendar(0.0, SLOT_S), 0, PER_DAY)
    for slot in range(round(days * PER_DAY)):
        pattern.advance(1, units_of(slot))
    return pattern


def by_day(slot: int) -> float:
    """Nine times as much from eight to eight as by night: 1.8 and 0.2 of the mean."""
    return 90.0 if 8 <= slot // PER_HOUR % 24 < 20 else 10.0


def test_a_day_alone_foretells_nothing_and_a_second_one_that_is_like_it_all():
    for days in (0, 0.5, 1.0, 1.9):
        assert pattern_of(days, by_day).expected(0, PER_DAY).tolist() == [1.0] * PER_DAY
        assert pattern_of(days, by_day).expected_ahead(PER_DAY) == PER_DAY
    pattern = pattern_of(2 + 1 / 24, by_day)
    assert pattern.believed_part == pytest.approx(1.0)
    expected = pattern.expected(0, PER_DAY)
    assert expected[TEN_OCLOCK] == pytest.approx(1.8)
    assert expected[THREE_OCLOCK] == pytest.approx(0.2)
    assert expected.mean() == pytest.approx(1.0)


def test_bursts_that_follow_no_clock_are_hardly_believed():
    parts = []
    for seed in range(10):
        bursts = random.Random(seed)
        by_hour = [bursts.expovariate(1.0) ** 3 for _ in range(24 * 6)]
        parts.append(pattern_of(6, lambda slot, by_hour=by_hour: by_hour[slot // PER_HOUR]).believed_part)
    assert sum(parts) / len(parts) < 0.1


def test_the_more_a_day_differs_from_the_last_the_less_of_the_pattern_is_believed():
    parts = []
    for noise in (0.0, 0.5, 2.0):
        draw = random.Random(5)
        by_hour = [1 + noise * (draw.random() - 0.5) * 2 for _ in range(24 * 6)]
        parts.append(
            pattern_of(
                6, lambda slot, by_hour=by_hour: max(by_day(slot) * by_hour[slot // PER_HOUR], 0.0)
            ).believed_part
        )
    assert parts == sorted(parts, reverse=True)
    assert parts[0] == pytest.approx(1.0)
    assert parts[-1] < 0.9


def test_a_night_ahead_makes_no_evening_cheap_and_a_morning_ahead_is_expected_by_night():
    evening, night = pattern_of(3 + 19 / 24, by_day), pattern_of(3 + 7 / 24, by_day)
    assert evening.expected_ahead(5 * PER_HOUR) == pytest.approx(5 * PER_HOUR * 1.8)
    assert night.expected_ahead(9 * PER_HOUR) == pytest.approx(PER_HOUR * 0.2 + 8 * PER_HOUR * 1.8)
    assert night.expected_ahead(PER_HOUR) == pytest.approx(PER_HOUR * 0.2)


def test_days_that_turn_round_are_not_believed():
    pattern = pattern_of(2.5, lambda slot: by_day(slot + (slot // PER_DAY) * PER_DAY // 2))
    assert pattern.believed_part == 0.0
    assert pattern.expected(0, 3).tolist() == [1.0, 1.0, 1.0]


def test_no_hour_is_expected_to_ask_for_nothing_and_none_for_less_than_it_can():
    pattern = pattern_of(4, lambda slot: 100.0 if slot % PER_DAY == TEN_OCLOCK else 0.0)
    expected = pattern.expected(0, PER_DAY)
    assert expected.min() == 1 / 64
    assert expected.max() == pytest.approx(24.0)


def test_days_without_a_bid_have_no_pattern():
    pattern = pattern_of(3, lambda _: 0.0)
    assert pattern.believed_part == 0.0
    assert pattern.expected(0, 2).tolist() == [1.0, 1.0]


def test_slots_that_pass_at_once_count_as_one_by_one_with_nothing_asked_for_after_the_first():
    alone, at_once = pattern_of(2, by_day), pattern_of(2, by_day)
    at_once.advance(20, 7.0)
    for slot in range(20):
        alone.advance(1, 7.0 if slot == 0 else 0.0)
    assert alone.state() == at_once.state()


@pytest.mark.parametrize("slot_s", [4.0, 3_600.0, 10_000.0, 86_400.0, 200_000.0])
def test_slots_of_any_length_have_their_hour(slot_s):
    pattern = DayPattern(Calendar(0.0, slot_s), 0, 40)
    for slot in range(300):
        pattern.advance(1, 5.0 + slot % 3)
    expected = pattern.expected(300, 40)
    assert np.all(np.isfinite(expected))
    assert np.all(expected > 0)
    means = [expected[:some].mean() for some in range(8, 41)]
    assert pattern.expected_ahead(40) == pytest.approx(40 * max(means))


def test_it_goes_on_from_its_state():
    pattern = pattern_of(2.3, by_day)
    twin = DayPattern(Calendar(0.0, SLOT_S), 0, PER_DAY)
    twin.restore(msgpack.unpackb(msgpack.packb(pattern.state())))
    for one in (pattern, twin):
        for slot in range(round(2.3 * PER_DAY), 3 * PER_DAY):
            one.advance(1, by_day(slot) + slot % 5)
    assert twin.state() == pattern.state()
    assert twin.expected_ahead(PER_DAY) == pattern.expected_ahead(PER_DAY) != PER_DAY
