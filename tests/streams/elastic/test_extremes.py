"""Valid events at the edges of what their schemas allow: a cell of elastic zones decides on all of them."""

import math
import random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from infra.views.elastic.view import ElasticView
from schemas.base import HOURS_PER_DAY, MAX_TIME_S, Event, Outcome
from schemas.cells import (
    LEAST_SLOT_S,
    MAX_SLOT_S,
    Borrower,
    CellConfigured,
    GpuType,
    Lending,
    Node,
    Tariff,
    Zone,
)
from schemas.elastic.outcomes import ElasticForecast, JobResized, QueuedJob
from schemas.elastic.settings import MAX_SLOWNESS, ElasticPolicy, ReclaimingName, Scenario, SchemeName
from schemas.elastic.staffing import WaitingJob
from schemas.elastic.workload import (
    MAX_RUNNING_YEARS,
    MAX_SPEED_PER_WORKER,
    MAX_WORKERS,
    ElasticTerms,
    ElasticWorkload,
    TrainingHyperparameters,
)
from schemas.fleet import NodeOffline, NodeOnline, RunFailed, RunFinished, RunProgressed, RunStarted
from schemas.inference import MAX_SERVERS, CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.jobs import JobQuoteRequested, JobSubmitted
from schemas.lora import Dataset
from streams.policies.inference.kind import InferencePolicy
from tests.support.cells import Bench
from tests.support.elastic import (
    CELL,
    LENDER,
    ZONE,
    ElasticBench,
    ObedientNodes,
    elastic_cell,
    elastic_zone,
    tick,
    withdraw,
    workload,
)
from tests.support.examples import examples

STEPS = 30
KINDS = ["job", "job", *4 * ["tick"], *3 * ["obey"], "report", "loan", "node"]
MOST_S = MAX_RUNNING_YEARS * 365 * 86_400 / 0.7 * (1 + 1e-6)
"""With the base demand; slower where a job spans pools."""


def edges(model: type[BaseModel], field: str) -> list[Any]:
    """The least and the most that a field of numbers takes, and what lies next to them."""
    schema = model.model_json_schema()["properties"][field]
    schema = next((one for one in schema.get("anyOf", ()) if one["type"] != "null"), schema)
    most = schema["maximum"] if "maximum" in schema else math.nextafter(schema["exclusiveMaximum"], 0)
    if schema["type"] == "integer":
        return [schema["minimum"], schema["minimum"] + 1, most - 1, most]
    least = schema["minimum"] if "minimum" in schema else math.nextafter(schema["exclusiveMinimum"], math.inf)
    return [least, math.nextafter(least, math.inf), 1.0 if least < 1 < most else most, most]


