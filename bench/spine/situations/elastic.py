"""Elastic jobs that run, and many that wait."""

import random
from collections.abc import Iterator

from bench.spine.cells import CELL
from bench.spine.situations import FREE, ZONE, CellHistory, Situation, cell_of
from schemas.cells import GpuType, Node, Zone
from schemas.clock import ClockTicked
from schemas.elastic.commands import Member, WorkersAssigned
from schemas.elastic.settings import ElasticPolicy, SchemeName
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.fleet import NodeOffline, NodeSilent, RunFinished, RunStarted
from schemas.jobs import JobQuoteRequested, JobSubmitted
from schemas.lora import Dataset

_POLICY = "elastic"
_GPUS = 8
_SCHEMES: tuple[SchemeName, ...] = ("lyra", "lyra", "lyra", "fifo", "gandiva", "afs", "opportunistic")
_INTERVAL_S = 60.0
_LOST = 4
"""Inverse share of the nodes that fail."""
_DATASET = Dataset(path="data.jsonl", samples=1_000)


def elastic_situations(rng: random.Random, jobs: int) -> Iterator[Situation]:
    """Yield situations under a drawn scheme other than `pollux`."""
    yield from _situations(rng, jobs, _SCHEMES)


def pollux_situations(rng: random.Random, jobs: int) -> Iterator[Situation]:
    """Yield situations under the scheme `pollux`, whose search is bounded separately."""
    yield from _situations(rng, jobs, ("pollux",))


def _situations(rng: random.Random, jobs: int, schemes: tuple[SchemeName, ...]) -> Iterator[Situation]:
    """Yield events in a zone of fast and slow servers that are full, with `jobs` waiting jobs."""
    servers = rng.choice((20, 100, 443, 900))
    running = min(rng.choice((100, 500, 1_500)), servers * _GPUS)
    users = rng.choice((1, 50, jobs))
    most_workers = rng.choice((1, 16, 64))
    scheme = rng.choice(schemes)
    what = (
        f"{scheme}, {servers} servers, {running} jobs run, {jobs} of {users} users and up to "
        f"{most_workers} workers wait"
    )
    history = CellHistory(cell_of(_zone(servers, scheme)), ("elastic",))
    for number in range(running):
        history.send(_submitted(rng, f"runs{number}", f"user{number % 7}", most_workers))
    assigned: list[Member] = []
    for outcome in history.tick(_INTERVAL_S):
        if isinstance(outcome, WorkersAssigned) and outcome.node == outcome.members[0].node:
            history.send(
                RunStarted(
                    cell=CELL,
                    node=outcome.node,
                    run_id=outcome.run_id,
                    job_id=outcome.job_id,
                    samples_done=0,
                )
            )
            last = outcome
            assigned += outcome.members
    for number in range(jobs):
        history.send(_submitted(rng, f"waits{number}", f"poor{number % users}", most_workers))
    finished = RunFinished(
        cell=CELL,
        node=last.node,
        run_id=last.run_id,
        job_id=last.job_id,
        samples_done=last.workload.work_samples,
    )
    quoted = JobQuoteRequested(
        cell=CELL,
        quote_id="quote",
        user="quoted",
        zone=ZONE,
        workload=_workload(rng, most_workers, work_samples=10**8),
        terms=ElasticTerms(),
    )
    yield from history.before_each(
        _POLICY,
        (
            (f"round: {what}", ClockTicked(cell=CELL, time_s=2 * _INTERVAL_S)),
            (f"round after their patience: {what}", ClockTicked(cell=CELL, time_s=100_000.0)),
            (f"quote: {what}", quoted),
            (f"job done: {what}", finished),
            (f"node lost: {what}", NodeOffline(cell=CELL, node="fast0")),
            (f"node silent: {what}", _silent(last.node)),
            (f"another job: {what}", _submitted(rng, "another", "other", most_workers)),
        ),
    )
    lost = dict.fromkeys(member.node for member in assigned)
    history.send(*(_silent(node) for node in list(lost)[: max(servers // _LOST, 1)]))
    yield history.before(
        _POLICY, f"round after lost nodes: {what}", ClockTicked(cell=CELL, time_s=2 * _INTERVAL_S)
    )
    history.tick(100_000.0)
    yield history.before(_POLICY, f"second round: {what}", ClockTicked(cell=CELL, time_s=100_060.0))


def _silent(node: str) -> NodeSilent:
    return NodeSilent(cell=CELL, node=node, silent_s=60.0)


def _zone(servers: int, scheme: SchemeName) -> Zone:
    return Zone(
        id=ZONE,
        base_model="none",
        base_model_memory_gib=1.0,
        gpu_types=(
            GpuType(name="fast", samples_per_s=8.0, memory_gib=256.0, gpus=_GPUS),
            GpuType(name="slow", samples_per_s=8.0 / 3, memory_gib=128.0, gpus=_GPUS),
        ),
        nodes=tuple(
            Node(id=f"{kind}{number}", gpu_type=kind, tariff=FREE.name)
            for kind in ("fast", "slow")
            for number in range(servers // 2)
        ),
        policy=ElasticPolicy(
            reference_gpu_type="fast", interval_s=_INTERVAL_S, patience_s=600.0, scheme=scheme
        ),
    )


def _workload(rng: random.Random, most_workers: int, work_samples: int | None = None) -> ElasticWorkload:
    least = rng.choice((1, 1, min(2, most_workers), min(8, most_workers)))
    return ElasticWorkload(
        work_samples=work_samples or round(rng.lognormvariate(10.0, 1.8)) + 1_000,
        model="none",
        dataset=_DATASET,
        min_workers=least,
        max_workers=rng.randint(least, most_workers),
        gpus_per_worker=rng.choice((1, 1, 2, 8)),
        samples_per_s=1.0,
        fungible=rng.random() < 0.5,
        hyperparameters=TrainingHyperparameters(global_batch_size=64),
    )


def _submitted(rng: random.Random, job_id: str, user: str, most_workers: int) -> JobSubmitted:
    return JobSubmitted(
        cell=CELL,
        job_id=job_id,
        user=user,
        zone=ZONE,
        workload=_workload(rng, most_workers),
        terms=ElasticTerms(),
    )
