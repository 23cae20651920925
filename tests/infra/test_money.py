"""Money is printed exactly: the last micro decides who wins."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.text import units
from schemas.base import MAX_MICROS


@given(st.integers(-8 * MAX_MICROS, 8 * MAX_MICROS))
def test_what_is_printed_is_the_amount(micros: int) -> None:
    assert Decimal(units(micros).replace(",", "")) * 1_000_000 == micros


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (140_001, "0.140001"),
        (140_000, "0.1400"),
        (140_010, "0.14001"),
        (12_500_000, "12.5000"),
        (1_234_567_000_001, "1,234,567.000001"),
        (-1, "-0.000001"),
        (0, "0.0000"),
        (None, "–"),
    ],
)
def test_an_amount_has_four_to_six_decimals(micros: int | None, text: str) -> None:
    assert units(micros) == text


def test_a_mean_is_rounded() -> None:
    assert units(140_001.7) == "0.1400"
