"""The parts of `millrace bench moe`, those first that are to run alone. Each module is loaded when its part
runs: torch takes seconds."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from importlib import import_module

from bench.figures import Conditions, Part, Result
from bench.moe.limited_network import MEGABITS_PER_S
from bench.network.links import NoLinksError, rate_limited

NETWORK_PARTS = (
    ("contention", "contention", "measure_contention_part"),
    ("training", "training", "measure_training_part"),
    ("inference", "inference", "measure_inference"),
)
"""Title, module and function of those that need links of a limited rate. Where there are none they run on
loopback, as other parts with figures of their own, since what they show there is not of a network."""
PARTS = (
    ("placement", "placement", "measure_placement"),
    ("gating layer", "gating_layer", "measure_gating_layer"),
    ("gating training", "gating_training", "measure_gating_training"),
    ("estimation", "estimation", "measure_estimation"),
)
"""Those of any machine, which run after them."""
CUDA_PARTS = (("gating layer, CUDA", "gating_layer", "measure_gating_layer_on_cuda"),)
"""Those of a machine with a GPU."""


LOOPBACK = "loopback"
"""What is added to the names of parts and figures there."""


def moe_parts(conditions: Conditions) -> Iterator[tuple[str, Part]]:
    """The parts by name."""
    import torch

    has_links = _has_links()
    for title, module, function in NETWORK_PARTS:
        part = partial(_called, module, function, conditions)
        yield (title, part) if has_links else (f"{title}, {LOOPBACK}", partial(_on_loopback, part))
    for title, module, function in PARTS + (CUDA_PARTS if torch.cuda.is_available() else ()):
        yield title, partial(_called, module, function, conditions)


def _has_links() -> bool:
    try:
        with rate_limited(1, MEGABITS_PER_S):
            return True
    except NoLinksError:
        return False


def _on_loopback(part: Part) -> Result:
    result = part()
    renamed = (dataclasses.replace(each, name=f"{each.name}_{LOOPBACK}") for each in result.measurements)
    return dataclasses.replace(result, measurements=tuple(renamed))


def _called(module: str, function: str, conditions: Conditions) -> Result:
    found: Result = getattr(import_module(f"bench.moe.{module}"), function)(conditions)
    return found
