"""Seeded instances of the decisions of elastic scheduling, and a busy cell, of the thesis' size."""

import random
from collections.abc import Callable
from itertools import count

from schemas.base import HOURS_PER_DAY, Event
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.codec import Decision, Envelope
from schemas.elastic.commands import WorkersAssigned
from schemas.elastic.settings import ElasticPolicy
from schemas.elastic.workload import ElasticTerms, ElasticWorkload, TrainingHyperparameters
from schemas.fleet import NodeOnline, RunStarted
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset
from solvers.elastic.cluster import Cluster
from solvers.elastic.knapsack import ItemGroup
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell

SERVER_GPUS = 8
TRAINING_GPUS = 3_544
INFERENCE_GPUS = 4_160
T4_PER_V100 = 3
"""GPUs of type T4 per V100 of equal speed (erratum L4)."""

JOB_SHARE_PCT = {1: 50, 2: 15, 4: 12, 8: 12, 16: 6, 32: 3, 64: 2}
"""Shares of jobs by GPUs: most have one, and those of 8 and more hold three quarters of all GPUs."""
_CHURNS = 5
"""Number of times that the servers are filled and partly vacated, until jobs are fully scattered."""
_VACATED_TO = 0.7
_MISSES = 30
"""Number of consecutive jobs without room after which the servers count as full."""
_ELASTIC_SHARE = 0.35
"""Elastic share of jobs with 8 GPUs and more and several workers: where jobs are elastic, those hold some 36
% of GPUs (section 3.7.1)."""

_CELL, _ZONE, _TARIFF = "busy", "elastic", Tariff(name="none", micros_per_kwh=(0,) * HOURS_PER_DAY)
_TIME = "1970-01-01T00:00:00Z"
_FUNGIBLE_SHARE = 0.21
"""Share of fungible jobs (section 3.7.1)."""
INTERVAL_S = 60.0


def lent_servers(seed: int, servers: int, has_elastic: bool, used_share: float = 0.92) -> Cluster:
    """Return loaned servers with jobs on them, as after long churn: used as in the thesis (Figure 3.11), and
    placed best fit.

    Args:
        has_elastic: whether some jobs have flexible workers.
    """
    rng = random.Random(f"lent/{seed}/{has_elastic}")
    cluster = Cluster()
    for number in range(servers):
        cluster.add_server(f"s{number:04}", "loaned", SERVER_GPUS)
    jobs = 0
    for goal in [_VACATED_TO] * _CHURNS + [used_share]:
        misses = 0
        while misses < _MISSES:
            jobs += 1
            misses += not _place_one(cluster, rng, f"j{jobs:06}", has_elastic)
        live = cluster.jobs()
        rng.shuffle(live)
        while cluster.free_gpus("loaned") < (1 - goal) * servers * SERVER_GPUS:
            cluster.remove(live.pop())
    return cluster


