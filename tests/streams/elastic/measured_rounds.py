"""Rounds of a zone whose workers measure their steps."""

from typing import Any

from schemas.base import Event, Outcome
from schemas.elastic.commands import WorkersAssigned
from schemas.fleet import RunProgressed
from schemas.jobs import JobSubmitted
from schemas.profiles import MeasuredSteps
from tests.support.elastic import (
    INTERVAL_S,
    ElasticBench,
    elastic_cell,
    finished,
    progressed,
    started,
    submit,
    tick,
)

BATCH = 64


def undeclared(
    job_id: str, samples: float = 6_400.0, workers: tuple[int, int] = (1, 4), **fields: Any
) -> JobSubmitted:
    return submit(job_id, samples, workers, samples_per_s=None, **fields)


def step_s(gpus: int, sample_s: float = 0.25, exchange_s: float = 0.5) -> float:
    """The true step of a batch: a quarter of a second a sequence, and exchanges of half a second."""
    return BATCH / gpus * sample_s + (exchange_s if gpus > 1 else 0.0)


def steps(gpus: int, sample_s: float = 0.25, exchange_s: float = 0.5) -> MeasuredSteps:
    return MeasuredSteps(
        micro_batch_size=8,
        step_s=step_s(gpus, sample_s, exchange_s),
        tokens_per_sample=40.0,
        steps=10,
        precision="float32",
        gpus=gpus,
        samples_per_step=BATCH,
        exchange_s=exchange_s if gpus > 1 else 0.0,
    )


def measured(order: WorkersAssigned, samples_done: int = BATCH, **times: float) -> RunProgressed:
    gpus = sum(member.workers for member in order.members)
    report = progressed(order, samples_done)
    return report.model_copy(update={"measured": steps(gpus, **times), "node_s": 30.0})


def only(kind: type, outcomes: list[Outcome]) -> Any:
    (found,) = [outcome for outcome in outcomes if isinstance(outcome, kind)]
    return found


def orders(outcomes: list[Outcome]) -> list[WorkersAssigned]:
    """The orders to leaders."""
    return [o for o in outcomes if isinstance(o, WorkersAssigned) and o.node == o.members[0].node]


class Rounds:
    """A bench with a clock that ticks by rounds."""

    def __init__(self, servers: int = 1) -> None:
        self.bench = ElasticBench()
        self.number = 0
        self.bench.send(elastic_cell(servers=servers), tick(0.0))

    def next(self, *events: Event) -> list[Outcome]:
        """Send events, then the next tick."""
        self.number += 1
        return self.bench.send(*events, tick(self.number * INTERVAL_S))

    def run(self, job_id: str, user: str = "ann", **times: float) -> None:
        """Let a job run alone on one worker, be measured, and end."""
        (order,) = orders(self.next(undeclared(job_id, workers=(1, 1), user=user)))
        self.bench.send(started(order), measured(order, **times))
        self.next(finished(order))
