"""The suite `moe`: the thesis' chapters 4 and 5. Parts that run alone come first."""

from functools import cache
from typing import Any

from bench.figures import Conditions
from bench.network import MEGABITS_PER_S, NoLinksError, rate_limited
from bench.suite import Suite, SuitePart, by_conditions


@cache
def has_links() -> bool:
    """Return whether this machine can limit the rate of links."""
    try:
        with rate_limited(1, MEGABITS_PER_S):
            return True
    except NoLinksError:
        return False


def _has_cuda(_: Conditions) -> bool:
    import torch

    return torch.cuda.is_available()


SUITE: Suite[None, Any, Any] = Suite(
    parts=(
        # On loopback they would not show the effect of a network.
        *(
            SuitePart(title, by_conditions(f"bench.moe.{measure}"), lambda _: has_links())
            for title, measure in (
                ("contention", "contention:measure_contention_part"),
                ("training", "training:measure_training_part"),
                ("inference", "inference:measure_inference"),
            )
        ),
        SuitePart("placement", by_conditions("bench.moe.placement:measure_placement")),
        SuitePart("gating layer", by_conditions("bench.moe.gating_layer:measure_gating_layer")),
        SuitePart("gating training", by_conditions("bench.moe.gating_training:measure_gating_training")),
        SuitePart("estimation", by_conditions("bench.moe.estimation:measure_estimation")),
        SuitePart(
            "gating layer, CUDA",
            by_conditions("bench.moe.gating_layer:measure_gating_layer_on_cuda"),
            _has_cuda,
        ),
    ),
    scope=lambda _: None,
)
