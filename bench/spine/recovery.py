"""The memory of a worker with a large cell, and its time to decide again after a kill."""

import random
import time

from bench.figures import Measurement, Result
from bench.runs import peak_memory_bytes
from bench.spine.calibration import calibrated
from bench.spine.cells import bid, configuration
from bench.spine.kafka import BrokerPipeline, pipeline
from schemas.fleet import RunStarted

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
    """Produce reports of nodes, as most events of a ledger are; of finished jobs, so that they are cheap to
    fold."""
    for number in range(max(events, 0)):
        node, job = f"node{number % NODES:04d}", f"over{number}"
        line.produce(RunStarted(cell="bench", node=node, run_id=f"0/{job}", job_id=job, samples_done=0))
    line.producer.flush(60)
