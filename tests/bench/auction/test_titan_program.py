"""The time of Titan's program: on batches of the day as they were, to their end."""

from dataclasses import replace

import pytest

from bench.auction import trials
from bench.auction.trials import EVERY, RELATIVE_GAP, TITANS_PROGRAM, AuctionTrial, run_trial
from solvers.auction.offline.schedule_free import solve_schedule_free
from tests.bench.auction.rows import TINY

SETTING = replace(TINY, slots=EVERY + 4, arrivals_per_slot=6.0)


def test_every_twelfth_batch_is_solved_completely(monkeypatch):
    solved = []

    def watched(instance, time_limit_s, relative_gap):
        solution = solve_schedule_free(instance, time_limit_s, relative_gap)
        solved.append((instance.first_slot, len(instance.tasks), relative_gap, solution.seconds))
        return solution

    monkeypatch.setattr(trials, "solve_schedule_free", watched)
    values = run_trial(AuctionTrial(SETTING, 0, TITANS_PROGRAM))
    first_slots, bids, gaps, seconds = zip(*solved, strict=True)
    assert EVERY < values["solves"] <= 2 * EVERY
    assert len(solved) == values["program_solves"] == 2
    assert first_slots[1] - first_slots[0] >= EVERY
    assert gaps == (RELATIVE_GAP, RELATIVE_GAP)
    assert values["program_bids"] == sum(bids) > 0
    assert values["program_proven"] == 2
    assert values["program_s_per_bid"] == pytest.approx(sum(seconds) / sum(bids))


def test_other_day_is_that_of_titan():
    program = run_trial(AuctionTrial(SETTING, 0, TITANS_PROGRAM))
    titan = run_trial(AuctionTrial(SETTING, 0, "titan"))
    for value in ("bids", "admitted", "welfare_micros", "solves"):
        assert program[value] == titan[value]
