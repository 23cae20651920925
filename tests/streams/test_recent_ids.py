"""Ids belong to their writers, and no writer crowds another's out."""

from hypothesis import given
from hypothesis import strategies as st

from streams.cell.recent_ids import RecentIds


def window(limit: int = 80, limit_per_writer: int = 10) -> RecentIds:
    return RecentIds(limit, limit_per_writer)


def test_an_id_is_noted_once_per_writer():
    ids = window()
    assert [ids.note("ada", "1"), ids.note("ada", "1"), ids.note("bob", "1")] == [True, False, True]
    assert (ids.has("ada", "1"), ids.has("eve", "1")) == (True, False)


def test_whoever_floods_the_window_forgets_its_own_ids():
    ids = window()
    ids.note("ada", "mine")
    for number in range(10_000):
        ids.note("eve", str(number))
    assert not ids.note("ada", "mine")
    assert not ids.note("eve", "9999")
    assert ids.note("eve", "0")


def test_longest_idle_writer_loses_ids_first():
    ids = window(limit=3, limit_per_writer=3)
    ids.note("ada", "1")
    ids.note("bob", "1")
    ids.note("ada", "2")
    ids.note("eve", "1")
    assert [ids.has("ada", "1"), ids.has("bob", "1"), ids.has("eve", "1")] == [True, False, True]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), max_size=60),
    st.integers(1, 12),
    st.integers(1, 6),
)
def test_window_is_bounded_and_state_continues(
    written: list[tuple[str, int]], limit: int, limit_per_writer: int
) -> None:
    ids = window(limit, limit_per_writer)
    for number, (writer, id) in enumerate(written):
        twin = window(limit, limit_per_writer)
        twin.restore(ids.state())
        assert twin.note(writer, str(id)) == ids.note(writer, str(id)), f"step {number}"
        assert twin.state() == ids.state()
        assert ids.has(writer, str(id))
        assert sum(len(kept) // 16 for _, kept in ids.state()) <= limit
