"""The compiled sum is the correctly rounded one, whatever cancels."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.auction.density_classes import exact_sum
from tests.support.examples import examples

numbers = st.floats(min_value=-1e300, max_value=1e300).map(lambda value: value / 1e3)


@given(st.lists(numbers | st.sampled_from((1e16, -1e16, 1.0, -1.0, 2.0**-53, 5e-324)), max_size=80))
@settings(max_examples=examples(4_000), deadline=None)
def test_sum_equals_that_of_fsum(values):
    assert exact_sum(np.array(values, float)).hex() == math.fsum(values).hex()


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.1] * 10,
        [1e16, 1.0, -1e16],
        [1.0, 2.0**-53, 2.0**-106],
        [1.0, 2.0**-53, -(2.0**-106)],
        [-1.0, -(2.0**-53), -(2.0**-106)],
        [-0.0, -0.0],
    ],
    ids=["none", "tenths", "cancels", "just above a half", "just below a half", "negative", "negative zeros"],
)
def test_halves_are_rounded_by_what_lies_beyond_them(values):
    assert exact_sum(np.array(values, float)).hex() == math.fsum(values).hex()
