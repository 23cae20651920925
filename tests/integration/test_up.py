"""`millrace up` stops in order, keeps its data, and leaves nothing behind however it ends."""

import time
from contextlib import suppress

import psutil
import pytest

from infra.cli import run
from infra.demo.data import write_datasets, write_next_steps
from infra.deployment.deployment_folders import Folders, running_address
from schemas.clock import ClockTicked
from schemas.codec import decode_event
from schemas.jobs import JobSubmitted
from schemas.kafka_connection import KafkaConnection
from streams.kafka.reader import KafkaReader
from tests.integration.deployment import DEMO_CELLS, UP_TIMEOUT_S, Up, bids_file, demo_bid, until
from tests.support.processes import is_gone_within


@pytest.mark.drill
def test_up_stops_in_order_and_keeps_data(start_up, tmp_path, monkeypatch, capsys):
    up = start_up()
    up.await_ready()
    assert "cell demo is configured" in up.output
    children = [child.pid for child in up.children()]
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(tmp_path / "data"))
    file = bids_file(tmp_path / "bids.yaml", demo_bid("kept", 3))
    assert run(["submit", file]) == 0
    second = start_up()
    assert second.process.wait(UP_TIMEOUT_S) == 1
    assert f"process {up.process.pid} runs the deployment" in second.output
    assert up.interrupt() == 130
    assert "stopping" in up.output
    assert all(is_gone_within(child, 5.0) for child in children)
    capsys.readouterr()

    changed = tmp_path / "cells.yaml"
    changed.write_text(DEMO_CELLS.read_text().replace("slot_s: 4.0", "slot_s: 5.0"))
    up = start_up(cells=changed)
    up.await_ready()
    assert "cell demo goes on as it is" in up.output
    assert run(["explain", "kept"]) == 0
    assert "Job kept in cell demo" in capsys.readouterr().out
    assert up.interrupt() == 130

    up = start_up("--fresh")
    up.await_ready()
    assert "cell demo is configured" in up.output
    assert run(["explain", "kept"]) == 1
    assert up.interrupt() == 130


@pytest.mark.slow
def test_first_bid_finds_cell_with_time(start_up, tmp_path, monkeypatch):
    interrupted = start_up()
    until(lambda: "cell demo is configured" in interrupted.output, "the cell", UP_TIMEOUT_S)
    assert interrupted.interrupt() == 130
    up = start_up()
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(tmp_path / "data"))
    address = until(running_address, "the address of the deployment", UP_TIMEOUT_S)
    assert run(["submit", bids_file(tmp_path / "bids.yaml", demo_bid("first", 3))]) == 0
    with KafkaReader(KafkaConnection(bootstrap_servers=address.bootstrap_servers)) as reader:
        ledger = list(reader.read(reader.slice("millrace.ledger")))
    assert "clock runs" not in interrupted.output, "it was interrupted before"
    kinds = [type(decode_event(record.value, record.headers).event) for record in ledger]
    assert kinds.index(ClockTicked) < kinds.index(JobSubmitted)
    up.await_ready()
    assert up.interrupt() == 130


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bids_left_by_demo_fit_cell_of_up(tmp_path, monkeypatch, capsys):
    home = Folders(tmp_path / "data")
    demo = Folders(home.root / "demo")
    demo.create()
    bids = write_next_steps(demo, write_datasets(demo.datasets, seed=0)[0], home)
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(home.root))
    monkeypatch.delenv("MILLRACE_BOOTSTRAP_SERVERS", raising=False)
    up = Up(tmp_path / "up.log")
    try:
        until(lambda: "2 of 2 nodes" in up.output, "its nodes", UP_TIMEOUT_S)
        assert run(["submit", str(bids)]) == 0
        said = capsys.readouterr().out
        assert "my-first-adapter admitted" in said
        assert "too-cheap rejected (price_not_below_bid)" in said
        until(lambda: list(home.adapters.rglob("adapter_model.safetensors")), "the adapter", UP_TIMEOUT_S)
    finally:
        assert up.interrupt() == 130


def test_children_die_with_a_parent_that_is_killed(start_up):
    up = start_up()
    up.await_ready()
    children = [child.pid for child in up.children()]
    assert len(children) >= 3
    up.process.kill()
    up.process.wait()
    deadline_s = time.monotonic() + UP_TIMEOUT_S
    assert all(is_gone_within(child, deadline_s - time.monotonic()) for child in children)


@pytest.mark.drill
def test_a_broker_that_is_killed_is_started_again(start_up, tmp_path, monkeypatch, capsys):
    up = start_up()
    up.await_ready()
    broker = [child for child in up.children() if "kafka.Kafka" in child.cmdline()]
    assert len(broker) == 2, "the broker and its supervisor"
    for process in broker:
        with suppress(psutil.NoSuchProcess):  # it dies with its supervisor
            process.kill()
    until(
        lambda: "broker died and is started again" in up.output, "the broker is started again", UP_TIMEOUT_S
    )
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(tmp_path / "data"))
    file = bids_file(tmp_path / "bids.yaml", demo_bid("after", 3))
    assert run(["submit", file]) == 0
    assert "after" in capsys.readouterr().out
    assert up.process.poll() is None
    assert up.interrupt() == 130
