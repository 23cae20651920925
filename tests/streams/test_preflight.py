"""What a worker refuses before it speaks to a broker."""

import pytest

from schemas.policies import EarliestFinishPolicy, TitanPolicy
from streams.preflight import PreflightError, refuse_unserved_policies
from tests.support.cells import configuration, zone


def test_a_zone_whose_solves_nobody_answers_is_refused_by_name():
    cell = configuration(zones=(zone(policy=TitanPolicy(kind="titan")),))
    with pytest.raises(PreflightError, match="zone z of cell c is under policy titan"):
        refuse_unserved_policies([configuration(), cell])


def test_zones_that_decide_by_themselves_are_served():
    cell = configuration(zones=(zone(policy=EarliestFinishPolicy(kind="eft")),))
    assert refuse_unserved_policies([configuration(), cell]) is None
