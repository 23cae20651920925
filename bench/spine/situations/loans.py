"""Inference servers that are lent to elastic jobs and reclaimed, as many at once as an event may name."""

import random
from collections.abc import Iterator

from bench.spine.cells import CELL, SLOT_S
from bench.spine.situations import FREE, ZONE, CellHistory, Situation
from schemas.cells import Borrower, CellConfigured, GpuType, Lending, Node, Zone
from schemas.clock import ClockTicked
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.fleet import NodeOnline, RunStarted
from schemas.inference import MAX_SERVERS, CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset
from streams.policies.inference.kind import InferencePolicy

_POLICY = "loans"
_GPUS = 8
_TRAINING = 100
_INTERVAL_S = 60.0
_NOTICE_S = 300.0
_OWNER = "inference"


def loan_situations(rng: random.Random, servers: int) -> Iterator[Situation]:
    """Yield offers and reclaims between a zone that lends `servers` servers and one whose jobs use them."""
    jobs = rng.choice((500, 2_000, 4_000))
    most_workers = rng.choice((1, 4, 16))
    most = min(MAX_SERVERS, servers)
    what = f"{servers} servers, {jobs} jobs of up to {most_workers} workers"
    names = tuple(f"lent{number}" for number in range(servers))
    history = CellHistory(_cell(names), ("elastic",))
    for number in range(jobs):
        history.send(_submitted(rng, f"job{number}", f"user{number % 50}", most_workers))
    history.send(InferenceLoadReported(cell=CELL, zone=_OWNER, time_s=0.0, load=0.0))
    offers = [
        CapacityOffered(cell=CELL, zone=_OWNER, offer_id=f"offer{first}", servers=names[first : first + most])
        for first in range(0, servers, most)
    ]
    yield history.before(_POLICY, f"offer: {most} of {what}", offers[0])
    history.send(*offers)
    for name in names:
        history.send(NodeOnline(cell=CELL, node=name, base_model="none", runners=("elastic",)))
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
    reclaim = CapacityReclaimed(
        cell=CELL, zone=_OWNER, reclaim_id="reclaim", servers=most, due_s=_INTERVAL_S + 2 * _NOTICE_S
    )
    yield history.before(_POLICY, f"reclaim: {most} of {what}", reclaim)
    history.send(reclaim)
    yield history.before(
        _POLICY, f"round after a reclaim: {what}", ClockTicked(cell=CELL, time_s=2 * _INTERVAL_S)
    )


def _cell(lent: tuple[str, ...]) -> CellConfigured:
    fast = GpuType(name="fast", samples_per_s=8.0, memory_gib=256.0, gpus=_GPUS)
    slow = GpuType(name="slow", samples_per_s=8.0 / 3, memory_gib=128.0, gpus=_GPUS)
    training = Zone(
        id=ZONE,
        base_model="none",
        base_model_memory_gib=1.0,
        gpu_types=(fast, slow),
        nodes=tuple(
            Node(id=f"fast{number}", gpu_type="fast", tariff=FREE.name) for number in range(_TRAINING)
        ),
        policy=ElasticPolicy(reference_gpu_type="fast", interval_s=_INTERVAL_S, patience_s=600.0),
    )
    owner = Zone(
        id=_OWNER,
        base_model="none",
        base_model_memory_gib=1.0,
        gpu_types=(slow,),
        # The headroom is at least one server.
        nodes=tuple(Node(id=name, gpu_type="slow", tariff=FREE.name) for name in (*lent, "kept")),
        policy=InferencePolicy(),
        lending=Lending(headroom=0.0, notice_s=_NOTICE_S, borrowers=(Borrower(zone=ZONE),)),
    )
    return CellConfigured(cell=CELL, epoch_s=0.0, slot_s=SLOT_S, tariffs=(FREE,), zones=(training, owner))


def _submitted(rng: random.Random, job_id: str, user: str, most_workers: int) -> JobSubmitted:
    least = rng.choice((1, 1, min(2, most_workers)))
    workload = ElasticWorkload(
        work_samples=round(rng.lognormvariate(10.0, 1.8)) + 1_000,
        model="none",
        dataset=Dataset(path="data.jsonl", samples=1_000),
        min_workers=least,
        max_workers=rng.randint(least, most_workers),
        gpus_per_worker=rng.choice((1, 1, 2, 8)),
        samples_per_s=1.0,
        fungible=True,
        hyperparameters=TrainingHyperparameters(global_batch_size=64),
    )
    return JobSubmitted(
        cell=CELL, job_id=job_id, user=user, zone=ZONE, workload=workload, terms=ElasticTerms()
    )
