"""Deadline rules: how many slots a user allows for the training itself, from one uniform draw.

A rule maps the same draw to the same place in its own range, so that settings that differ in nothing but the
rule compare the same users in a greater or a smaller hurry (erratum P7: the paper names no rule).
"""

from collections.abc import Callable
from types import MappingProxyType

DeadlineRule = Callable[[float, float, int], float]
"""(uniform draw from 0 to 1, slots of work on the fastest type, slots left of the day) -> slots."""


def proportional(draw: float, work_slots: float, _left_slots: int) -> float:
    """Uniform from 1.2 to 5 times the work: who has more to do plans for longer."""
    return work_slots * _between(1.2, 5.0, draw)


def tight(draw: float, work_slots: float, _left_slots: int) -> float:
    """Uniform from 1.05 to 2 times the work: an A40, 2.08 times as slow, is too slow for nearly all."""
    return work_slots * _between(1.05, 2.0, draw)


def loose(draw: float, work_slots: float, _left_slots: int) -> float:
    """Uniform from 3 to 8 times the work: either type will do, and a night's tariff can be waited for."""
    return work_slots * _between(3.0, 8.0, draw)


def day(draw: float, work_slots: float, left_slots: int) -> float:
    """Uniform from the work itself to the end of the day, whatever the work: small tasks can wait longest."""
    return _between(work_slots, max(work_slots, float(left_slots)), draw)


DEADLINE_RULES = MappingProxyType({"proportional": proportional, "tight": tight, "loose": loose, "day": day})


def _between(least: float, most: float, draw: float) -> float:
    return least + (most - least) * draw
