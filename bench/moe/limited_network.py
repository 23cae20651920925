"""Ranks on a network of a stated rate, or on loopback where this machine cannot have one."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.network.links import NoLinksError, Place, loopback, rate_limited
from bench.network.ranks import Work, run_ranks

MEGABITS_PER_S = 200.0
"""Of each link, in each direction."""


def run_on_limited_network(
    work: Work, world: int, timeout_s: float = 600.0, **arguments: Any
) -> tuple[list[dict[str, Any]], str]:
    """Run a function on so many ranks.

    Returns:
        what each has returned, and what the network was, in words.

    Raises:
        RuntimeError: it failed on a rank.
        TimeoutError: it has not ended.
    """
    with ExitStack() as stack:
        places: Sequence[Place]
        try:
            places = stack.enter_context(rate_limited(world, MEGABITS_PER_S))
            network = f"{world} ranks, one thread each, on links of {MEGABITS_PER_S:g} Mbit/s"
        except NoLinksError as error:
            places = loopback(world)
            network = f"{world} ranks, one thread each, on loopback, which says little of a network: {error}"
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        return run_ranks(work, places, scratch, timeout_s, **arguments), network
