"""No job waits forever: the longer a job waits, the more it weighs."""

import pytest

from schemas.decisions import JobCompleted
from schemas.merging.settings import SchemeName
from tests.support.merging import World, merging_cell, submit
from tests.support.merging_script import of

MOST_S = 4 * 3_600.0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["ymir", "tiresias", "themis"])
def test_long_job_completes_despite_many_short_ones(scheme: SchemeName) -> None:
    """The short jobs alone use one GPU for three quarters of the time."""
    world = World(merging_cell(1, 1, scheme=scheme, modes=()))
    world.send(submit("long", data="l", samples=8_000, epochs=8, accuracy=None, sharing=False))
    done_s = None
    number = 0
    while done_s is None and world.time_s < MOST_S:
        number += 1
        world.send(submit(f"short{number}", "ben", "s", epochs=9, accuracy=None, sharing=False))
        outcomes = world.run(240.0)
        if "long" in [each.job_id for each in of(JobCompleted, outcomes)]:
            done_s = world.time_s
    assert done_s is not None, f"{number} short jobs have come, and it is not done"
