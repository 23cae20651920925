"""Gains forecast from the outcomes of other pairs, and what merges are worth."""

import math
import random

import numpy as np
import pytest

from solvers.merging import pairs
from solvers.merging.evidence import MergeQuestion, MergeResult, forecast_targets
from solvers.merging.pairs import (
    MOST_OUTCOMES,
    Candidate,
    GainForecast,
    GainOutcome,
    Prediction,
    forecast_gains,
    regress,
)

SIZES = {"wide": 100_000, "mid": 10_000, "slim": 1_000, "tiny": 200}


def pair(donor: str, receiver: str, mode: str = "temporal", score: float | None = None) -> Candidate:
    return Candidate(donor, receiver, mode, SIZES.get(donor, 5_000), SIZES.get(receiver, 5_000), score)


def every_pair(gain, mode: str = "temporal", tasks=tuple(SIZES)) -> list[GainOutcome]:
    return [GainOutcome(pair(a, b, mode), gain(a, b)) for a in tasks for b in tasks if a != b]


def without(outcomes, donor: str, receiver: str) -> list[GainOutcome]:
    return [o for o in outcomes if {o.merge.donor, o.merge.receiver} != {donor, receiver}]


def test_without_outcomes_gain_is_even_chance():
    assert forecast_gains([], [pair("a", "b")]) == [GainForecast(0.0, 0.5)]
    assert forecast_gains([], []) == []


def test_gaining_receiver_is_forecast_to_gain():
    outcomes = every_pair(lambda a, b: {"slim": 0.05, "tiny": 0.1}.get(b, -0.01))
    for donor in ("mid", "tiny"):
        seen = without(outcomes, donor, "slim")
        (told,) = forecast_gains(seen, [pair(donor, "slim")])
        assert told.gain == pytest.approx(0.05, rel=0.5)
        assert told.probability > 0.9
    (told,) = forecast_gains(without(outcomes, "tiny", "wide"), [pair("tiny", "wide")])
    assert told.gain < 0
    assert told.probability < 0.1


def test_helping_donor_is_forecast_to_help():
    outcomes = every_pair(lambda a, b: 0.03 if a == "wide" else -0.03)
    helped, harmed = forecast_gains(outcomes, [pair("wide", "new"), pair("mid", "new")])
    assert helped.gain > 0 > harmed.gain
    assert helped.probability > harmed.probability


def test_a_receiver_may_care_for_its_donors_size():
    donors = {f"donor {n}": 300 * 3**n for n in range(6)}
    candidates = [Candidate(name, "slim", "spatial", size, 1_000) for name, size in donors.items()]
    outcomes = [GainOutcome(c, 0.02 if c.donor_samples < 5_000 else -0.02) for c in candidates]
    small, large = forecast_gains(
        outcomes,
        [Candidate(name, "slim", "spatial", size, 1_000) for name, size in (("s", 400), ("l", 60_000))],
    )
    assert small.gain > 0 > large.gain


def test_modes_may_differ():
    outcomes = [
        *every_pair(lambda a, b: -0.02, "temporal"),
        *every_pair(lambda a, b: 0.04, "spatial"),
    ]
    temporal, spatial = forecast_gains(outcomes, [pair("x", "y", "temporal"), pair("x", "y", "spatial")])
    assert temporal.gain < 0 < spatial.gain


def test_score_correlated_with_gain_is_learned():
    random = np.random.default_rng(5)
    scores = random.uniform(-1, 1, 40)
    outcomes = [
        GainOutcome(pair(f"a{n}", f"b{n}", "temporal", score), 0.02 * score) for n, score in enumerate(scores)
    ]
    high, low, unknown = forecast_gains(outcomes, [pair("a", "b", "temporal", s) for s in (0.8, -0.8, None)])
    assert high.gain > 0.005 > -0.005 > low.gain
    assert low.gain < unknown.gain < high.gain
    assert high.probability > 0.9 > 0.1 > low.probability


def test_forecast_stays_within_seen_gains():
    outcomes = every_pair(lambda a, b: 0.2 * math.log10(SIZES[a] / SIZES[b]))
    giant = Candidate("giant", "dwarf", "temporal", 10**12, 1)
    (told,) = forecast_gains(outcomes, [giant])
    assert told.gain == pytest.approx(max(outcome.gain for outcome in outcomes))


