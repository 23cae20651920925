"""Users who submit so many jobs that others would wait for ever."""

from schemas.base import Outcome
from schemas.elastic.commands import WorkersAssigned
from tests.support.elastic import (
    INTERVAL_S,
    ElasticBench,
    elastic_cell,
    finished,
    started,
    submit,
    tick,
)

PATIENCE_S = 600.0


def zone_of(servers: int = 2, **policy) -> ElasticBench:
    bench = ElasticBench()
    bench.send(elastic_cell(servers, patience_s=PATIENCE_S, **policy), tick(0.0))
    return bench


def turns_of(bench: ElasticBench) -> dict[str, tuple[str, ...]]:
    """Jobs that have a turn, and the servers that are held for each."""
    return {turn["job_id"]: tuple(turn["held"]) for turn in bench.described["turns"]}


class Flood:
    """A user that submits two jobs of one to three minutes for each GPU in every round, while fewer than four
    wait, and nodes that run them. There may be several users in turn, and the jobs may take less or more time
    than declared."""

    def __init__(
        self,
        bench: ElasticBench,
        gpus: int,
        declared_s: int = 0,
        real_s: int = 0,
        users: tuple[str, ...] = ("flooder",),
        workers: tuple[int, int] = (1, 1),
        gpus_per_worker: int = 1,
    ) -> None:
        self.bench, self.gpus = bench, gpus
        self.declared_s, self.real_s = declared_s, real_s
        self.users, self.workers, self.gpus_per_worker = users, workers, gpus_per_worker
        self.time_s, self.jobs = 0.0, 0
        self.ends: dict[str, tuple[float, WorkersAssigned]] = {}
        self.started_s: dict[str, float] = {}

    def round(self) -> list[Outcome]:
        """Advance by a minute."""
        self.time_s += INTERVAL_S
        for job_id, (end_s, order) in list(self.ends.items()):
            if end_s <= self.time_s:
                del self.ends[job_id]
                self.bench.send(
                    *(finished(order.model_copy(update={"node": each.node})) for each in order.members)
                )
        waiting = sum(job["state"] == "waiting" for job in self.bench.jobs)
        for _ in range(min(2 * self.gpus, max(4 * self.gpus - waiting, 0))):
            self.jobs += 1
            declared_s = self.declared_s or 60 + 37 * self.jobs % 120
            self.bench.send(
                submit(
                    f"flood-{self.jobs}",
                    declared_s * self.workers[0],
                    self.workers,
                    user=self.users[self.jobs % len(self.users)],
                    gpus_per_worker=self.gpus_per_worker,
                )
            )
        outcomes = self.bench.send(tick(self.time_s))
        for order in outcomes:
            if isinstance(order, WorkersAssigned) and order.node == order.members[0].node:
                self.bench.send(started(order))
                work_s = order.workload.work_samples / order.workload.min_workers
                if self.real_s and order.job_id.startswith("flood"):
                    work_s = self.real_s
                # A job that is resized ends at the same time.
                self.started_s.setdefault(order.job_id, self.time_s)
                self.ends[order.job_id] = (self.started_s[order.job_id] + work_s, order)
        return outcomes
