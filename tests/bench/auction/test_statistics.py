"""Means, intervals and slopes against numbers worked out by hand."""

import pytest

from bench.auction.comparison import MOST_VALUES, Interval, interval
from bench.figures import slope


def test_interval_is_t_times_standard_error():
    # The deviation is sqrt(250), so the error of five values sqrt(50); t at 4 degrees of freedom is 2.776.
    found = interval([10.0, 20.0, 30.0, 40.0, 50.0])
    assert found.mean == 30.0
    assert found.half_width == pytest.approx(2.776 * 50**0.5)


def test_one_value_has_no_interval():
    assert interval([7.0]) == Interval(7.0, None, 1)


@pytest.mark.parametrize("number", [0, MOST_VALUES + 1])
def test_wrong_number_of_values_is_refused(number):
    with pytest.raises(ValueError, match=f"{number} values"):
        interval([1.0] * number)


def test_a_slope_is_the_power_of_growth():
    sizes = [10.0, 20.0, 50.0]
    assert slope(sizes, [3.0 * size**1.5 for size in sizes]) == pytest.approx(1.5)
