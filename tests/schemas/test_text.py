"""Characters that control a terminal or are invisible are escaped; letters stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.text import plain
from tests.support.hostile import HOSTILE


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_character_is_escaped(hostile: str) -> None:
    shown = plain(f"a{hostile}b")
    assert shown.startswith("a\\")
    assert shown.endswith("b")
    assert hostile not in shown
    assert shown.isascii()


@pytest.mark.parametrize("text", ["", "job-1: 3.5 %", "Größe", "шина", "訓練", "אימון", "a\\b", "→ ✓ 🚚"])
def test_what_is_seen_stays(text: str) -> None:
    assert plain(text) == text


@given(text=st.text())
def test_plain_text_is_one_printable_line(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()
    assert plain(shown) == shown
    assert shown.encode().decode() == shown
