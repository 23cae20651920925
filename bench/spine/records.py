"""The cost of reading a bid on its way from an input topic through the ledger, without a broker."""

import math
import random
import time

import numpy as np

from bench.figures import Measurement, Result
from bench.spine.cells import CELL, bid
from schemas.codec import Envelope
from schemas.jobs import JobSubmitted
from schemas.registry import EVENTS_BY_TOPIC
from schemas.topics import JOBS, LEDGER
from streams.cell.ledger import read_ledger
from streams.kafka.records import ReadRecord
from streams.worker.intake import Accepted, Intake, IntakeTopic

BIDS = 3_000
QUICK_BIDS = 600
_TIMESTAMP_MS = 1_700_000_000_000


def measure_records(quick: bool, seed: int) -> Result:
    """Measure the processor time of reading and writing a bid before its cell decides, relative to parsing,
    validating and writing it once; both alternate, bid by bid."""
    rng = random.Random(seed)
    topic = IntakeTopic(EVENTS_BY_TOPIC[JOBS], "dead-letters")
    intake = Intake({JOBS: topic}, LEDGER, frozenset({CELL}), math.inf, partitions=1)
    bids = QUICK_BIDS if quick else BIDS
    path_s, once_s = [], []
    for number in range(bids):
        envelope = Envelope(f"bench-{number}", "bench", "", bid(rng, f"read{number}", now_s=0.0))
        headers = envelope.headers()
        record = ReadRecord(JOBS, 0, number, _TIMESTAMP_MS, CELL.encode(), envelope.value, headers, True)
        began_s = time.thread_time()
        _read(intake, record)
        between_s = time.thread_time()
        JobSubmitted.model_validate_json(envelope.value).model_dump_json()
        path_s.append(between_s - began_s)
        once_s.append(time.thread_time() - between_s)
    path, once = float(np.median(path_s)), float(np.median(once_s))
    note = (
        f"processor time of intake and ledger, {1e6 * path:.0f} us at the median, over that of one "
        f"parse, validation and dump, {1e6 * once:.0f} us; {bids} bids of {len(record.value or b'')} bytes"
    )
    return Result((Measurement("read_over_once_ratio", path / once, note, bids),))


def _read(intake: Intake, record: ReadRecord) -> None:
    """Process a record of an input topic like a worker before its cell handles it."""
    accepted = intake.admit(record)
    assert isinstance(accepted, Accepted)
    sent = accepted.record
    stored = ReadRecord(sent.topic, 0, record.offset, None, sent.key, sent.value, sent.headers)
    assert read_ledger(stored, accepted.event).canonical
