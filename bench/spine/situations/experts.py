"""Services whose experts are placed, and many jobs that wait for devices."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from bench.spine.cells import CELL
from bench.spine.situations import FREE, ZONE, CellHistory, Situation, cell_of
from schemas.base import Event, Outcome
from schemas.cells import GpuType, Node, Zone
from schemas.clock import ClockTicked
from schemas.experts.commands import RanksAssigned
from schemas.experts.reports import MAX_ELEMENTS, ExpertsProfiled, ExpertsRouted, LayerRouting
from schemas.experts.settings import ExpertsPolicy
from schemas.experts.workload import (
    MAX_PER_DEVICE,
    MAX_RANKS,
    ExpertsTerms,
    MoeHyperparameters,
    MoeServeWorkload,
    MoeTrainWorkload,
    Requests,
)
from schemas.fleet import NodeOffline, RunStarted
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset
from streams.policies.experts.popularity import MAX_SLOTS

_POLICY = "experts"
_ELEMENTS_PER_LAYER = 8
_GPUS = 8
_DATASET = Dataset(path="data.jsonl", samples=1_000)


def experts_situations(rng: random.Random, jobs: int) -> Iterator[Situation]:
    """Yield situations of a service and of a queue of jobs.

    The service has any size; its experts' popularity shifts, or it loses a node."""
    yield from _shifts(rng)
    yield from _queue(rng, jobs)


def _shifts(rng: random.Random) -> Iterator[Situation]:
    ranks = rng.choice((8, 16, 64, MAX_RANKS))
    per_device = rng.choice((2, 4, 16, MAX_PER_DEVICE))
    experts = rng.choice((8, 64, 128, 256))
    while experts > ranks * per_device:
        experts //= 2
    layers = max(1, min(MAX_ELEMENTS // (experts + _ELEMENTS_PER_LAYER), MAX_SLOTS // (ranks * per_device)))
    gpus = rng.choice((1, 2, 8))
    what = f"{layers} layers of {experts} experts on {ranks} devices with {per_device} each, {gpus} per node"
    history = _history(-(-ranks // gpus) + 1, ExpertsPolicy(lasting_reports=1, cool_down_s=0.0), gpus)
    workload = MoeServeWorkload(
        model="m",
        requests=Requests(dataset=_DATASET, most=1_000),
        ranks=ranks,
        most_experts_per_device=per_device,
    )
    history.send(_submitted("served", workload))
    leader = _started(history, history.tick(10.0))[0]
    profile = _profiled(leader, _routed(rng, layers, experts))
    yield history.before(_POLICY, f"profile: {what}", profile)
    history.send(profile)
    yield from history.before_each(
        _POLICY,
        (
            (f"shift: {what}", _report(leader, _routed(rng, layers, experts))),
            (f"little shift: {what}", _report(leader, _routed(rng, layers, experts, skew=0.05))),
            (f"node lost: {what}", NodeOffline(cell=CELL, node=leader.node)),
        ),
    )


def _queue(rng: random.Random, jobs: int) -> Iterator[Situation]:
    """Yield situations in which two users hold all devices by small jobs, and others wait."""
    nodes = rng.choice((16, 64, 128))
    history = _history(nodes, ExpertsPolicy(patience_s=60.0))
    for number in range(min(nodes * _GPUS, jobs)):
        history.send(_submitted(f"small{number}", _training(1), user=f"rich{number % 2}"))
    _started(history, history.tick(10.0))
    users = rng.choice((1, 10, jobs))
    for number in range(jobs):
        user = f"poor{number % users}"
        history.send(_submitted(f"waits{number}", _training(rng.randint(1, nodes * _GPUS // 2)), user=user))
    history.tick(30.0)
    what = f"{jobs} jobs of {users} users wait for {nodes * _GPUS} devices"
    yield from history.before_each(
        _POLICY,
        (
            (f"tick after their patience: {what}", ClockTicked(cell=CELL, time_s=100_000.0)),
            (f"node lost: {what}", NodeOffline(cell=CELL, node="n0")),
            (f"another job: {what}", _submitted("another", _training(3), user="other")),
        ),
    )


def _history(nodes: int, policy: ExpertsPolicy, gpus: int = _GPUS) -> CellHistory:
    zone = Zone(
        id=ZONE,
        base_model="any",
        base_model_memory_gib=0.5,
        gpu_types=(GpuType(name="A", samples_per_s=4.0, memory_gib=640.0, gpus=gpus),),
        nodes=tuple(Node(id=f"n{number}", gpu_type="A", tariff=FREE.name) for number in range(nodes)),
        policy=policy,
    )
    return CellHistory(cell_of(zone), ("moe",))


def _training(ranks: int) -> MoeTrainWorkload:
    return MoeTrainWorkload(
        work_samples=1_000,
        model="m",
        dataset=_DATASET,
        ranks=min(ranks, MAX_RANKS),
        hyperparameters=MoeHyperparameters(global_batch_size=MAX_RANKS),
    )


def _submitted(
    job_id: str, workload: MoeTrainWorkload | MoeServeWorkload, user: str = "user"
) -> JobSubmitted:
    return JobSubmitted(
        cell=CELL, job_id=job_id, user=user, zone=ZONE, workload=workload, terms=ExpertsTerms()
    )


def _started(history: CellHistory, outcomes: Sequence[Outcome]) -> list[RanksAssigned]:
    """Report the start of all ranks, and return the commands to leaders."""
    orders = [outcome for outcome in outcomes if isinstance(outcome, RanksAssigned)]
    for order in orders:
        history.send(RunStarted(**_run(order)))
    return [order for order in orders if order.node == order.members[0].node]


def _run(order: RanksAssigned) -> dict[str, Any]:
    return {
        "cell": CELL,
        "node": order.node,
        "run_id": order.run_id,
        "job_id": order.job_id,
        "samples_done": 0,
    }


def _routed(
    rng: random.Random, layers: int, experts: int, skew: float | None = None
) -> tuple[LayerRouting, ...]:
    """Draw counts of tokens."""
    shape = rng.choice((0.3, 1.0, 2.0)) if skew is None else skew
    return tuple(
        LayerRouting(tokens=tuple(int(10_000 * rng.lognormvariate(0.0, shape)) for _ in range(experts)))
        for _ in range(layers)
    )


def _profiled(order: RanksAssigned, layers: tuple[LayerRouting, ...]) -> Event:
    return ExpertsProfiled(**_run(order), layers=layers, path_length=3, paths=10, accuracy=0.7)


def _report(order: RanksAssigned, layers: tuple[LayerRouting, ...]) -> Event:
    return ExpertsRouted(**_run(order), layers=layers, batches=10, interval_s=10.0, revision=1)
