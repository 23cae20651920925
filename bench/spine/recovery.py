"""Memory of a worker with a large cell, its recovery time after a kill, and growth of the ledger with an idle
fleet. The ledger is kept forever."""

import random
import time

from bench.figures import Measurement, Result
from bench.runs import peak_memory_bytes
from bench.spine.calibration import calibrated
from bench.spine.cells import CELL, bid, configuration
from bench.spine.kafka import BrokerPipeline, pipeline
from schemas.clock import ClockTicked, tick_interval_s
from schemas.fleet import NodeHeartbeat, NodeOnline, RunStarted
from schemas.topics import LEDGER, topic_name
from streams.kafka.reader import KafkaReader
from streams.kafka.records import ReadRecord

NODES = 200
JOBS = 10_000
EVENTS = 100_000
QUICK_JOBS = 400
QUICK_EVENTS = 2_000
_WORK_SCALE = 0.25
_BATCH = 500


def measure_recovery(quick: bool, seed: int) -> Result:
    """Fill a cell with jobs and its ledger with events, measure the worker's memory, kill it, and time its
    recovery."""
    rng = random.Random(seed)
    calibration = calibrated()
    jobs, events = (QUICK_JOBS, QUICK_EVENTS) if quick else (JOBS, EVENTS)
    with pipeline(configuration(NODES)) as line:
        with line.worker() as worker:
            decisions = line.open()
            admitted = sent = 0
            while admitted < jobs:
                for number in range(_BATCH):
                    line.produce(bid(rng, f"fill{sent + number}", now_s=0.0, scale=_WORK_SCALE))
                sent += _BATCH
                batch = decisions.read(_BATCH, timeout_s=90)
                admitted += sum("admitted" in kind for kind, _ in batch.values())
            _fill_ledger(line, events - sent)
            line.wait_until_in_ledger(timeout_s=300)
            # Once this bid is decided, all events before it are folded.
            line.produce(bid(rng, "last", now_s=0.0))
            decisions.read(1, timeout_s=300)
            rss_mb, peak_mb = worker.memory_info().rss / 1e6, peak_memory_bytes(worker.pid) / 1e6
            worker.kill()
        fresh = line.produce(bid(rng, "fresh", now_s=0.0))
        line.producer.flush(10)
        start = time.monotonic()
        with line.worker():
            while fresh not in decisions.read(1, timeout_s=120):
                pass
            recovery_s = time.monotonic() - start
        decisions.close()
    calibration.sample(50)
    setting = f"{NODES} nodes x 144 slots, {admitted} live jobs, ledger of {max(events, sent)} events"
    weight = f"resident set of the worker ({peak_mb:.0f} MB at its peak), {setting}"
    return Result(
        (
            Measurement("recovery_s", recovery_s, f"from start of the process after a SIGKILL, {setting}"),
            Measurement(
                "recovery_units", recovery_s / calibration.wall_s, f"{calibration.wall_note()}; {setting}"
            ),
            Measurement("worker_rss_mb", rss_mb, weight),
        )
    )


def _fill_ledger(line: BrokerPipeline, events: int) -> None:
    """Produce reports of nodes, the most frequent events of a ledger. The reported jobs are finished, so that
    the reports are cheap to fold."""
    for number in range(max(events, 0)):
        node, job = f"node{number % NODES:04d}", f"over{number}"
        line.produce(RunStarted(cell="bench", node=node, run_id=f"0/{job}", job_id=job, samples_done=0))
    line.producer.flush(60)


IDLE_NODES = 100
HEARTBEAT_S = 5.0
"""Default interval of executors."""
_SETTLING_S = 15.0
_WATCHED_S = 120.0
_QUICK_SETTLING_S = 4.0
_QUICK_WATCHED_S = 6.0
_DAY_S = 86_400.0
_STEP_S = 0.05


def measure_idle(quick: bool, _seed: int) -> Result:
    """Send reports of a hundred nodes and the clock in real time, and measure the growth of the ledger."""
    watched_s = _QUICK_WATCHED_S if quick else _WATCHED_S
    cell = configuration(IDLE_NODES)
    with pipeline(cell) as line, line.worker():
        line.open().close()
        for node in cell.zones[0].nodes:
            line.produce(
                NodeOnline(cell=CELL, node=node.id, base_model=cell.zones[0].base_model, runners=("lora",))
            )
        line.producer.flush(10)
        _send_reports(line, _QUICK_SETTLING_S if quick else _SETTLING_S)
        before = _ledger(line)
        sent = _send_reports(line, watched_s)
        added = _ledger(line)[len(before) :]
    kept_bytes = sum(record.size_bytes for record in added)
    note = (
        f"keys, values and headers of the ledger records of {watched_s:g} s, per day: {IDLE_NODES} nodes "
        f"with a heartbeat every {HEARTBEAT_S:g} s and the clock ({sent} events sent, {len(added)} kept)"
    )
    value = kept_bytes / watched_s * _DAY_S / 1e6
    return Result((Measurement("ledger_mb_per_day_100_nodes", value, note, sent),))


def _send_reports(line: BrokerPipeline, for_s: float) -> int:
    """Send heartbeats of all nodes, spread evenly, and ticks, in real time; return the number of events."""
    cell = configuration(IDLE_NODES)
    beats = [
        NodeHeartbeat(cell=CELL, node=node.id, base_model=cell.zones[0].base_model, runners=("lora",))
        for node in cell.zones[0].nodes
    ]
    tick_s, began_s = tick_interval_s(cell), time.monotonic()
    sent = ticks = 0
    while (passed_s := time.monotonic() - began_s) < for_s:
        while sent < passed_s / HEARTBEAT_S * IDLE_NODES:
            line.produce(beats[sent % IDLE_NODES])
            sent += 1
        while ticks < passed_s / tick_s:
            line.produce(ClockTicked(cell=CELL, time_s=time.time()))
            ticks += 1
        time.sleep(_STEP_S)
    line.producer.flush(10)
    return sent + ticks


def _ledger(line: BrokerPipeline) -> list[ReadRecord]:
    with KafkaReader(line.others) as reader:
        return list(reader.read(reader.slice(topic_name(line.prefix, LEDGER))))
