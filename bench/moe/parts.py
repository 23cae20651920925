"""The parts of `millrace bench moe`, those first that are to run alone. Each module is loaded when its part
runs: torch takes seconds."""

from collections.abc import Iterator
from functools import partial
from importlib import import_module

from bench.figures import Conditions, Part, Result

PARTS = (
    ("placement", "placement", "measure_placement"),
    ("contention", "contention", "measure_contention_part"),
    ("training", "training", "measure_training_part"),
    ("inference", "inference", "measure_inference"),
    ("gating layer", "gating_layer", "measure_gating_layer"),
    ("gating training", "gating_training", "measure_gating_training"),
    ("estimation", "estimation", "measure_estimation"),
)
"""Title, module and function of each, in the order in which they run."""
CUDA_PARTS = (("gating layer, CUDA", "gating_layer", "measure_gating_layer_on_cuda"),)
"""Those of a machine with a GPU."""


def moe_parts(conditions: Conditions) -> Iterator[tuple[str, Part]]:
    """The parts by name."""
    import torch

    for title, module, function in PARTS + (CUDA_PARTS if torch.cuda.is_available() else ()):
        yield title, partial(_called, module, function, conditions)


def _called(module: str, function: str, conditions: Conditions) -> Result:
    found: Result = getattr(import_module(f"bench.moe.{module}"), function)(conditions)
    return found
