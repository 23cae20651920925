"""The real lender with the real worker on Kafka: load falls, servers are lent; it rises, they return."""

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.deployment.deployment import Deployment as LocalDeployment
from infra.deployment.deployment import DeploymentSpec
from infra.deployment.deployment_folders import Folders
from infra.kafka.local import LocalKafka
from infra.log.publisher import EventPublisher, PublishError
from infra.log.target import Target
from schemas.base import Event, Outcome
from schemas.cells import Borrower, CellConfigured, Lending, Node
from schemas.clock import ClockTicked
from schemas.codec import decode_decision, decode_event
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from schemas.kafka_connection import KafkaConnection
from schemas.loans import LoanChanged, OfferAnswered, ReclaimEnded
from streams.kafka.faults import BrokerError
from tests.infra.lender.prometheus_server import answering, vector
from tests.integration.deployment import ROOT, Deployment, until
from tests.support.cells import configuration, zone

CELL = "alpha"
NOTICE_S = 2.0
SERVERS = 10
LEND_AT = 0.2
"""A load at which the zone has servers to lend."""
SETTINGS = {
    "MILLRACE_LENDER_FORECASTER": "seasonal",
    "MILLRACE_LENDER_INTERVAL_S": "0.5",
    "MILLRACE_LENDER_STEADY_S": "1",
    "MILLRACE_LENDER_MARGIN_QUANTILE": "0",
    "MILLRACE_LENDER_UNKNOWN_S": "60",
    "MILLRACE_LENDER_DELAY_S": "2",
}
EVALUATED_AFTER_INTERVALS = 11
"""A plan covers the intervals of notice and delay, and one more: nine. It is evaluated after them."""
SOON_UNKNOWN_S = "6"
"""Timeout of the test without load reports: in others, a busy machine may send none for as long."""


def lending_cell(cell: str) -> CellConfigured:
    """Zone "serving", ten servers, lends to zone "z"."""
    servers = tuple(Node(id=f"s{number}", gpu_type="fast", tariff="t") for number in range(SERVERS))
    lending = Lending(headroom=0.1, notice_s=NOTICE_S, borrowers=(Borrower(zone="z"),))
    return configuration(
        cell=cell, epoch_s=time.time(), zones=(zone(), zone(id="serving", nodes=servers, lending=lending))
    )


class Inference:
    """Reports the time and the zone's load several times a second; starts lenders."""

    def __init__(self, deployment: Deployment, folder: Path) -> None:
        self.deployment = deployment
        self.target = Target(deployment.kafka, deployment.prefix)
        self.load: float | None = 0.2
        """None: no load is reported."""
        self.lenders: list[subprocess.Popen] = []
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._speak)
        self._thread.start()

    def _speak(self) -> None:
        publisher = None
        while not self._stop.wait(0.25):
            now_s = time.time()
            events: list[Event] = [ClockTicked(cell=CELL, time_s=now_s)]
            if self.load is not None:
                report = InferenceLoadReported(cell=CELL, zone="serving", time_s=now_s, load=self.load)
                events.append(report)
            try:
                publisher = publisher or EventPublisher(self.target, "tests")
                for event in events:
                    publisher.publish(event)
                publisher.flush()
            except (PublishError, BrokerError):
                publisher = None

    def start_lender(self, unknown_s: str = SETTINGS["MILLRACE_LENDER_UNKNOWN_S"]) -> subprocess.Popen:
        place = ["--cell", CELL, "--zone", "serving", "--topic-prefix", self.deployment.prefix]
        servers = ["--bootstrap-servers", self.deployment.bootstrap_servers]
        with (self._folder / f"lender-{len(self.lenders)}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "infra.cli", "lender", *place, *servers, "--json"],
                cwd=ROOT,
                env={**os.environ, **SETTINGS, "MILLRACE_LENDER_UNKNOWN_S": unknown_s},
                stdout=log,
                stderr=log,
            )
        self.lenders.append(process)
        return process

    def output(self) -> str:
        return "".join(path.read_text() for path in sorted(self._folder.glob("lender-*")))

    def wait_until_evaluated(self) -> None:
        """Wait until the lender has evaluated a plan of a steady load, with a report in each of its
        intervals. Otherwise the first evaluation would be of a rising load, and the margin its rise."""
        interval_s = float(SETTINGS["MILLRACE_LENDER_INTERVAL_S"])

        def has_evaluated() -> bool:
            steady = 0
            before = -1
            for line in self.intervals():
                interval = math.floor(line["time_s"] / interval_s)
                steady = steady + 1 if interval == before + 1 else 1
                before = interval
                if steady >= EVALUATED_AFTER_INTERVALS:
                    return True
            return False

        until(has_evaluated, "a plan is evaluated")

    def intervals(self) -> list[dict[str, Any]]:
        """Return the lenders' records of intervals."""
        lines = [json.loads(line) for line in self.output().splitlines() if line.startswith("{")]
        return [line for line in lines if "load" in line]

    def published(self, kind: type) -> list:
        """Return the events of a kind that lenders have published."""
        events = [decode_event(r.value, r.headers).event for r in self.deployment.records("inference")]
        return [event for event in events if isinstance(event, kind)]

    def decided(self, kind: type[Outcome]) -> list:
        decisions = [decode_decision(record.value or b"") for record in self.deployment.records("decisions")]
        return [decision.outcome for decision in decisions if isinstance(decision.outcome, kind)]

    def on_loan(self) -> set[str]:
        """Servers that the zone does not have."""
        latest = {change.server: change.status for change in self.decided(LoanChanged)}
        return {server for server, status in latest.items() if status != "returned"}

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for lender in self.lenders:
            lender.kill()
            lender.wait()


