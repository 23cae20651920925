"""A process's place among those that train together."""

from typing import Literal

from schemas.base import Record


class Membership(Record):
    """A worker process has this place in a generation. Rank 0 leads it."""

    kind: Literal["membership"] = "membership"
    generation: int
    rank: int
    world: int
    """Processes in all, one for each GPU of each worker."""
