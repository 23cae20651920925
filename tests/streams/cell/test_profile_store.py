"""The profile store alone: bounded, equal for equal sums of runs, and closed to a single user's forgeries."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.profiles import ProfileKey, ProfilePoint, ProfileReported
from streams.cell.profiles import ProfileStore, estimated
from streams.cell.readings import OTHERS_AT_LEAST, Reading, StepSetting

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


def published(
    step_s: float,
    size: int = 8,
    memory_gib: float | None = None,
    profiler: str = "lab",
    key: ProfileKey = KEY,
) -> ProfileReported:
    point = ProfilePoint(
        gpu_type="A40",
        micro_batch_size=size,
        step_s=step_s,
        memory_gib=memory_gib,
        tokens_per_sample=20.0,
        steps=10,
    )
    return ProfileReported(cell="c", zone="z", profiler=profiler, key=key, points=(point,))


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


def test_unmeasured_size_is_interpolated_with_its_error():
    store = ProfileStore()
    for size, step_s in ((1, 1.0), (4, 2.5), (16, 8.5)):
        store.publish(published(step_s, size))
    found = estimated(store.offline("z", KEY), AT)
    assert found is not None
    assert (found.reading.step_s, found.relative_error) == (pytest.approx(4.5), pytest.approx(0.0))


def test_measured_size_has_no_error():
    found = estimated({AT: reading(2.0, memory_gib=1.0)}, AT)
    assert found is not None
    assert (found.slowest_step_s, found.most_memory_gib) == (2.0, 1.0)


SIZES = st.dictionaries(st.integers(1, 4_096), st.tuples(STEP_S, st.floats(1e-3, 100.0)), max_size=6)


@given(SIZES, st.integers(1, 4_096))
def test_estimate_is_positive_and_bounded(points, size):
    readings = {
        StepSetting("A40", each): reading(step_s, memory_gib=gib) for each, (step_s, gib) in points.items()
    }
    found = estimated(readings, StepSetting("A40", size))
    if len(points) < 2 and size not in points:
        assert found is None
    if found is not None:
        assert 0 < found.reading.step_s <= found.slowest_step_s <= 2 * found.reading.step_s


@given(st.lists(STEP_S, min_size=OTHERS_AT_LEAST, max_size=8))
def test_others_count_as_their_median(steps):
    store = stored((f"user{number}", 8, step_s, 10) for number, step_s in enumerate(steps))
    assert store.others("z", KEY, "victim")[AT].step_s == pytest.approx(median(steps))


@pytest.mark.parametrize(
    ("step_s", "counts"),
    [(0.5, False), (1.2, False), (1.5, True), (2.9, True), (3.1, False), (86_400.0, False)],
)
def test_profile_that_runs_refute_does_not_count(step_s, counts):
    store = stored([("one", 8, 2.0, 10)])
    store.publish(published(step_s))
    assert (AT in store.offline("z", KEY)) == counts


def test_profile_of_other_sizes_is_refuted_too():
    store = stored([("one", 8, 2.0, 10)])
    for size in (4, 16):
        store.publish(published(86_400.0, size))
    assert store.offline("z", KEY) == {}
    store = stored([("one", 4, 1.0, 10), ("one", 16, 4.0, 10)])
    store.publish(published(86_400.0))
    assert store.offline("z", KEY) == {}


def test_profile_larger_than_runs_does_not_count():
    store = ProfileStore()
    store.measure("z", KEY, "one", AT, reading(2.0, memory_gib=1.0))
    store.publish(published(2.0, memory_gib=8.0))
    assert store.offline("z", KEY) == {}
    store.publish(published(2.0, memory_gib=1.2))
    assert store.offline("z", KEY)[AT].memory_gib == 1.2


@given(STEP_S)
def test_second_profiler_makes_no_profile_slower(forged_s):
    store = ProfileStore()
    store.publish(published(2.0, memory_gib=1.0))
    store.publish(published(forged_s, memory_gib=80.0, profiler="forger"))
    found = store.offline("z", KEY)[AT]
    assert found.step_s <= 2.0
    assert found.memory_gib == 1.0


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60))
def test_profiler_erases_no_profile_of_another(points):
    store = ProfileStore(16)
    store.publish(published(2.0, profiler="quiet"))
    for size, rank in points:
        key = KEY.model_copy(update={"rank": rank})
        store.publish(published(9.0, size, profiler="flood", key=key))
    held = store.offline("z", KEY)[AT]
    assert held.step_s == 2.0


NAMES = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 40), st.integers(1, 40)), min_size=100, max_size=300
)


@given(NAMES)
def test_names_that_agree_erase_no_earlier_profile(points):
    """A profiler keeps two readings of 32 against any later names."""
    store = ProfileStore(128)
    for size in (1, 2):
        store.publish(published(2.0, size, profiler="quiet"))
    for number, size, rank in points:
        key = KEY.model_copy(update={"rank": rank})
        store.publish(published(9.0, size, profiler=f"friend{number}", key=key))
    assert {at.micro_batch_size for at in store.offline("z", KEY)} >= {1, 2}
    assert store.describe()["offline"] <= 32


@given(NAMES)
def test_restored_store_forgets_as_the_first_would(points):
    store, restored = ProfileStore(64), ProfileStore(64)
    for place, (number, size, rank) in enumerate(points):
        if place == len(points) // 2:
            restored.restore(store.state())
        for each in (store, restored):
            key = KEY.model_copy(update={"rank": rank})
            each.publish(published(9.0, size, profiler=f"lab{number}", key=key))
            each.measure("z", key, f"user{number % 20}", StepSetting("A40", size), reading(float(size)))
    assert restored.state() == store.state()


def test_published_readings_displace_no_measured_ones():
    store = ProfileStore(32)
    for number in range(24):
        store.measure("z", KEY, f"user{number}", StepSetting("A40", 1 + number), reading(1.0))
    for number in range(100):
        store.publish(published(9.0, 1 + number, profiler=f"friend{number}"))
    assert store.describe() == {"measured": 24, "offline": 8}


@given(st.integers(1, 60))
def test_users_that_agree_pay_in_gpu_time(gpu_s):
    """A reading of an hour stands until others have trained as long for each place of the store."""
    store = ProfileStore(32)
    for user in "abc":
        store.measure("z", KEY, user, AT, reading(36.0, 100))
    honest, spent_s = 3, 0.0
    for number in range(3_000):
        key = KEY.model_copy(update={"rank": 1 + number // 2 % 1_000})
        at = StepSetting("A40", 1 + number // 2 // 1_000)
        store.measure("z", key, f"friend{number % 100}", at, reading(gpu_s / 10))
        spent_s += gpu_s
        if AT not in store.others("z", KEY, "victim"):
            break
    assert AT in store.others("z", KEY, "victim") or spent_s >= (24 - honest) * 3_600.0 - gpu_s


def test_kind_that_none_runs_any_more_is_forgotten():
    store = ProfileStore(32)
    for user in "abc":
        store.measure("z", KEY, user, AT, reading(36.0, 100))
    for number in range(2_000):
        for user in ("one", "two"):
            key = KEY.model_copy(update={"rank": 1 + number % 1_000})
            at = StepSetting("A40", 1 + number // 1_000)
            store.measure("z", key, f"{user}{number % 9}", at, reading(60.0))
    assert store.others("z", KEY, "victim") == {}


def test_profiler_and_user_may_share_a_name():
    store = stored([("lab", 8, 2.0, 10)])
    store.publish(published(2.5))
    assert store.own("z", KEY, "lab")[AT].step_s == 2.0
    assert store.offline("z", KEY)[AT].step_s == 2.5
    assert store.describe() == {"measured": 1, "offline": 1}


@given(st.integers(0, 60), st.booleans(), st.booleans())
def test_many_names_erase_no_confirmed_readings(names, of_one_kind, of_one_size):
    store = stored([("a", 8, 1.0, 10), ("b", 8, 2.0, 10), ("c", 8, 3.0, 10)], limit=32)
    for number in range(names):
        key = KEY.model_copy(update={"rank": 9 if of_one_kind else 9 + number})
        size = 8 if of_one_size else 1 + number
        store.measure("z", key, f"name{number}", StepSetting("A40", size), reading(9.0))
    assert store.others("z", KEY, "victim")[AT].step_s == 2.0


def test_full_store_takes_kinds_that_are_new():
    store = ProfileStore(32)
    for number in range(16):
        for user in ("a", "b"):
            store.measure("z", KEY, f"{user}{number}", StepSetting("A40", 1 + number), reading(1.0))
    other = KEY.model_copy(update={"rank": 4})
    for user in "def":
        store.measure("z", other, user, AT, reading(1.0))
    assert AT in store.others("z", other, "victim")
