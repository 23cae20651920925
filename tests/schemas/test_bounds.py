"""Every number that enters a cell has bounds that arithmetic can bear."""

import pytest
from pydantic import ValidationError

from schemas.base import Event
from schemas.elastic.settings import ElasticPolicy
from schemas.experts.settings import ExpertsPolicy
from schemas.kind import PolicySettings
from schemas.registry import EVENT_TYPES
from tests.support.bounds import types_of

LARGEST = 1e30
"""No count, and no amount of a whole batch, is larger."""
LEAST_POSITIVE = 1e-12
"""The reciprocal of what must not be 0 fits a float by far, and so do sums and products of a few of them."""


@pytest.mark.parametrize("event", EVENT_TYPES.values(), ids=lambda event: event.TYPE)
def test_event_numbers_have_bounds(event: type[Event]) -> None:
    for name, bounds in types_of(event):
        assert bounds.has_both, f"{name} has no bound on one side or on both"
        assert abs(bounds.lowest) <= LARGEST >= abs(bounds.highest), name


@pytest.mark.parametrize("event", EVENT_TYPES.values(), ids=lambda event: event.TYPE)
def test_nonzero_bound_is_not_next_to_zero(event: type[Event]) -> None:
    for name, bounds in types_of(event):
        assert not 0 < bounds.lowest < LEAST_POSITIVE, f"{name} may be {bounds.lowest}: give it a least value"


@pytest.mark.parametrize("policy", [ExpertsPolicy, ElasticPolicy])
def test_shortest_patience_is_a_millisecond(policy: type[PolicySettings]) -> None:
    with pytest.raises(
        ValidationError, match=r"patience_s\n  Input should be greater than or equal to 0.001"
    ):
        policy.model_validate({"patience_s": 5e-324})
