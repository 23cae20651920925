"""The suite `moe`: the thesis' chapters 4 and 5. Parts that run alone come first."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from bench.figures import Conditions, Result
from bench.network.links import NoLinksError, rate_limited
from bench.network.ranks import MEGABITS_PER_S
from bench.suite import Suite, SuitePart, SuiteRun, by_conditions

LOOPBACK = "loopback"
"""Suffix of the names of parts and figures of a network without a rate limit."""
_NETWORK = {
    "contention": "bench.moe.contention:measure_contention_part",
    "training": "bench.moe.training:measure_training_part",
    "inference": "bench.moe.inference:measure_inference",
}
"""Measures that need links of a limited rate. Without them, they run on loopback, as other parts with figures
of their own, since these do not show the effect of a network."""

MoeBench = SuiteRun[None, Any, Any]


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


def _on_loopback(name: str) -> Callable[[MoeBench], Result]:
    def measure(bench: MoeBench) -> Result:
        result = by_conditions(name)(bench)
        renamed = (replace(each, name=f"{each.name}_{LOOPBACK}") for each in result.measurements)
        return replace(result, measurements=tuple(renamed))

    return measure


SUITE: Suite[None, Any, Any] = Suite(
    parts=(
        *(SuitePart(title, by_conditions(name), lambda _: has_links()) for title, name in _NETWORK.items()),
        *(
            SuitePart(f"{title}, {LOOPBACK}", _on_loopback(name), lambda _: not has_links())
            for title, name in _NETWORK.items()
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
