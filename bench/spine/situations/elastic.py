"""Elastic jobs that run, and many that wait. Inference servers are lent to them and reclaimed, in events with
the largest number of servers."""

import random
from collections.abc import Iterator

from bench.spine.cells import CELL, SLOT_S
from bench.spine.situations import FREE, ZONE, CellHistory, Situation, cell_of
from schemas.cells import Borrower, CellConfigured, GpuType, Lending, Node, Zone
from schemas.clock import ClockTicked
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.settings import ElasticPolicy, SchemeName
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.fleet import NodeOffline, NodeOnline, NodeSilent, RunFinished, RunStarted
from schemas.inference import MAX_SERVERS, CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.jobs import JobQuoteRequested, JobSubmitted
from schemas.lora import Dataset
from schemas.profiles import ProfileKey, ProfilePoint, ProfileReported, sequence_class
from streams.policies.inference.kind import InferencePolicy

_POLICY = "elastic"
_GPUS = 8
_SCHEMES: tuple[SchemeName, ...] = ("lyra", "lyra", "lyra", "fifo", "gandiva", "afs", "opportunistic")
_INTERVAL_S = 60.0
_LOST = 4
"""Inverse share of the nodes that fail."""
_MODELS = 8
_DATASET = Dataset(path="data.jsonl", samples=1_000)


def elastic_situations(rng: random.Random, jobs: int) -> Iterator[Situation]:
    """Yield events in a zone of fast and slow servers that are full, with `jobs` waiting jobs, under a drawn
    scheme."""
    servers = rng.choice((20, 100, 443, 900))
    running = min(rng.choice((100, 500, 1_500)), servers * _GPUS)
    users = rng.choice((1, 50, jobs))
    most_workers = rng.choice((1, 16, 64))
    scheme = rng.choice(_SCHEMES)
    what = (
        f"{scheme}, {servers} servers, {running} jobs run, {jobs} of {users} users and up to "
        f"{most_workers} workers wait"
    )
    history = CellHistory(cell_of(_zone(servers, scheme)), ("elastic",))
    for number in range(running):
        history.send(_submitted(rng, f"runs{number}", f"user{number % 7}", most_workers))
    runs = _start_assigned(history, _INTERVAL_S)
    last = runs[-1]
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
    lost = dict.fromkeys(member.node for run in runs for member in run.members)
    history.send(*(_silent(node) for node in list(lost)[: max(servers // _LOST, 1)]))
    yield history.before(
        _POLICY, f"round after lost nodes: {what}", ClockTicked(cell=CELL, time_s=2 * _INTERVAL_S)
    )
    history.tick(100_000.0)
    yield history.before(_POLICY, f"second round: {what}", ClockTicked(cell=CELL, time_s=100_060.0))


def round_of(rng: random.Random, jobs: int, has_curves: bool) -> Situation:
    """Return the first round of `jobs` waiting jobs of eight models; with curves, published profiles of the
    models take the place of declared speeds."""
    history = CellHistory(cell_of(_zone(100, "lyra")), ("elastic",))
    if has_curves:
        history.publish(*(_profile(model) for model in range(_MODELS)))
    for number in range(jobs):
        submitted = _submitted(rng, f"job{number}", f"user{number % 50}", 16)
        changes = {"model": f"model{number % _MODELS}", "samples_per_s": None if has_curves else 1.0}
        workload = submitted.workload.model_copy(update=changes)
        history.send(submitted.model_copy(update={"workload": workload}))
    return history.before(_POLICY, "round", ClockTicked(cell=CELL, time_s=_INTERVAL_S))


def _profile(model: int) -> ProfileReported:
    """Return a profile in which a GPU takes slightly more than a second for a sequence."""
    shape = TrainingHyperparameters(global_batch_size=64)
    return ProfileReported(
        cell=CELL,
        zone=ZONE,
        profiler="bench",
        key=ProfileKey(
            base_model=f"model{model}",
            sequence_tokens=sequence_class(shape.sequence_length),
            rank=0,
            target_modules=(),
            precision="bfloat16",
        ),
        points=tuple(
            ProfilePoint(
                gpu_type="fast",
                gpus=gpus,
                micro_batch_size=size,
                step_s=0.3 + size + 0.05 * (gpus - 1),
                exchange_s=0.05 * (gpus - 1),
                tokens_per_sample=shape.sequence_length,
                steps=20,
            )
            for gpus in (1, 2, 4, 8)
            for size in (1, 4, 8)
        ),
    )


def _start_assigned(history: CellHistory, time_s: float) -> list[WorkersAssigned]:
    """Advance the clock, and report the runs of all jobs with new workers as started. Return the orders of
    their leaders."""
    orders = [
        outcome
        for outcome in history.tick(time_s)
        if isinstance(outcome, WorkersAssigned) and outcome.node == outcome.members[0].node
    ]
    for order in orders:
        started = RunStarted(
            cell=CELL, node=order.node, run_id=order.run_id, job_id=order.job_id, samples_done=0
        )
        history.send(started)
    return orders


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


_TRAINING = 100
_NOTICE_S = 300.0
_OWNER = "inference"


def loan_situations(rng: random.Random, servers: int) -> Iterator[Situation]:
    """Yield offers and reclaims of `servers` servers between their zone and a zone with jobs that use
    them."""
    jobs = rng.choice((500, 2_000, 4_000))
    most_workers = rng.choice((1, 4, 16))
    most = min(MAX_SERVERS, servers)
    what = f"{servers} servers, {jobs} jobs of up to {most_workers} workers"
    names = tuple(f"lent{number}" for number in range(servers))
    history = CellHistory(_lending_cell(names), ("elastic",))
    for number in range(jobs):
        history.send(_submitted(rng, f"job{number}", f"user{number % 50}", most_workers))
    history.send(InferenceLoadReported(cell=CELL, zone=_OWNER, time_s=0.0, load=0.0))
    offers = [
        CapacityOffered(cell=CELL, zone=_OWNER, offer_id=f"offer{first}", servers=names[first : first + most])
        for first in range(0, servers, most)
    ]
    yield history.before("loans", f"offer: {most} of {what}", offers[0])
    history.send(*offers)
    for name in names:
        history.send(NodeOnline(cell=CELL, node=name, base_model="none", runners=("elastic",)))
    _start_assigned(history, _INTERVAL_S)
    reclaim = CapacityReclaimed(
        cell=CELL, zone=_OWNER, reclaim_id="reclaim", servers=most, due_s=_INTERVAL_S + 2 * _NOTICE_S
    )
    yield history.before("loans", f"reclaim: {most} of {what}", reclaim)
    history.send(reclaim)
    yield history.before(
        "loans", f"round after a reclaim: {what}", ClockTicked(cell=CELL, time_s=2 * _INTERVAL_S)
    )


def _lending_cell(lent: tuple[str, ...]) -> CellConfigured:
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
