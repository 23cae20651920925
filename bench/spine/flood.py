"""Waits of other users while one user floods the market."""

import random
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.figures import Measurement, Result, Table
from bench.spine.calibration import calibrated
from bench.spine.cells import CELL, bid, configuration
from bench.spine.kafka import BrokerPipeline, Decisions, pipeline
from schemas.cells import CellConfigured
from schemas.jobs import JobSubmitted
from streams.kafka.records import key_partition

NODES = 100
BIDS = 30_000
QUICK_BIDS = 1_000
HONEST_BIDS = 20
QUICK_HONEST_BIDS = 4
_PARTITIONS = 2
_EVERY_S = 0.5


def measure_flood(quick: bool, seed: int) -> Result:
    """Flood one cell, and measure the delay of honest bids in it and in a cell of another partition."""
    rng = random.Random(seed)
    bids = QUICK_BIDS if quick else BIDS
    honest = QUICK_HONEST_BIDS if quick else HONEST_BIDS
    calibration = calibrated()
    cell = configuration(NODES)
    elsewhere = _renamed(cell)
    with pipeline(cell, elsewhere, partitions=_PARTITIONS) as broker_pipeline, broker_pipeline.worker():
        decisions = broker_pipeline.open(cells=2)
        began_s = time.monotonic()
        for number in range(bids):
            broker_pipeline.produce(_of_user(bid(rng, f"flood{number}", now_s=0.0), "flooder"))
        broker_pipeline.producer.flush(60)
        sent_s = time.monotonic() - began_s
        same_cell, other_partition = _waited(broker_pipeline, decisions, rng, elsewhere.cell, honest)
        decisions.read(bids - decisions.seen, timeout_s=60)
        flooded_s = time.monotonic() - began_s
        decisions.close()
    calibration.sample(50)
    setting = (
        f"worst of {honest} honest bids, one every {_EVERY_S:g} s, behind {bids} bids of one user, sent "
        f"in {sent_s:.1f} s and decided after {flooded_s:.0f} s; one worker, {_PARTITIONS} partitions"
    )
    rows = [
        {
            "bid": number,
            "same_cell_s": a.delay_s,
            "same_cell_bids": a.others,
            "other_partition_s": b.delay_s,
            "other_partition_bids": b.others,
        }
        for number, (a, b) in enumerate(zip(same_cell, other_partition, strict=True))
    ]
    own = f"of the flood itself: {setting}"
    return Result(
        (
            *_of_delays("", other_partition, f"in another partition: {setting}", bids),
            *_of_delays("_same_partition", same_cell, f"in the same cell: {setting}", bids),
            Measurement("flood_bids_per_s", bids / flooded_s, own, bids),
            Measurement(
                "flood_bids_per_unit",
                bids / flooded_s * calibration.wall_s,
                f"{calibration.wall_note()}; {own}",
                bids,
            ),
        ),
        (Table("flood", rows),),
    )


class _Wait(NamedTuple):
    """Wait of an honest bid for its decision."""

    delay_s: float
    others: int
    """Decisions on other bids that were read in the meantime."""


def _of_delays(suffix: str, waits: Sequence[_Wait], note: str, bids: int) -> Iterator[Measurement]:
    yield Measurement(f"flood_delay{suffix}_s", max(wait.delay_s for wait in waits), note, bids)
    counted = f"decisions on other bids between an honest bid and its own, {note}"
    yield Measurement(f"flood_delay{suffix}_bids", max(wait.others for wait in waits), counted, bids)


def _waited(
    broker_pipeline: BrokerPipeline, decisions: Decisions, rng: random.Random, elsewhere: str, honest: int
) -> tuple[list[_Wait], list[_Wait]]:
    """Return the waits of honest bids from sending to decision: in the cell, and in the other one."""
    sent: dict[str, tuple[str, float, int]] = {}
    waited: dict[str, _Wait] = {}
    began_s = time.monotonic()
    number = 0
    while len(waited) < 2 * honest:
        if number < honest and time.monotonic() - began_s >= number * _EVERY_S:
            for name in (CELL, elsewhere):
                one = bid(rng, f"honest-{name}-{number}", now_s=0.0).model_copy(update={"cell": name})
                id = broker_pipeline.produce(_of_user(one, f"honest{number}"))
                sent[id] = (name, time.monotonic(), decisions.seen)
            number += 1
        for cause, (_, at_s) in decisions.poll(0.02).items():
            if cause in sent:
                _, sent_s, seen = sent[cause]
                waited[cause] = _Wait(at_s - sent_s, decisions.seen - seen - 1)
    same_cell, other_partition = (
        [waited[cause] for cause, (name, _, _) in sent.items() if name == of_cell]
        for of_cell in (CELL, elsewhere)
    )
    return same_cell, other_partition


def _of_user(bid: JobSubmitted, user: str) -> JobSubmitted:
    return bid.model_copy(update={"user": user})


def _renamed(cell: CellConfigured) -> CellConfigured:
    """Return the cell with a name that belongs to another partition."""
    partition = key_partition(cell.cell, _PARTITIONS)
    name = next(n for n in (f"other{k}" for k in range(100)) if key_partition(n, _PARTITIONS) != partition)
    nodes = cell.zones[0].nodes
    zone = cell.zones[0].model_copy(
        update={"nodes": tuple(node.model_copy(update={"id": f"{name}-{node.id}"}) for node in nodes)}
    )
    return cell.model_copy(update={"cell": name, "zones": (zone,)})
