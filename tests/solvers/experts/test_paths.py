"""Profiles of sample paths, and the popularity that is estimated from them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.experts.paths import PathProfile, PopularityEstimator
from solvers.experts.placement import ExpertDemand
from tests.support.examples import examples

SELECTIONS = st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), max_size=30).map(
    lambda rows: np.array(rows, np.int64).reshape(-1, 4)
)


def profiled(*batches, **settings):
    profile = PathProfile(experts=3, layers=4, **settings)
    for batch in batches:
        profile.add(np.array(batch, np.int64).reshape(-1, 4))
    return profile


def listed(profile):
    return {name: array.tolist() for name, array in profile.arrays().items()}


def popularity(profile, layer, paths, **settings):
    estimator = PopularityEstimator(profile, least_tokens=1, **settings)
    return estimator.estimate(layer, np.array(paths, np.int64)).popularity.round(5).tolist()


def test_popularity_is_mean_over_paths():
    # Eq. 4.1, erratum I1. After 0, 1: expert 2 three times of four, expert 0 once. After 1, 1: expert 0.
    profile = profiled([[0, 1, 2, 0]] * 3, [[0, 1, 0, 0], [1, 1, 0, 0]], length=2)
    assert popularity(profile, 2, [[0, 1]], top=None) == [0.25, 0.0, 0.75]
    assert popularity(profile, 2, [[0, 1], [1, 1]], top=None) == [0.625, 0.0, 0.375]


def test_only_top_experts_of_path_count():
    profile = profiled([[0, 1, 2, 0]] * 3, [[0, 1, 0, 0], [1, 1, 0, 0]], length=2)
    assert popularity(profile, 2, [[0, 1], [1, 1]]) == [0.5, 0.0, 0.375]
    assert popularity(profile, 2, [[0, 1], [1, 1]], top=2) == [0.625, 0.0, 0.375]


def test_tied_experts_count_by_order():
    profile = profiled([[0, 0, 2, 0], [0, 0, 1, 0]])
    assert popularity(profile, 2, [[0, 0]]) == [0.0, 0.5, 0.0]


def test_unused_path_falls_back_to_last_layers():
    profile = profiled([[0, 1, 2, 0]], [[0, 0, 0, 1]])
    assert popularity(profile, 3, [[2, 1, 2]]) == [1.0, 0.0, 0.0]
    assert popularity(profile, 3, [[1, 1, 0]]) == [0.0, 1.0, 0.0]
    assert popularity(profile, 3, [[1, 1, 1]], top=None) == [0.5, 0.5, 0.0]


def test_rare_path_falls_back_to_last_layers():
    profile = profiled([[0, 1, 2, 0]], [[1, 1, 2, 1]] * 4)
    path = np.array([[0, 1, 2]])
    few = PopularityEstimator(profile, top=None, least_tokens=2).estimate(3, path)
    assert few.popularity.round(5).tolist() == [0.2, 0.8, 0.0]


def test_early_layers_have_shorter_paths():
    profile = profiled([[0, 1, 2, 0], [1, 2, 2, 0]])
    assert popularity(profile, 1, [[1]]) == [0.0, 0.0, 1.0]
    assert popularity(profile, 0, np.empty((2, 0)), top=None) == [0.5, 0.5, 0.0]


def test_nothing_is_known_where_nothing_was_profiled():
    demand = PopularityEstimator(profiled()).estimate(3, np.zeros((5, 3), np.int64))
    assert demand.known == 0 < demand.total


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(SELECTIONS, max_size=4))
def test_batches_add_up(batches):
    together = profiled(*([np.concatenate(batches)] if batches else []))
    assert listed(profiled(*batches)) == listed(together)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(SELECTIONS, min_size=1, max_size=4))
def test_profiles_of_ranks_merge_into_one(batches):
    merged = profiled()
    for batch in batches:
        merged.merge(profiled(batch))
    assert listed(merged) == listed(profiled(*batches))
    assert merged.tokens == sum(map(len, batches))


@settings(max_examples=examples(100), deadline=None)
@given(SELECTIONS, SELECTIONS, st.integers(0, 3))
def test_ranks_estimate_together_what_one_would_for_all(seen, batch, layer):
    estimator = PopularityEstimator(profiled(seen))
    half = len(batch) // 2
    parts = [estimator.estimate(layer, part[:, :layer]) for part in (batch[:half], batch[half:])]
    whole = estimator.estimate(layer, batch[:, :layer])
    assert ExpertDemand.combined(parts).loads.tolist() == whole.loads.tolist()


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(SELECTIONS, max_size=3), st.integers(1, 5))
def test_profile_survives_as_arrays(batches, most_paths):
    profile = profiled(*batches, most_paths=most_paths)
    again = PathProfile.of_arrays(profile.arrays(), 3, 4, profile.length, most_paths)
    assert listed(again) == listed(profile)
    assert all(len(table.keys) <= most_paths for tables in profile.tables for table in tables)


def test_shorter_paths_are_part_of_profile():
    batches = [[[0, 1, 2, 0]] * 5, [[1, 1, 2, 1]] * 4]
    assert listed(profiled(*batches).shortened(1)) == listed(profiled(*batches, length=1))
    with pytest.raises(ValueError, match="its paths have 3 layers, fewer than 4"):
        profiled().shortened(4)


NUMBERS = np.arange(2, dtype=np.int64)


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ({"1.1.paths": NUMBERS[::-1]}, r"table 1\.1 has paths that do not exist, or not in ascending order"),
        ({"1.1.paths": NUMBERS + 2}, r"table 1\.1 has paths that do not exist"),
        ({"1.1.paths": NUMBERS - 1}, r"table 1\.1 has paths that do not exist"),
        ({"1.1.paths": NUMBERS.astype(np.float64)}, r"table 1\.1 has numbers of type float64 and int64"),
        ({"1.1.paths": NUMBERS[:1]}, r"table 1\.1 has shapes \(1,\) and \(2, 3\)"),
        ({"1.1.counts": np.zeros((2, 3), np.int64)}, r"table 1\.1 has counts .* or a path without tokens"),
        ({"1.1.counts": np.full((2, 3), -1, np.int64)}, r"table 1\.1 has counts outside 0 to"),
        ({"1.1.counts": np.full((2, 3), 2**40 + 1, np.int64)}, r"table 1\.1 has counts outside 0 to"),
        ({"0.0.counts": np.ones((1, 4), np.int64)}, r"table 0\.0 has shapes \(1,\) and \(1, 4\)"),
        ({"4.0.paths": NUMBERS}, "has other tables than those of 4 layers"),
    ],
)
def test_arrays_of_no_profile_are_refused(forged, why):
    arrays = profiled([[0, 1, 2, 0], [1, 1, 2, 0]]).arrays()
    with pytest.raises(ValueError, match=why):
        PathProfile.of_arrays({**arrays, **forged}, 3, 4, 3, 1_024)


def test_more_paths_than_kept_are_refused():
    arrays = profiled([[0, 1, 2, 0], [1, 1, 2, 0]]).arrays()
    with pytest.raises(ValueError, match=r"table 1\.1 has 2 paths, more than 1"):
        PathProfile.of_arrays(arrays, 3, 4, 3, most_paths=1)


def test_the_paths_that_most_tokens_took_are_kept():
    batch = [[0, 0, 0, 0]] * 3 + [[0, 0, 1, 1]] * 2 + [[0, 0, 2, 2]]
    profile = profiled(batch, most_paths=2)
    assert popularity(profile, 3, [[0, 0, 1]]) == [0.0, 1.0, 0.0]
    # The path by expert 2 was dropped at each length, and all tokens' choices are left: half are of expert 0.
    assert popularity(profile, 3, [[0, 0, 2]]) == [0.5, 0.0, 0.0]


def test_counts_of_experts_are_kept():
    assert profiled([[0, 1, 2, 0], [0, 1, 1, 0]]).popularity(2).loads.tolist() == [0, 1, 1]
    assert profiled().popularity(2).total == 0


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"experts": 0, "layers": 2}, "0 experts"),
        ({"experts": 2, "layers": 0}, "0 MoE layers"),
        ({"experts": 2, "layers": 2, "length": 0}, "paths of 0 layers"),
        ({"experts": 1_000, "layers": 2, "length": 9}, "cannot be distinguished"),
        ({"experts": 2, "layers": 2, "most_paths": 0}, "at most 0 paths"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, what):
    with pytest.raises(ValueError, match=what):
        PathProfile(**settings)


def test_selections_of_other_models_are_refused():
    with pytest.raises(ValueError, match=r"shape \(1, 3\), expected \(tokens, 4\)"):
        PathProfile(3, 4).add(np.zeros((1, 3), np.int64))
    with pytest.raises(ValueError, match="selections from 0 to 3, the experts are 0 to 2"):
        profiled([[0, 1, 2, 3]])
    with pytest.raises(ValueError, match="expected 3 layers at least"):
        PopularityEstimator(profiled()).estimate(3, np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match="layer 4, the model has 4"):
        PopularityEstimator(profiled()).estimate(4, np.zeros((1, 3), np.int64))
