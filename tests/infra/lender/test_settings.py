"""The settings of a lender's process."""

import pytest

from infra.commands.options import settings_faults
from infra.errors import CommandError
from infra.lender.service import LEAST_INTERVAL_S, LenderSettings


@pytest.mark.parametrize("interval_s", ["0.001", "1e-300", "0", "-1"])
def test_too_short_interval_is_one_line(monkeypatch, interval_s):
    monkeypatch.setenv("MILLRACE_LENDER_INTERVAL_S", interval_s)
    with pytest.raises(CommandError) as refused, settings_faults():
        LenderSettings()
    assert "MILLRACE_LENDER_INTERVAL_S" in str(refused.value)
    assert "greater than or equal to 0.5" in str(refused.value)


def test_the_shortest_interval_is_taken(monkeypatch):
    monkeypatch.setenv("MILLRACE_LENDER_INTERVAL_S", str(LEAST_INTERVAL_S))
    assert LenderSettings().parameters.interval_s == LEAST_INTERVAL_S
