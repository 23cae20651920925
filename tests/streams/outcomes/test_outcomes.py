"""No rebuilding changes what is decided: verdicts, payments, plans and welfare to the micro, and starts."""

import pytest

from tests.streams.outcomes.gangs import GANG_POLICIES, gang_table
from tests.streams.outcomes.table import BIDS, POLICIES, path, table


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_decides_as_it_was_recorded(name: str) -> None:
    found, recorded = table(name), path(name).read_text()
    assert len({line.split()[0] for line in recorded.splitlines() if not line.startswith("welfare")}) == BIDS
    assert found.splitlines() == recorded.splitlines()


@pytest.mark.parametrize("name", GANG_POLICIES)
def test_gangs_start_and_stop_as_recorded(name: str) -> None:
    recorded = path(name).read_text().splitlines()
    assert {"starts", "leaves", "completed"} <= {word for line in recorded for word in line.split()}
    assert gang_table(name).splitlines() == recorded
