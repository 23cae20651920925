"""The cell of the decision benchmarks, and bids for it."""

import random
from collections.abc import Iterator
from typing import cast

from schemas.auction.bids import BidTerms, VendorQuoted
from schemas.auction.settings import AuctionPolicy, MarketPolicy, PdftspPolicy
from schemas.base import HOURS_PER_DAY, Event
from schemas.cells import CellConfigured, GpuType, Node, Tariff, Zone
from schemas.codec import Envelope
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset, LoraWorkload
from streams.cell.ledger_event import LedgerEvent
from streams.cell.state_machine import Cell
from streams.policies.auction.zone import AuctionZone

CELL = "bench"
UNIT = 1_000_000
SLOT_S = 600.0
SLOTS = 144
VENDORS = 5
MOST_LIVE_JOBS = 8_000
"""The cell must not be full when bids are timed."""
MOST_BIDS = 20_000
"""Limit on the bids that fill a cell. If its prices rise, a cell may never be full."""


DECLARED = PdftspPolicy(
    kind="pdftsp",
    money_unit_micros=2 * UNIT,
    max_value_per_compute_micros=40 * UNIT,
    max_value_per_memory_micros=160 * UNIT,
)
"""Bounds that are valid for the bids below."""


def configuration(nodes: int, slots: int = SLOTS, policy: MarketPolicy | None = None) -> CellConfigured:
    """Return a cell of one zone: half A100, half A40, a tariff by hour, five vendors.

    Speeds and sizes follow GPT-2 with LoRA as in section 5.1 of the auction's paper: 40 and 15 samples per
    second for a full node of either type.

    Args:
        policy: policy of the zone; by default it finds its prices itself.
    """
    night, day = UNIT // 10, UNIT // 5
    return CellConfigured(
        cell=CELL,
        epoch_s=0.0,
        slot_s=SLOT_S,
        tariffs=(
            Tariff(name="site", micros_per_kwh=(night,) * 8 + (day,) * 12 + (night,) * (HOURS_PER_DAY - 20)),
        ),
        zones=(
            Zone(
                id="gpt2",
                base_model="gpt2",
                base_model_memory_gib=2.0,
                horizon_slots=slots,
                gpu_types=(
                    GpuType(name="A100", samples_per_s=40.0, memory_gib=80.0, power_kw=0.4),
                    GpuType(name="A40", samples_per_s=15.0, memory_gib=48.0, power_kw=0.3),
                ),
                nodes=tuple(
                    Node(id=f"node{number:04d}", gpu_type=("A100", "A40")[number % 2], tariff="site")
                    for number in range(nodes)
                ),
                policy=policy or AuctionPolicy(),
            ),
        ),
        vendors=tuple(f"vendor{number}" for number in range(VENDORS)),
    )


def vendor_quotes(rng: random.Random) -> Iterator[VendorQuoted]:
    """Draw five standing quotes: the faster, the dearer."""
    for number in range(VENDORS):
        yield VendorQuoted(
            cell=CELL,
            vendor=f"vendor{number}",
            fixed_price_micros=int(UNIT * (0.1 + 0.1 * (VENDORS - number) * rng.uniform(0.8, 1.2))),
            price_per_thousand_samples_micros=UNIT // 100,
            fixed_delay_s=SLOT_S * number,
            delay_per_thousand_samples_s=30.0,
        )


def bid(
    rng: random.Random, job_id: str, now_s: float, slots: int = SLOTS, scale: float = 1.0
) -> JobSubmitted:
    """Draw a bid as in section 5.1: 5k to 20k samples, and 1 to 5 epochs. Values that the section leaves open
    (P7) are uniform: shares of a node, memory, deadlines (1.2 to 5 times the time on the fastest node), and
    values of 4 to 40 units per node-slot. `scale` shrinks the work, for cells with many jobs.
    """
    data = rng.randint(5_000, 20_000)
    work = int(data * rng.randint(1, 5) * scale)
    share = rng.choice((0.06, 0.1, 0.15, 0.2))
    busy_slots = work / (40.0 * share * SLOT_S)
    deadline_s = now_s + SLOT_S * min(slots, busy_slots * rng.uniform(1.2, 5.0) + 3)
    return JobSubmitted(
        cell=CELL,
        job_id=job_id,
        user=f"user{rng.randrange(50)}",
        zone="gpt2",
        terms=BidTerms(bid_micros=int(UNIT * rng.uniform(4, 40) * busy_slots * share), deadline_s=deadline_s),
        workload=LoraWorkload(
            work_samples=work,
            dataset=Dataset(path="data.jsonl", samples=data),
            memory_gib=rng.choice((4.0, 6.0, 8.0, 12.0)),
            speed_samples_per_s={"A100": 40.0 * share, "A40": 15.0 * share * rng.uniform(0.8, 1.0)},
            needs_preprocessing=rng.random() < 0.5,
        ),
    )


class FilledCell:
    """A cell that receives events one by one, as from a ledger."""

    def __init__(self) -> None:
        self.cell = Cell(CELL)
        self._offset = 0
        self.bids = 0
        """Number of its events that are bids."""

    def envelope(self, event: Event) -> LedgerEvent:
        """Return the event as the next entry of the ledger."""
        entry = LedgerEvent(self._offset, Envelope(f"event-{self._offset}", "bench", "", event))
        self._offset += 1
        self.bids += isinstance(event, JobSubmitted)
        return entry

    def send(self, event: Event) -> None:
        """Apply an event to the cell."""
        self.cell.handle(self.envelope(event))

    @property
    def zone(self) -> AuctionZone:
        """The cell's only zone."""
        return cast(AuctionZone, self.cell.zones["gpt2"])

    def used_share(self) -> float:
        """Return the used share of the compute of all node-slots in the window."""
        market, fleet = self.zone.auctioneer.market, self.zone.fleet
        capacity = sum(fleet.classes[index].capacity_samples for index in fleet.class_of_row)
        return 1.0 - float(market.free_samples.sum()) / (capacity * market.horizon_slots)


def filled(
    nodes: int, seed: int, share: float, policy: MarketPolicy | None = None, bids: int = MOST_BIDS
) -> tuple[FilledCell, random.Random]:
    """Return a cell and a generator of further bids. Admitted bids fill a share of its window, or less if
    `MOST_LIVE_JOBS` or a number of bids is reached first."""
    rng = random.Random(seed)
    fed = FilledCell()
    fed.send(configuration(nodes, policy=policy))
    for quote in vendor_quotes(rng):
        fed.send(quote)
    while fed.bids < bids and (
        fed.bids % 50 or (fed.used_share() < share and len(fed.cell.jobs.live) < MOST_LIVE_JOBS)
    ):
        fed.send(bid(rng, f"fill{fed.bids}", now_s=0.0))
    return fed, rng