def _place_one(cluster: Cluster, rng: random.Random, job_id: str, has_elastic: bool) -> bool:
    gpus, gpus_per_worker = job_size(rng)
    workers = gpus // gpus_per_worker
    if not (has_elastic and gpus >= SERVER_GPUS and workers > 1 and rng.random() < _ELASTIC_SHARE):
        return cluster.place(job_id, workers, gpus_per_worker, "loaned", "inelastic") is not None
    base = max(1, workers * 3 // 4)
    if cluster.place(job_id, base, gpus_per_worker, "loaned", "base") is None:
        return False
    flexible = rng.randint(0, workers - base)
    if flexible:
        cluster.place(job_id, flexible, gpus_per_worker, "loaned", "flexible")
    return True


def job_size(rng: random.Random) -> tuple[int, int]:
    """Draw the GPUs of a job, and of each of its workers."""
    (gpus,) = rng.choices(list(JOB_SHARE_PCT), list(JOB_SHARE_PCT.values()))
    if gpus >= SERVER_GPUS and rng.random() < 0.5:
        return gpus, SERVER_GPUS
    return gpus, rng.choice([each for each in (1, 2, 4, 8) if each <= gpus])


def knapsack_groups(seed: int, items: int = 354) -> list[ItemGroup]:
    """Draw elastic jobs with a total number of items; the thesis's largest knapsack has 354 (section
    3.5.2)."""
    rng = random.Random(f"knapsack/{seed}")
    groups: list[ItemGroup] = []
    left = items
    while left:
        extra = min(left, rng.choice((2, 4, 8, 16)))
        left -= extra
        least = rng.randint(1, 4)
        gpus_per_worker = rng.choice((1, 2, 4, 8))
        work_s = rng.lognormvariate(9.0, 1.5)
        groups.append(
            ItemGroup(
                [gpus_per_worker * more for more in range(1, extra + 1)],
                [work_s / least - work_s / (least + more) for more in range(1, extra + 1)],
            )
        )
    return groups


class BusyCell:
    """Elastic jobs run on all training servers and on all inference servers, which are lent at once, and jobs
    of fixed sizes wait. The next tick begins a round, in which elastic jobs are shrunk.

    Inference servers are the zone's own here, of the slower GPU type: a round treats them like loans.
    """

    def __init__(self, seed: int, running: int = 1_000, waiting: int = 500) -> None:
        self._offsets = count()
        cell = Cell(_CELL)
        rng = random.Random(f"busy/{seed}")
        self._send(cell, _configuration(), ClockTicked(cell=_CELL, time_s=0.0))
        for server in _nodes():
            self._send(cell, NodeOnline(cell=_CELL, node=server.id, base_model="none", runners=("elastic",)))
        for number in range(running):
            bounds = 1, rng.choice((2, 4, 8, 16))
            is_fungible = number % 2 == 0
            job = _submitted(rng, f"running-{number}", bounds, rng.choice((1, 1, 2, 4)), is_fungible)
            self._send(cell, job)
        for decision in self._send(cell, ClockTicked(cell=_CELL, time_s=INTERVAL_S)):
            match decision.outcome:
                case WorkersAssigned(node=node, members=members) as order if node == members[0].node:
                    started = RunStarted(
                        cell=_CELL, node=node, run_id=order.run_id, job_id=order.job_id, samples_done=0
                    )
                    self._send(cell, started)
        for number in range(waiting):
            gpus, gpus_per_worker = job_size(rng)
            workers = gpus // gpus_per_worker
            is_fungible = rng.random() < _FUNGIBLE_SHARE
            job = _submitted(rng, f"waiting-{number}", (workers, workers), gpus_per_worker, is_fungible)
            self._send(cell, job)
        self._packed = cell.packed()
        offset = next(self._offsets)
        self.tick = LedgerEvent(offset, _envelope(ClockTicked(cell=_CELL, time_s=2 * INTERVAL_S), offset))
        """Tick that begins the round."""

    def cell(self) -> Cell:
        """Return the cell before the round; a new one each time."""
        return Cell.unpack(self._packed)

    def wake(self) -> Callable[[], None]:
        """Return a function that makes the zone decide the round."""
        zone = self.cell().zones[_ZONE]
        return lambda: zone.wake(2 * INTERVAL_S)

    def _send(self, cell: Cell, *events: Event) -> list[Decision]:
        decisions = []
        for event in events:
            offset = next(self._offsets)
            decisions += cell.handle(LedgerEvent(offset, _envelope(event, offset)))
        return decisions


def _envelope(event: Event, offset: int) -> Envelope:
    return Envelope(f"e{offset}", "/bench", _TIME, event)


def _nodes() -> list[Node]:
    return [
        Node(id=f"{kind}-{number:03}", gpu_type=kind, tariff=_TARIFF.name)
        for kind, gpus in (("V100", TRAINING_GPUS), ("T4", INFERENCE_GPUS))
        for number in range(gpus // SERVER_GPUS)
    ]


def _configuration() -> CellConfigured:
    samples_per_s = {"V100": float(SERVER_GPUS), "T4": SERVER_GPUS / T4_PER_V100}
    zone = Zone(
        id=_ZONE,
        base_model="none",
        base_model_memory_gib=1.0,
        gpu_types=tuple(
            GpuType(name=name, samples_per_s=speed, memory_gib=256.0, gpus=SERVER_GPUS)
            for name, speed in samples_per_s.items()
        ),
        nodes=tuple(_nodes()),
        policy=ElasticPolicy(reference_gpu_type="V100", interval_s=INTERVAL_S),
    )
    return CellConfigured(cell=_CELL, epoch_s=0.0, slot_s=INTERVAL_S, tariffs=(_TARIFF,), zones=(zone,))


def _submitted(
    rng: random.Random, job_id: str, workers: tuple[int, int], gpus_per_worker: int, is_fungible: bool
) -> JobSubmitted:
    return JobSubmitted(
        cell=_CELL,
        job_id=job_id,
        user="bench",
        zone=_ZONE,
        workload=ElasticWorkload(
            work_samples=round(rng.lognormvariate(10.0, 1.8)) + 1_000,
            model="none",
            dataset=Dataset(path="none", samples=1),
            min_workers=workers[0],
            max_workers=workers[1],
            gpus_per_worker=gpus_per_worker,
            samples_per_s=1.0,
            hyperparameters=TrainingHyperparameters(global_batch_size=64),
            fungible=is_fungible,
        ),
        terms=ElasticTerms(),
    )