@pytest.fixture
def deployment(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(kafka, topic_prefix, tmp_path, [CELL], configuration=lending_cell)
    yield deployment
    deployment.stop_workers()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalKafka]:
    """One to kill."""
    with LocalKafka(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def inference(deployment: Deployment, tmp_path: Path) -> Iterator[Inference]:
    deployment.start_worker()
    deployment.configure(CELL)
    inference = Inference(deployment, tmp_path)
    yield inference
    inference.close()


@pytest.mark.slow
def test_falling_load_lends_and_rising_load_reclaims(inference):
    inference.start_lender()
    until(lambda: len(inference.on_loan()) == 7, f"seven servers on loan: {inference.output()}")
    inference.wait_until_evaluated()
    rises_s = time.time()
    inference.load = 0.6
    until(lambda: len(inference.on_loan()) == 3, "four are back")
    until(lambda: len(inference.decided(ReclaimEnded)) > 0, "the end of the reclaim")
    reclaims = inference.published(CapacityReclaimed)
    assert [reclaim.servers for reclaim in reclaims] == [4]
    assert reclaims[0].due_s >= rises_s + NOTICE_S
    assert {ended.status for ended in inference.decided(ReclaimEnded)} == {"in_time"}
    assert not any(answer.refused for answer in inference.decided(OfferAnswered))
    lines = [json.loads(line) for line in inference.output().splitlines() if line.startswith("{")]
    assert {"time_s", "load", "forecast", "margin", "lent"} <= inference.intervals()[0].keys()
    assert sum("reclaim" in line for line in lines) == 1


@pytest.mark.drill
def test_successor_of_killed_lender_repeats_no_offer(inference):
    first = inference.start_lender()
    until(lambda: len(inference.on_loan()) == 7, "seven servers on loan")
    inference.wait_until_evaluated()
    first.kill()
    offers = inference.published(CapacityOffered)
    inference.start_lender()
    until(lambda: "lender ready" in inference.output().split("lender ready", 1)[1], "another lender")
    inference.load = 0.6
    until(lambda: len(inference.on_loan()) == 3, "four servers are back")
    assert inference.published(CapacityOffered) == offers
    inference.load = 0.2
    until(lambda: len(inference.on_loan()) == 7, "four servers on loan again")
    offered = [server for offer in inference.published(CapacityOffered) for server in offer.servers]
    assert len(offered) == 7 + 4
    assert not any(answer.refused for answer in inference.decided(OfferAnswered))


@pytest.mark.drill
def test_unknown_load_reclaims_all_servers(inference):
    inference.start_lender(SOON_UNKNOWN_S)
    until(lambda: len(inference.on_loan()) == 7, "seven servers on loan")
    inference.load = None
    until(lambda: not inference.on_loan(), "all servers are back")
    assert sum(reclaim.servers for reclaim in inference.published(CapacityReclaimed)) == 7
    assert {ended.status for ended in inference.decided(ReclaimEnded)} == {"in_time"}


def lend(deployment: Deployment, name: str) -> None:
    """Have the cell lend a server."""
    now_s = time.time()
    publisher = EventPublisher(Target(deployment.kafka, deployment.prefix), "tests")
    for event in (
        ClockTicked(cell=CELL, time_s=now_s),
        InferenceLoadReported(cell=CELL, zone="serving", time_s=now_s, load=LEND_AT),
        CapacityOffered(cell=CELL, zone="serving", offer_id="offer", servers=(name,)),
    ):
        publisher.publish(event)
        publisher.flush()
    until(lambda: deployment.records("loans"), f"{name} on loan")


@pytest.mark.drill
def test_loads_of_prometheus_and_files_are_published(deployment, tmp_path):
    deployment.start_worker()
    deployment.configure(CELL)
    place = ["--cell", CELL, "--zone", "serving", "--topic-prefix", deployment.prefix, "--json"]
    place += ["--bootstrap-servers", deployment.bootstrap_servers]

    def load(*arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "infra.cli", "load", *place, *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def reported() -> list[InferenceLoadReported]:
        events = [decode_event(r.value, r.headers).event for r in deployment.records("inference")]
        return [event for event in events if isinstance(event, InferenceLoadReported)]

    file = tmp_path / "loads.csv"
    file.write_text("time_s,load\n0,0.25\n100,0.5\n")
    replayed = load("--file", str(file), "--pace", "1000")
    lines = [json.loads(line) for line in replayed.communicate(timeout=60)[0].splitlines()]
    assert replayed.returncode == 0
    assert [line["load"] for line in lines] == [report.load for report in reported()] == [0.25, 0.5]

    with answering() as server:
        busy = [
            ({"instance": f"s{number}:8000"}, "1" if number < 3 else "0") for number in range(SERVERS - 1)
        ]
        server.answer(vector(*busy))
        asking = load(
            "--prometheus", server.url, "--query", "busy", "--per-server", "instance", "--every-s", "0.5"
        )
        until(lambda: len(reported()) >= 4, "two loads of Prometheus")
        # A server that is lent need not have a series.
        lend(deployment, "s8")
        server.answer(vector(*busy[:-1]))
        before = len(reported())
        until(lambda: len(reported()) >= before + 2, "two loads without the server that is lent")
        asking.terminate()
        asking.communicate(timeout=60)
        assert asking.returncode == 0
    measured = [report for report in reported()[2:] if report.load != LEND_AT]
    assert {(report.load, report.serving) for report in measured} == {(0.4, ("s0", "s1", "s2", "s9"))}


@pytest.mark.drill
def test_lender_resumes_with_its_broker(broker, topic_prefix, tmp_path):
    deployment = Deployment(
        broker.bootstrap_servers, topic_prefix, tmp_path, [CELL], configuration=lending_cell
    )
    deployment.start_worker()
    deployment.configure(CELL)
    inference = Inference(deployment, tmp_path)
    try:
        lender = inference.start_lender()
        until(lambda: len(inference.on_loan()) == 7, "seven servers on loan")
        broker.kill()
        time.sleep(2.0)
        inference.load = 0.6
        broker.start()
        until(lambda: inference.published(CapacityReclaimed), f"a reclaim: {inference.output()}")
        assert lender.poll() is None
    finally:
        inference.close()
        deployment.stop_workers()


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_deployment_of_lending_zone_has_lender(kafka, topic_prefix, tmp_path):
    file = tmp_path / "cells.yaml"
    cell = lending_cell("fleet").model_dump(mode="json")
    file.write_text(yaml.safe_dump({"cells": [cell]}))
    folders = Folders(tmp_path / "deployment")
    folders.create()
    lines: list[str] = []
    layout = DeploymentSpec(
        file, folders, Target(KafkaConnection(bootstrap_servers=kafka), topic_prefix), run_executors=False
    )
    with LocalDeployment(layout, lines.append).running():
        log = folders.logs / "lender-fleet-serving.log"
        until(lambda: log.exists() and "lender ready" in log.read_text(), "a lender that is ready")
    assert "lender of zone serving in cell fleet starts" in lines
