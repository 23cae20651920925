"""No rebuilding changes what is decided: every verdict, payment, plan and welfare, to the micro."""

import pytest

from tests.streams.outcomes.table import BIDS, POLICIES, path, table


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_decides_as_it_was_recorded(name: str) -> None:
    found, recorded = table(name), path(name).read_text()
    assert len({line.split()[0] for line in recorded.splitlines() if not line.startswith("welfare")}) == BIDS
    assert found.splitlines() == recorded.splitlines()