class Extremes:
    """Draws everything from `edges`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.bench, self.nodes = ElasticBench(), ObedientNodes()
        self.jobs = 0
        self.time_s = rng.choice([0.0, 1.8e9, MAX_TIME_S - 1_000])
        self.send(self.cell())

    def at_edge(self, model: type[BaseModel], field: str) -> Any:
        return self.rng.choice(edges(model, field))

    def send(self, *events: Event) -> None:
        for event in events:
            # All that enters is valid.
            outcomes = self.bench.send(type(event).model_validate_json(event.model_dump_json()))
            for outcome in outcomes:
                check(outcome)
            self.nodes.obey(outcomes)

    def cell(self) -> CellConfigured:
        rng = self.rng
        slot_s = rng.choice([LEAST_SLOT_S, 1.0, MAX_SLOT_S])
        reference = GpuType(
            name="fast",
            samples_per_s=rng.choice([2 * MAX_SLOWNESS / slot_s, 1e9]),
            memory_gib=2.0,
            gpus=self.at_edge(GpuType, "gpus"),
        )
        gpus = self.at_edge(GpuType, "gpus")
        slowness = rng.choice([1.0, 1.0, 1.000001, 3.0, MAX_SLOWNESS])
        least = reference.samples_per_s / reference.gpus * gpus / slowness
        other = GpuType(
            name="slow", samples_per_s=min(max(least, 1 / slot_s), 1e9), memory_gib=2.0, gpus=gpus
        )
        lending = Lending(
            headroom=self.at_edge(Lending, "headroom"),
            notice_s=self.at_edge(Lending, "notice_s"),
            borrowers=(Borrower(zone=ZONE, weight=self.at_edge(Borrower, "weight")),),
        )
        common = {"base_model": "any", "base_model_memory_gib": 0.5, "gpu_types": (reference, other)}
        own = [Node(id=f"s{index}", gpu_type=rng.choice(["fast", "slow"]), tariff="t") for index in range(3)]
        lent = [Node(id=f"i{index}", gpu_type=rng.choice(["fast", "slow"]), tariff="t") for index in range(3)]
        policy = ElasticPolicy(
            reference_gpu_type="fast",
            interval_s=self.at_edge(ElasticPolicy, "interval_s"),
            scheme=rng.choice(get_args(SchemeName)),
            reclaiming=rng.choice(get_args(ReclaimingName)),
            groups_elastic_jobs=rng.random() < 0.5,
            most_work_at_risk_s=self.at_edge(ElasticPolicy, "most_work_at_risk_s"),
            scenario=rng.choice(get_args(Scenario)),
            scaling_pause_s=self.at_edge(ElasticPolicy, "scaling_pause_s"),
            seed=self.at_edge(ElasticPolicy, "seed"),
        )
        return CellConfigured(
            cell=CELL,
            epoch_s=rng.choice([0.0, 0.0, self.time_s, MAX_TIME_S]),
            slot_s=slot_s,
            tariffs=(Tariff(name="t", micros_per_kwh=(0,) * HOURS_PER_DAY),),
            zones=(
                Zone(id=ZONE, nodes=tuple(own), policy=policy, **common),
                Zone(id=LENDER, nodes=tuple(lent), policy=InferencePolicy(), lending=lending, **common),
            ),
        )

    def workload(self) -> ElasticWorkload:
        rng = self.rng
        fewest = rng.choice([1, 1, 1, 2, 64, MAX_WORKERS])
        most = min(fewest * rng.choice([1, 2, MAX_WORKERS]), MAX_WORKERS)
        kind = rng.choice(["linear", "flat", "steep", "tiny steps", "jump"])
        numbers = range(1, most + 1)
        curve = {
            "linear": (),
            "flat": tuple(1.0 for _ in numbers),
            "steep": (1.0, *(MAX_SPEED_PER_WORKER * count for count in numbers[1:])),
            "tiny steps": tuple(1 + 2.0**-52 * (count - 1) for count in numbers),
            "jump": tuple(1.0 if count < most else max(1.0, most) for count in numbers),
        }[kind]
        work = self.at_edge(ElasticWorkload, "work_samples")
        at_base = curve[fewest - 1] if curve else fewest
        # As slow as may be where any other least would be refused.
        slowest = work / at_base / (MAX_RUNNING_YEARS * 365 * 86_400) * (1 + 1e-12)
        return ElasticWorkload(
            work_samples=work,
            model="m",
            dataset=Dataset(path="d", samples=1),
            hyperparameters=TrainingHyperparameters(global_batch_size=most),
            min_workers=fewest,
            max_workers=most,
            gpus_per_worker=rng.choice([1, 1, self.at_edge(ElasticWorkload, "gpus_per_worker")]),
            samples_per_s=max(self.at_edge(ElasticWorkload, "samples_per_s"), slowest),
            speedup=curve,
            keeps_checkpoints=rng.random() < 0.5,
            fungible=rng.random() < 0.5,
            heterogeneous=rng.random() < 0.5,
        )

    def step(self) -> None:
        rng = self.rng
        number = len(self.bench.ledger)
        of_lender = {"cell": CELL, "zone": LENDER}
        match rng.choice(KINDS):
            case "job":
                self.jobs += 1
                asked = {"cell": CELL, "user": "u", "zone": ZONE, "workload": self.workload()}
                self.send(JobQuoteRequested(quote_id=f"q{number}", terms=ElasticTerms(), **asked))
                self.send(JobSubmitted(job_id=f"j{number}", terms=ElasticTerms(), **asked))
            case "tick":
                configured = self.bench.cell.configuration
                interval_s = 1.0 if configured is None else configured.zones[0].policy.interval_s
                step_s = rng.choice([0.01, interval_s, interval_s, 10 * interval_s, 1e9])
                self.time_s = min(self.time_s + step_s, MAX_TIME_S)
                self.send(tick(self.time_s))
            case "obey":
                for node in sorted(self.nodes.due):
                    self.send(self.nodes.next_report(node))
            case "report" if self.nodes.leading:
                self.report(rng.choice(sorted(self.nodes.leading)))
            case "loan":
                time_s = rng.choice([0.0, self.time_s, MAX_TIME_S])
                load = self.at_edge(InferenceLoadReported, "load")
                offered = (f"i{rng.randrange(3)}",)
                due_s = rng.choice([self.time_s, min(self.time_s + 604_800, MAX_TIME_S), MAX_TIME_S])
                self.send(
                    InferenceLoadReported(**of_lender, time_s=time_s, load=rng.choice([0.0, 0.0, load])),
                    CapacityOffered(**of_lender, offer_id=f"o{number}", servers=offered),
                )
                if rng.random() < 0.5:
                    self.send(CapacityReclaimed(**of_lender, reclaim_id=f"r{number}", servers=1, due_s=due_s))
            case "node":
                node = rng.choice(["s0", "s1", "s2", "i0", "i1", "i2"])
                runners = ("elastic",)
                self.send(
                    NodeOffline(cell=CELL, node=node),
                    NodeOnline(cell=CELL, node=node, base_model="any", runners=runners),
                )

    def report(self, job_id: str) -> None:
        """Send any report of a run that a node may send, true or not."""
        order = self.nodes.leading[job_id]
        others = ["9" * 150, f"{'9' * 15}/{job_id}"]
        run_id = self.rng.choice([*3 * [order.run_id], *others])
        of = {
            "cell": CELL,
            "node": order.node,
            "run_id": run_id,
            "job_id": job_id,
            "samples_done": self.at_edge(RunStarted, "samples_done"),
        }
        reports: list[Event] = [
            RunStarted(**of, dataset_samples=self.at_edge(RunStarted, "dataset_samples")),
            RunProgressed(
                **of,
                loss=self.at_edge(RunProgressed, "loss"),
                node_s=self.at_edge(RunProgressed, "node_s"),
                complete=self.rng.random() < 0.2,
            ),
            RunFinished(**of, loss=self.at_edge(RunFinished, "loss")),
            RunFailed(**of, error="e" * 2_000, permanent=self.rng.random() < 0.5),
            withdraw(job_id, user="u"),
        ]
        self.send(self.rng.choice([*reports[:2], *reports]))


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for each in value.values() for number in numbers_in(each)]
    if isinstance(value, list | tuple):
        return [number for each in value for number in numbers_in(each)]
    return [value] if isinstance(value, float | int) else []


def records_in(value: Any) -> list[BaseModel]:
    if isinstance(value, BaseModel):
        fields = tuple(getattr(value, field) for field in type(value).model_fields)
        return [value, *records_in(fields)]
    return [record for each in value for record in records_in(each)] if isinstance(value, tuple) else []


def check(outcome: Outcome) -> None:
    """It can be written, all of its numbers are finite, no time is absurd, and it has words."""
    assert type(outcome).model_validate_json(outcome.model_dump_json()) == outcome
    assert all(map(math.isfinite, numbers_in(outcome.model_dump())))
    for record in records_in(outcome):
        if isinstance(record, JobResized):
            assert 0 < record.remaining_s <= MOST_S
        if isinstance(record, QueuedJob | WaitingJob):
            assert 0 < record.running_s <= MOST_S
        if isinstance(record, ElasticForecast):
            assert record.start_s <= record.earliest_end_s <= record.latest_end_s <= record.start_s + MOST_S
    ElasticView().words(outcome)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(40), deadline=None)
def test_extreme_events_give_finite_decisions(seed):
    extremes = Extremes(random.Random(seed))
    for _ in range(STEPS):
        extremes.step()


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("interval_s", 5e-324, "interval_s"),
        (
            "reference_gpu_type",
            "faster",
            "a GPU of type V100 trains 100 samples/s and one of",
        ),
    ],
)
def test_settings_that_no_arithmetic_survives_are_refused(field, value, fault):
    zone = elastic_zone()
    faster = GpuType(name="faster", samples_per_s=1e9, memory_gib=1.0)
    with pytest.raises(ValidationError, match=fault):
        Zone.model_validate(
            zone.model_copy(
                update={
                    "gpu_types": (*zone.gpu_types, faster),
                    "policy": zone.policy.model_copy(update={field: value}),
                }
            ).model_dump()
        )


def test_workers_never_exceed_command_limit():
    """On GPUs of a third of the speed three workers are one, each on a server of its own here."""
    lent = MAX_WORKERS + 200
    bench = Bench()
    bench.send(elastic_cell(servers=512, lendable=lent), tick(0.0))
    bench.send(InferenceLoadReported(cell=CELL, zone=LENDER, time_s=0.0, load=0.0))
    names = tuple(f"i{index}" for index in range(lent - 1))
    for first in range(0, len(names), MAX_SERVERS):
        servers = names[first : first + MAX_SERVERS]
        bench.send(CapacityOffered(cell=CELL, zone=LENDER, offer_id=f"o{first}", servers=servers))
    bench.send(*(NodeOnline(cell=CELL, node=name, base_model="any", runners=("elastic",)) for name in names))
    hyperparameters = TrainingHyperparameters(global_batch_size=MAX_WORKERS)
    wide = workload(86_400.0, (1, 1), gpus_per_worker=4, fungible=True)
    for job_id, (fewest, most) in {"base": (400, 400), "flexible": (100, MAX_WORKERS)}.items():
        sized = {"hyperparameters": hyperparameters, "min_workers": fewest, "max_workers": most}
        bench.send(
            JobSubmitted(
                cell=CELL,
                job_id=job_id,
                user="u",
                zone=ZONE,
                workload=wide.model_copy(update=sized),
                terms=ElasticTerms(),
            )
        )
    started = [each for each in bench.send(tick(60.0)) if isinstance(each, JobResized)]
    placed = {each.job_id: (each.pool, sum(one.workers for one in each.servers)) for each in started}
    assert placed == {"base": ("training", 400), "flexible": ("loaned", MAX_WORKERS // 3 * 3)}
