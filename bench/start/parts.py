"""The parts of `millrace bench start`."""

from collections.abc import Iterator
from functools import partial

from bench.figures import Conditions, Part
from bench.start.demo import measure_demo
from bench.start.first_decision import measure_first_decision


def start_parts(conditions: Conditions) -> Iterator[tuple[str, Part]]:
    """Each part, of commands as a newcomer types them; the quick form leaves out the whole demo."""
    yield "first decision", measure_first_decision
    scene = "market" if conditions.quick else None
    yield "demo", partial(measure_demo, scene)
