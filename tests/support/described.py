"""The state of zones as `millrace state` shows it, which tests read in place of private attributes."""

import json
from typing import Any

from streams.cell.state_machine import Cell


def check_described(cell: Cell) -> dict[str, Any]:
    """Describe a cell, and check that this changes nothing and gives values that JSON has.

    Raises:
        AssertionError: naming what does not hold.
    """
    before = cell.packed()
    described = cell.describe()
    assert cell.packed() == before
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    for id, zone in described["zones"].items():
        assert zone["jobs"].keys() == {job.job_id for job in cell.jobs.live.values() if job.zone == id}
    return described
