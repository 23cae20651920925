"""A worker that has warmed up has no bid wait for a compiler."""

import pytest

from bench.auction.trials import CONTENDERS, DEFAULT
from tests.support.examples import LONG
from tests.support.fresh_signatures import after_warm_up

SERVED = (
    [name for name in CONTENDERS if name != "titan"]
    if LONG
    else [DEFAULT, "pdftsp", "published", "eft", "ntm"]
)
"""By workers: no service answers Titan's solves on Kafka. What `make test` leaves out are other settings of
these."""


@pytest.fixture(scope="module")
def found():
    return after_warm_up("streams.worker.kernels", *SERVED)


@pytest.mark.slow
@pytest.mark.parametrize("contender", SERVED)
def test_warm_up_covers_kernels_of_a_day(found, contender):
    assert found["added"][contender] == []


@pytest.mark.slow
def test_a_second_warm_up_takes_no_second(found):
    assert found["again_s"] < 1
