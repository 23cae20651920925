"""When a process that decides looks for garbage."""

import gc

_THRESHOLD = 50_000


def look_for_less_garbage() -> None:
    """What is loaded by now stays, and a cell's state has no cycles: looking through it again and again for
    garbage costs a sixth of a decision's time. To be called once, when all is loaded."""
    gc.freeze()
    gc.set_threshold(_THRESHOLD)
