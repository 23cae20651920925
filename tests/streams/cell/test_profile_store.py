"""The profile store alone: bounded, equal for equal sums of runs, and closed to a single user's forgeries."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.profiles import ProfileKey, ProfilePoint, ProfileReported
from streams.cell.profiles import OTHERS_AT_LEAST, ProfileStore, Reading, StepSetting, ZoneProfiles

KEY = ProfileKey(
    base_model="tiny", sequence_tokens=64, rank=8, target_modules=("q_proj",), precision="bfloat16"
)
AT = StepSetting("A40", 8)
STEP_S = st.floats(1e-5, 86_400)
RUNS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from([1, 2, 4, 8]), STEP_S, st.integers(1, 2_000)),
    max_size=60,
)


def reading(step_s: float, steps: int = 10, memory_gib: float | None = None) -> Reading:
    return Reading(step_s, steps, tokens_per_sample=20.0, memory_gib=memory_gib)


def published(step_s: float, size: int = 8) -> ProfileReported:
    point = ProfilePoint(
        gpu_type="A40", micro_batch_size=size, step_s=step_s, tokens_per_sample=20.0, steps=10
    )
    return ProfileReported(cell="c", zone="z", profiler="lab", key=KEY, points=(point,))


def stored(runs, limit: int = 1_024) -> ProfileStore:
    store = ProfileStore(limit)
    for user, size, step_s, steps in runs:
        store.measure("z", KEY, user, StepSetting("A40", size), reading(step_s, steps))
    return store


@given(RUNS, st.integers(1, 12))
def test_store_is_bounded(runs, limit):
    store = stored(runs, limit)
    assert sum(store.describe().values()) <= limit


@given(st.integers(1, 40))
def test_flood_leaves_other_writers_readings(size):
    store = ProfileStore(4)
    store.measure("z", KEY, "quiet", AT, reading(2.0))
    for number in range(size):
        store.measure("z", KEY, "flood", StepSetting("A40", number + 1), reading(1.0))
    assert store.own("z", KEY, "quiet") == {AT: reading(2.0)}


@given(RUNS)
def test_mean_stays_within_measurements(runs):
    store = stored(runs)
    for user in "abcdef":
        for setting, held in store.own("z", KEY, user).items():
            given_s = [s for each, size, s, _ in runs if (each, size) == (user, setting.micro_batch_size)]
            assert min(given_s) * (1 - 1e-9) <= held.step_s <= max(given_s) * (1 + 1e-9)


@given(st.permutations([("a", 1.0), ("b", 4.0), ("c", 2.0), ("d", 8.0)]))
def test_order_of_users_changes_no_median(runs):
    store = stored((user, 8, step_s, 10) for user, step_s in runs)
    assert store.others("z", KEY, "e")[AT].step_s == 3.0


@given(st.lists(STEP_S, min_size=OTHERS_AT_LEAST - 1, max_size=6), STEP_S)
def test_one_user_stays_within_others_measurements(honest, forged_s):
    runs = [(f"user{number}", 8, step_s, 10) for number, step_s in enumerate(honest)]
    found = stored([*runs, ("forger", 8, forged_s, 10)]).others("z", KEY, "victim")[AT].step_s
    assert min(honest) * (1 - 1e-9) <= found <= max(honest) * (1 + 1e-9)


@given(STEP_S, STEP_S, st.sampled_from([0, 1]))
def test_too_few_users_count_for_no_other(one_s, other_s, more):
    runs = [("forger", 8, one_s, 10), ("friend", 8, other_s, 10)][: 1 + more]
    store = stored(runs)
    assert store.others("z", KEY, "victim") == {}
    assert ZoneProfiles(store, "z").estimate(KEY, "victim", AT) is None


@given(RUNS, STEP_S)
def test_own_runs_are_no_others(runs, own_s):
    before = stored(runs).others("z", KEY, "victim")
    after = stored([*runs, ("victim", 8, own_s, 10)]).others("z", KEY, "victim")
    assert before == after


@given(RUNS)
def test_kinds_and_zones_are_apart(runs):
    store = stored(runs)
    other = KEY.model_copy(update={"rank": 4})
    assert store.others("z", other, "victim") == {}
    assert store.others("elsewhere", KEY, "victim") == {}


@given(RUNS)
def test_restored_store_equals_the_first(runs):
    store, restored = stored(runs), ProfileStore()
    restored.restore(store.state())
    assert restored.state() == store.state()
    assert restored.others("z", KEY, "g") == store.others("z", KEY, "g")


def test_measured_runs_count_before_published_ones():
    store = stored([(user, 8, step_s, 10) for user, step_s in (("a", 1.0), ("b", 2.0), ("c", 3.0))])
    store.publish(published(9.0))
    found = ZoneProfiles(store, "z").estimate(KEY, "victim", AT)
    assert found is not None
    assert (found.step_s, found.source, found.disagrees) == (2.0, "measured", True)


def test_unmeasured_size_is_interpolated_with_its_error():
    store = ProfileStore()
    for size, step_s in ((1, 1.0), (4, 2.5), (16, 8.5)):
        store.publish(published(step_s, size))
    found = ZoneProfiles(store, "z").estimate(KEY, "u", AT)
    assert found is not None
    assert (found.step_s, found.source) == (pytest.approx(4.5), "offline")
    assert found.relative_error == pytest.approx(0.0)


@given(st.lists(STEP_S, min_size=OTHERS_AT_LEAST, max_size=8))
def test_estimate_is_median_of_users(steps):
    store = stored((f"user{number}", 8, step_s, 10) for number, step_s in enumerate(steps))
    found = ZoneProfiles(store, "z").estimate(KEY, "victim", AT)
    assert found is not None
    assert found.step_s == pytest.approx(median(steps))
