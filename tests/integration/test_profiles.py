"""Profiles through Kafka: a machine is measured and published, bids use it, and the log is verified."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.cli import run
from schemas.auction.bids import DeadlineTerms
from schemas.auction.evidence import evidence_of
from schemas.base import MAX_TIME_S
from schemas.cells import BaseDimensions, CellConfigured, GpuType
from schemas.codec import decode_decision
from schemas.decisions import JobQuoted
from schemas.jobs import JobQuoteRequested
from schemas.lora import Dataset, LoraHyperparameters, LoraWorkload
from schemas.profiles import ProfileKey, ProfilePoint, ProfileReported
from schemas.topics import DECISIONS, REASON_HEADER
from tests.integration.deployment import Deployment, until
from tests.streams import events
from tests.support.executors import write_dataset
from tests.support.tiny_base import tiny_base_directory

CELL = "alpha"
SHAPE = LoraHyperparameters(rank=4, batch_size=2, sequence_length=32)


def configuration(cell: str) -> CellConfigured:
    """A cell whose nodes are as fast as this machine may be, with a base model in float32."""
    made = events.configuration(cell)
    (zone,) = made.zones
    fast = GpuType(name="a100", samples_per_s=1e6, memory_gib=80.0)
    sizes = BaseDimensions(
        hidden_features=32,
        intermediate_features=64,
        key_value_features=32,
        layers=2,
        vocabulary_size=320,
        activation_bytes=4,
    )
    changed = zone.model_copy(update={"gpu_types": (fast,), "base_dimensions": sizes})
    return made.model_copy(update={"zones": (changed,)})


def quote(name: str) -> JobQuoteRequested:
    """A request for a task whose user declares neither speed nor memory."""
    return JobQuoteRequested(
        cell=CELL,
        quote_id=name,
        user="u",
        zone="z1",
        workload=LoraWorkload(
            work_samples=100, dataset=Dataset(path="d.jsonl", samples=100), hyperparameters=SHAPE
        ),
        terms=DeadlineTerms(deadline_s=MAX_TIME_S),
    )


@pytest.fixture
def deployment(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(kafka, topic_prefix, tmp_path, [CELL], configuration=configuration)
    yield deployment
    deployment.stop_workers()


def answer(deployment: Deployment, name: str) -> JobQuoted:
    """Ask for a quote, and return it."""
    deployment.send([quote(name)], name)

    def found() -> JobQuoted | None:
        decisions = (decode_decision(record.value or b"") for record in deployment.records(DECISIONS))
        quotes = (each.outcome for each in decisions if isinstance(each.outcome, JobQuoted))
        return next((each for each in quotes if each.quote_id == name), None)

    quoted = until(found, f"the quote {name}")
    assert quoted is not None
    return quoted


def test_measured_machine_serves_bids_without_claims(
    deployment: Deployment, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys
) -> None:
    deployment.start_worker()
    deployment.configure(CELL)
    assert answer(deployment, "before").reason == "no_throughput_known"
    write_dataset(tmp_path / "data.jsonl")
    where = ["--bootstrap-servers", deployment.bootstrap_servers, "--topic-prefix", deployment.prefix]
    shape = ["--rank", "4", "--sequence-length", "32", "--largest", "2", "--most-s", "60"]
    place = ["--publish", "--cell", CELL, "--zone", "z1", "--gpu-type", "a100", "--profiler", "lab"]
    model = str(tiny_base_directory(tmp_path_factory))
    command = ["profile", model, str(tmp_path / "data.jsonl"), *shape, *place, *where, "--json"]

    assert run([*command, "--base-model", "other"]) == 1
    assert "is of base model other, and zone z1 has tiny" in capsys.readouterr().err
    assert run([*command, "--base-model", "tiny"]) == 0
    shown = json.loads(capsys.readouterr().out)

    offer = evidence_of(answer(deployment, "after")).offer
    assert offer is not None
    (speed,) = offer.speeds
    measured = shown["points"][1]
    assert (speed.source, speed.speed_from) == ("row", "offline")
    assert speed.samples_per_s == pytest.approx(2 / measured["step_s"])
    assert offer.memory is not None
    assert (offer.memory.source, offer.memory.memory_from) == ("row", "offline")
    assert deployment.proven().ok


def test_impossible_profile_becomes_dead_letter(deployment: Deployment) -> None:
    deployment.start_worker()
    deployment.configure(CELL)
    key = ProfileKey(
        base_model="tiny",
        sequence_tokens=32,
        rank=4,
        target_modules=("q_proj", "v_proj"),
        precision="float32",
    )
    point = ProfilePoint(
        gpu_type="a100", micro_batch_size=2, step_s=0.1, memory_gib=1.0, tokens_per_sample=20.0, steps=3
    )
    honest = ProfileReported(cell=CELL, zone="z1", profiler="forger", key=key, points=(point,))
    for change in ({"step_s": 1e-12}, {"step_s": float("nan")}, {"step_s": -1.0}, {"memory_gib": -1.0}):
        forged = honest.model_dump(mode="json")
        forged["points"][0] |= change
        headers = [
            ("ce_specversion", b"1.0"),
            ("ce_id", str(change).encode()),
            ("ce_source", b"test"),
            ("ce_type", ProfileReported.TYPE.encode()),
            ("ce_time", b"2026-01-01T00:00:00Z"),
            ("content-type", b"application/json"),
        ]
        deployment.send_raw("profiles", json.dumps(forged).encode(), headers, CELL.encode())
    dead = until(
        lambda: len(found) == 4 and found if (found := deployment.records("profiles.dlt")) else None,
        "four dead letters",
    )
    reasons = [dict(record.headers)[REASON_HEADER] or b"" for record in dead]
    assert all(b"points.0." in reason or b"NaN" in reason for reason in reasons), reasons
    assert answer(deployment, "unmoved").reason == "no_throughput_known"
    assert deployment.proven().ok
