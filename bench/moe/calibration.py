"""What the steps of a served layer cost, measured over four ranks, and costs of a layer made of it."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from bench.moe.inference_rank import HIDDEN, serve
from bench.moe.routing import Setting
from bench.network.ranks import run_on_limited_network
from executors.moe.serving.phases import Layout, Standing
from solvers.experts.placement import Cluster, Demand
from solvers.experts.schemes import SCHEMES
from solvers.experts.timing import LayerCosts

RANKS = 4
_BYTES_PER_NUMBER = 4
_DECISIONS = 9
_TIMEOUT_S = 900.0


def run_served(settings: Sequence[Setting], **arguments: Any) -> tuple[dict[str, Any], str]:
    """Serve over the rate-limited network; see `inference_rank.serve`.

    Returns:
        what rank 0 has returned, and over what network, in words.
    """
    told = [setting.to_json() for setting in settings]
    results, network = run_on_limited_network(serve, RANKS, _TIMEOUT_S, settings=told, **arguments)
    return results[0], network


def layer_costs(measured: Mapping[str, float], experts: int, devices: int) -> LayerCosts:
    """Of a layer with so many experts.

    Under every scheme all ranks tell how many rows they have for each expert, since an uneven all-to-all
    needs it: so that is part of the gate. Decisions are timed here, with the default scheme.
    """
    plan_s, check_s = _decisions_s(experts, devices)
    token_bytes = HIDDEN * _BYTES_PER_NUMBER
    return LayerCosts(
        token_bytes=token_bytes,
        link_bytes_per_s=token_bytes / measured["row_s"],
        all_to_all_s=measured["all_to_all_s"],
        expert_s=measured["expert_s"],
        token_s=measured["token_s"],
        swap_s=measured["swap_s"],
        gate_s=measured["dense_s"] + measured["tell_s"],
        check_s=check_s,
        plan_s=plan_s,
    )


def _decisions_s(experts: int, devices: int) -> tuple[float, float]:
    cluster = Cluster(devices)
    first = Standing.first(experts, cluster)
    layout = Layout(SCHEMES["balanced"], cluster, first, first.placement)
    tokens = np.arange(1, experts + 1) * devices
    demand = Demand.of_counts(tokens)
    planned = layout.plan(demand)
    return (
        _median_s(lambda: layout.plan(demand)),
        _median_s(lambda: layout.settle(planned, demand, tokens)),
    )


def _median_s(decide: Callable[[], object]) -> float:
    times_s = []
    for _ in range(_DECISIONS):
        began_s = time.perf_counter()
        decide()
        times_s.append(time.perf_counter() - began_s)
    return median(times_s)
