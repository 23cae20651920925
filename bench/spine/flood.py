"""How long other users wait while one user floods the market."""

import random
import time

from bench.figures import Measurement, Result, Table
from bench.spine.cells import CELL, bid, configuration
from bench.spine.kafka import Decisions, Pipeline, pipeline
from schemas.cells import CellConfigured
from schemas.jobs import JobSubmitted
from streams.kafka.records import key_partition

NODES = 100
BIDS = 30_000
QUICK_BIDS = 3_000
HONEST_BIDS = 20
_PARTITIONS = 2
_EVERY_S = 0.5


def measure_flood(quick: bool, seed: int) -> Result:
    """Flood one cell, and time honest bids there and in a cell of another partition until each is decided."""
    rng = random.Random(seed)
    bids = QUICK_BIDS if quick else BIDS
    cell = configuration(NODES)
    elsewhere = _renamed(cell)
    with pipeline(cell, elsewhere, partitions=_PARTITIONS) as line, line.worker():
        decisions = line.open(cells=2)
        began_s = time.monotonic()
        for number in range(bids):
            line.produce(_by(bid(rng, f"flood{number}", now_s=0.0), "flooder"))
        line.producer.flush(60)
        sent_s = time.monotonic() - began_s
        here, there = _delays_s(line, decisions, rng, elsewhere.cell)
        decisions.read(bids - decisions.seen, timeout_s=60)
        flooded_s = time.monotonic() - began_s
        decisions.close()
    setting = (
        f"worst of {HONEST_BIDS} honest bids, one every {_EVERY_S:g} s, behind {bids} bids of one user, sent "
        f"in {sent_s:.1f} s and decided after {flooded_s:.0f} s; one worker, {_PARTITIONS} partitions"
    )
    rows = list(zip(range(HONEST_BIDS), here, there, strict=True))
    return Result(
        (
            Measurement("flood_delay_s", max(there), f"in another partition: {setting}", bids),
            Measurement("flood_delay_same_partition_s", max(here), f"in the same cell: {setting}", bids),
            Measurement("flood_bids_per_s", bids / flooded_s, f"of the flood itself: {setting}", bids),
        ),
        (Table("flood", ("bid", "same_cell_s", "other_partition_s"), rows),),
    )


def _delays_s(
    line: Pipeline, decisions: Decisions, rng: random.Random, elsewhere: str
) -> tuple[list[float], list[float]]:
    """From the moment that an honest bid is sent to that of its decision: in the cell, and elsewhere."""
    sent: dict[str, tuple[str, float]] = {}
    arrived: dict[str, float] = {}
    began_s = time.monotonic()
    number = 0
    while len(arrived) < 2 * HONEST_BIDS:
        if number < HONEST_BIDS and time.monotonic() - began_s >= number * _EVERY_S:
            for name in (CELL, elsewhere):
                honest = bid(rng, f"honest-{name}-{number}", now_s=0.0).model_copy(update={"cell": name})
                sent[line.produce(_by(honest, f"honest{number}"))] = (name, time.monotonic())
            number += 1
        for cause, (_, at_s) in decisions.poll(0.02).items():
            if cause in sent:
                arrived[cause] = at_s
    delays = {cause: arrived[cause] - at_s for cause, (_, at_s) in sent.items()}
    here, there = (
        [delays[cause] for cause, (name, _) in sent.items() if name == wanted] for wanted in (CELL, elsewhere)
    )
    return here, there


def _by(bid: JobSubmitted, user: str) -> JobSubmitted:
    return bid.model_copy(update={"user": user})


def _renamed(cell: CellConfigured) -> CellConfigured:
    """The same cell under a name that lies in another partition."""
    taken = key_partition(cell.cell, _PARTITIONS)
    name = next(n for n in (f"other{k}" for k in range(100)) if key_partition(n, _PARTITIONS) != taken)
    nodes = cell.zones[0].nodes
    zone = cell.zones[0].model_copy(
        update={"nodes": tuple(node.model_copy(update={"id": f"{name}-{node.id}"}) for node in nodes)}
    )
    return cell.model_copy(update={"cell": name, "zones": (zone,)})
