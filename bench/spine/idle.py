"""Growth of the ledger, which is kept forever, with an idle fleet."""

import time

from bench.figures import Measurement, Result
from bench.spine.cells import CELL, configuration
from bench.spine.kafka import BrokerPipeline, pipeline
from schemas.clock import ClockTicked, tick_interval_s
from schemas.fleet import NodeHeartbeat, NodeOnline
from schemas.topics import LEDGER, topic_name
from streams.kafka.reader import KafkaReader
from streams.kafka.records import ReadRecord

NODES = 100
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
    cell = configuration(NODES)
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
        f"keys, values and headers of the ledger records of {watched_s:g} s, per day: {NODES} nodes with a "
        f"heartbeat every {HEARTBEAT_S:g} s and the clock ({sent} events sent, {len(added)} kept)"
    )
    value = kept_bytes / watched_s * _DAY_S / 1e6
    return Result((Measurement("ledger_mb_per_day_100_nodes", value, note, sent),))


def _send_reports(line: BrokerPipeline, for_s: float) -> int:
    """Send heartbeats of all nodes, spread evenly, and ticks, in real time; return the number of events."""
    cell = configuration(NODES)
    beats = [
        NodeHeartbeat(cell=CELL, node=node.id, base_model=cell.zones[0].base_model, runners=("lora",))
        for node in cell.zones[0].nodes
    ]
    tick_s, began_s = tick_interval_s(cell), time.monotonic()
    sent = ticks = 0
    while (passed_s := time.monotonic() - began_s) < for_s:
        while sent < passed_s / HEARTBEAT_S * NODES:
            line.produce(beats[sent % NODES])
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