def test_same_outcomes_give_same_answers():
    outcomes = every_pair(lambda a, b: 0.01 if a < b else -0.02)
    asked = [pair("wide", "new"), pair("new", "slim", "spatial"), pair("a", "b")]
    together = forecast_gains(outcomes, asked)
    for candidate, told in zip(asked, together, strict=True):
        (alone,) = forecast_gains(outcomes, [candidate])
        assert alone == pytest.approx(told, abs=1e-9)


def test_only_the_latest_outcomes_count():
    old = [(pair("a", "b"), -5.0)] * MOST_OUTCOMES
    new = [(pair("a", "b"), 1.0)] * MOST_OUTCOMES
    (prediction,) = regress([*old, *new], [pair("a", "b")])
    assert prediction.mean == pytest.approx(1.0, abs=0.05)


def test_consistent_outcomes_narrow_the_forecast():
    outcomes = [(o.merge, 2.0 if o.merge.receiver == "slim" else -1.0) for o in every_pair(lambda a, b: 0.0)]
    known, unknown = regress(outcomes, [pair("wide", "slim"), pair("x", "y")])
    assert known.deviation < unknown.deviation
    assert Prediction(0.0, 1.0).positive == 0.5
    assert Prediction(1.96, 1.0).positive == pytest.approx(0.975, abs=1e-3)


def results(outcome) -> list[MergeResult]:
    """Return a result per pair from `outcome`: the best accuracy and the epochs to 0.8."""
    return [
        MergeResult(pair(a, b), 0.8, *outcome(a, b), own_epochs=10) for a in SIZES for b in SIZES if a != b
    ]


def test_worth_is_saving_against_undoing():
    seen = results(lambda a, b: (0.85, 3) if b in ("slim", "tiny") else (0.75, None))
    good, bad = forecast_targets(
        seen, [MergeQuestion(pair("new", "slim"), 10), MergeQuestion(pair("new", "wide"), 10)]
    )
    assert good.probability > 0.9
    assert good.epochs == pytest.approx(3, abs=0.5)
    assert good.saved_epochs == pytest.approx(7, abs=1)
    assert bad.probability < 0.1
    assert bad.saved_epochs < -1


def test_epochs_go_with_those_of_the_job_alone():
    seen = results(lambda a, b: (0.85, 5))
    short, long = forecast_targets(seen, [MergeQuestion(pair("wide", "slim"), own) for own in (4, 12)])
    assert long.epochs == pytest.approx(3 * short.epochs)


def test_without_results_merge_is_not_worth_it():
    (told,) = forecast_targets([], [MergeQuestion(pair("a", "b"), 10)])
    assert (told.probability, told.epochs) == (0.5, 10)
    assert told.saved_epochs < 0
    assert forecast_targets([], []) == []


@pytest.mark.parametrize(("gain", "score"), [(math.nan, 0.1), (math.inf, 0.1), (-1.0, 0.1), (0.1, math.nan)])
def test_outcomes_that_cannot_be_are_refused(gain, score):
    with pytest.raises(ValueError, match="above -1"):
        forecast_gains([GainOutcome(pair("a", "b", score=score), gain)], [pair("a", "b")])


def test_infinite_numbers_are_refused_with_pair():
    with pytest.raises(ValueError, match="donor='x'"):
        regress([(pair("a", "b"), 1.0)], [pair("x", "y", score=math.inf)])
    with pytest.raises(ValueError, match="donor='a'"):
        regress([(pair("a", "b"), math.nan)], [pair("x", "y")])


@pytest.mark.parametrize(
    ("target", "epochs", "own"), [(0.0, 3, 5), (0.8, 0, 5), (0.8, None, 0), (math.nan, 3, 5)]
)
def test_results_that_cannot_be_are_refused(target, epochs, own):
    seen = [MergeResult(pair("a", "b"), target, 0.9, epochs, own)]
    with pytest.raises(ValueError, match="above 0"):
        forecast_targets(seen, [MergeQuestion(pair("a", "b"), 5)])


def test_low_rank_form_gives_same_forecast(monkeypatch):
    rng = random.Random(7)
    seen = [(pair(rng.choice("abc"), rng.choice("abc")), rng.gauss(0.0, 1.0)) for _ in range(60)]
    asked = [pair(donor, receiver) for donor in "abcd" for receiver in "abcd"]
    condensed = regress(seen, asked)
    assert pairs._condensed(np.ones((60, 4)), np.ones(60))[0].shape == (4, 4)
    monkeypatch.setattr(pairs, "_condensed", lambda effects, values: (effects, values, pairs._Rest(0, 0.0)))
    for one, other in zip(condensed, regress(seen, asked), strict=True):
        assert one == pytest.approx(other, abs=1e-9)
