"""The configuration of a cell. It is an event itself, so that the ledger alone explains every decision."""

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from schemas.base import (
    HOURS_PER_DAY,
    LEAST_S,
    MAX_MICROS,
    Event,
    Gib,
    Identifier,
    Kinded,
    Micros,
    OpenUnion,
    Record,
    SamplesPerSecond,
    UnixTime,
)
from schemas.facts import Fact, Fault
from schemas.rules import RULES_VERSION, RulesVersion

LEAST_SLOT_S = 0.01
MAX_SLOT_S = 86_400
LEAST_ROOM_GIB = 1 / 1024
"""Unit in which memory is counted; a node needs at least one besides the base model."""
BYTES_PER_NODE_SLOT = 32
"""Bytes of two prices and the room of two resources."""
MAX_NODE_SLOTS = 2**19
"""Most pairs of a node and a slot over all zones of a cell: 16 MiB of prices and room. They suffice for fifty
nodes and ten thousand slots, or for five hundred nodes and a week of ten-minute slots."""
MAX_WAITING_BYTES = 3 * 2**20
"""Most bytes of waiting bids: one request may contain all of them, and no bid takes more bytes there."""
BYTES_PER_KEPT_ID = 40
"""Bytes of an id and its writer, if each has its own."""
MAX_KEPT_IDS = 2**18
"""Most ids of events and of jobs in a cell: 10 MiB."""
MAX_SNAPSHOT_BYTES = 32 * 2**20
"""Largest snapshot of a cell, for which Kafka is configured. It does not assume compression: the bytes of a
flood are the sender's choice."""
LEAST_LIVE_JOBS_BYTES = 4 * 2**20
"""Least part of a snapshot for live jobs: some 2,500 jobs of usual size."""
_CONFIGURATION_BYTES = 2**20 + 2**17
"""Bytes of the largest event, of what compression and Kafka may add to a snapshot, and of the runs disowned
lately (20 KiB at most)."""
_IDS_PER_NODE = 6
"""Most copies of the node's id, see `docs/cell/room.md`."""
_BYTES_PER_NODE = 64
"""Bytes around those ids, and of the node's state."""
_BYTES_PER_LENT_NODE = 192
"""Bytes of a loan besides ids: its times, and the encoding around them."""
_IDS_PER_LENT_NODE = 3
"""Most further copies of the id of a lent node, and as many ids of zones."""
_RECLAIM_ID_BYTES = 131
"""Most bytes of a reclaim's id, of which a lent node has two copies."""
_BYTES_PER_LENDER = 16 * 1_024
"""Bytes of the ids of reclaims that are over."""
MAX_PROFILE_READINGS = 1_024
"""Most measurements of steps that a cell keeps, over all zones and kinds of jobs."""
_BYTES_PER_PROFILE_READING = 240
"""Bytes of a measurement: its GPU type's name, two digests and numbers."""
_BYTES_PER_QUOTE = 512
"""Bytes of a vendor's standing quote in a zone."""
_BYTES_PER_ZONE = 16 * 1_024
"""Bytes of sums, and of the counts of learned steepness."""
MAX_RANK = 1_024
"""Largest rank of a LoRA adapter."""
_TICKS_PER_SLOT = 5
_LONGEST_TICK_INTERVAL_S = 10.0
MAX_HORIZON_COST_MICROS = 8 * MAX_MICROS
"""Most that a node may cost over its zone's horizon, so that sums over any plan stay exact in floats."""


class GpuType(Record):
    """Capacity of one node of this type in a zone."""

    name: Identifier
    samples_per_s: SamplesPerSecond
    """Samples that a full node trains per second, all of its tasks together (C_kp per second)."""
    memory_gib: Gib
    """GPU memory of a node, the base model's share included (C_km)."""
    power_kw: Annotated[float, Field(ge=0, le=1_000)] = 0.0
    """Power of a full node; with the tariff it gives the operational cost (e_ikt)."""
    gpus: Annotated[int, Field(ge=1, le=64, exclude_if=lambda gpus: gpus == 1)] = 1
    """Number of GPUs of a node; the other figures are for all of them together."""


class Tariff(Record):
    """Price of energy at a site, by hour of the local day."""

    name: Identifier
    micros_per_kwh: Annotated[tuple[Micros, ...], Field(min_length=HOURS_PER_DAY, max_length=HOURS_PER_DAY)]
    utc_offset_h: Annotated[int, Field(ge=-12, le=14)] = 0


class Node(Record):
    """One GPU node: the unit of placement."""

    id: Identifier
    gpu_type: Identifier
    tariff: Identifier


class ThroughputRow(Record):
    """One measurement: speed and memory of a LoRA task of this shape on a GPU type."""

    gpu_type: Identifier
    rank: Annotated[int, Field(ge=1, le=MAX_RANK)]
    batch_size: Annotated[int, Field(ge=1, le=65_536)]
    sequence_length: Annotated[int, Field(ge=1, le=1_048_576)]
    samples_per_s: SamplesPerSecond
    memory_gib: Gib


class BaseDimensions(Record):
    """Sizes of a base model of Llama's architecture, which give the least memory of a task."""

    hidden_features: Annotated[int, Field(ge=1, le=1_000_000)]
    intermediate_features: Annotated[int, Field(ge=1, le=10_000_000)]
    key_value_features: Annotated[int, Field(ge=1, le=1_000_000)]
    """Features of all key heads together: fewer than the hidden features if queries share key heads."""
    layers: Annotated[int, Field(ge=1, le=10_000)]
    vocabulary_size: Annotated[int, Field(ge=1, le=100_000_000)]
    activation_bytes: Literal[2, 4] = 2
    """Bytes per number: 2 on a GPU (bfloat16), 4 on a CPU."""


class Borrower(Record):
    """A zone that loans may go to."""

    zone: Identifier
    weight: Annotated[float, Field(ge=1e-6, le=1_000_000)] = 1.0
    """Loans are shared among borrowers in proportion to their weights."""


class Lending(Record):
    """Conditions on which a zone lends nodes that its own work leaves idle."""

    headroom: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Fraction of the zone's nodes that stays in the zone besides those that its load needs (thesis, section
    3.7.1); rounded up to whole nodes, and one at least."""
    notice_s: Annotated[float, Field(ge=LEAST_S, le=604_800)] = 300.0
    """Least time from a reclaim until the nodes are due."""
    load_valid_s: Annotated[float, Field(ge=LEAST_S, le=604_800)] = 900.0
    """Age of a reported load from which on no node is lent."""
    borrowers: Annotated[tuple[Borrower, ...], Field(min_length=1, max_length=64)]
    """Other zones of the cell. Each borrows only nodes of its own GPU types."""


class PolicySettings(Kinded):
    """Settings of a zone; its `kind` is that of the policy."""

    shares_base_model: ClassVar[bool] = True
    """Whether the zone's jobs share its base model, which every node must hold; otherwise they have their own
    models."""
    takes_profiles: ClassVar[bool] = False
    """Whether published profiles count for the jobs of the zone."""

    def faults(self, zone: "Zone") -> Iterator[Fault]:  # noqa: ARG002
        """Yield the faults of a zone's configuration for this policy."""
        yield from ()

    def node_slots(self, zone: "Zone") -> int:  # noqa: ARG002
        """Return the number of pairs of a node and a slot with prices and room in the policy's state."""
        return 0

    def state_bytes(self, zone: "Zone") -> int:  # noqa: ARG002
        """Return the most bytes of the policy in a snapshot that depend neither on jobs nor on node-slots."""
        return 0

    def tick_interval_s(self, slot_s: float) -> float:
        """Return the longest interval between ticks that a zone needs, in a cell with slots of `slot_s`
        seconds."""
        return min(slot_s / _TICKS_PER_SLOT, _LONGEST_TICK_INTERVAL_S)


POLICIES = OpenUnion("policy")
AnyPolicy: TypeAlias = Annotated[PolicySettings, POLICIES]


class Zone(Record):
    """Nodes that share one frozen base model, under one policy."""

    id: Identifier
    base_model: Identifier
    base_model_memory_gib: Gib
    """Memory of the base model (r_b) on every node in every slot, idle nodes too (erratum P6)."""
    base_dimensions: BaseDimensions | None = None
    """Sizes of the base model. With them, a bid that declares less memory than its task needs is rejected."""
    horizon_slots: Annotated[int, Field(ge=1, le=10_000)] = 144
    gpu_types: Annotated[tuple[GpuType, ...], Field(min_length=1, max_length=16)]
    # The minimum is checked below, with a message that also fits the removal of the last node.
    nodes: Annotated[tuple[Node, ...], Field(max_length=10_000, json_schema_extra={"minItems": 1})]
    throughput: Annotated[tuple[ThroughputRow, ...], Field(max_length=10_000)] = ()
    policy: AnyPolicy
    lending: Annotated[Lending | None, Field(exclude_if=lambda lending: lending is None)] = None
    """Conditions of lending; None if the zone offers no capacity, although operators may lend its nodes."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        types = {gpu.name for gpu in self.gpu_types}
        if not self.nodes:
            raise self.fault("no_node_left", "a zone keeps at least one node")
        _refuse_repeats(f"zone {self.id}: gpu type", [gpu.name for gpu in self.gpu_types])
        _refuse_repeats(f"zone {self.id}: node", [node.id for node in self.nodes])
        for gpu in self.gpu_types:
            if gpu.memory_gib - self.base_model_memory_gib < LEAST_ROOM_GIB:
                raise self.fault(
                    "base_model_too_large",
                    f"a node of type {gpu.name} has {gpu.memory_gib} GiB, too small for base model "
                    f"{self.base_model}, which takes {self.base_model_memory_gib} GiB",
                    gpu_type=gpu.name,
                    memory_gib=gpu.memory_gib,
                    base_model_gib=self.base_model_memory_gib,
                )
        for node in self.nodes:
            if node.gpu_type not in types:
                raise self.fault(
                    "unknown_gpu_type",
                    f"node {node.id} is of type {node.gpu_type}, which the zone lacks",
                    node=node.id,
                    gpu_type=node.gpu_type,
                )
        for word, message, facts in self.policy.faults(self):
            raise self.fault(word, message, **facts)
        for row in self.throughput:
            if row.gpu_type not in types:
                raise self.fault(
                    "unknown_gpu_type",
                    f"a throughput row names gpu type {row.gpu_type}, which the zone lacks",
                    gpu_type=row.gpu_type,
                )
        return self

    def fault(self, word: str, message: str, /, **facts: Fact) -> PydanticCustomError:
        """Return an error for a fault of this zone; see `Fault`."""
        return Fault(word, f"zone {self.id}: {message}", {"zone": self.id, **facts}).error

    @property
    def node_classes(self) -> set[tuple[str, str]]:
        """Pairs of GPU type and tariff of its nodes: nodes of one pair cost the same."""
        return {(node.gpu_type, node.tariff) for node in self.nodes}

    @property
    def gpus_by_node(self) -> dict[str, int]:
        """Number of GPUs of each node."""
        gpus = {gpu.name: gpu.gpus for gpu in self.gpu_types}
        return {node.id: gpus[node.gpu_type] for node in self.nodes}


class CellConfigured(Event):
    """The whole configuration of a cell: the first event of its ledger."""

    TYPE: ClassVar = "millrace.cell.configured.v1"

    epoch_s: UnixTime
    """Start of slot 0."""
    slot_s: Annotated[float, Field(ge=LEAST_SLOT_S, le=MAX_SLOT_S)] = 600.0
    node_timeout_s: Annotated[float, Field(ge=LEAST_S, le=86_400)] = 60.0
    """Silence after which a node that has reported before counts as down, in the worker's listening time."""
    duplicate_window_events: Annotated[int, Field(ge=1, le=10_000_000)] = 50_000
    """Number of ids of events that the cell keeps, and of jobs that are over, of all writers together. A
    repeated id of the same writer within the window changes nothing."""
    tariffs: Annotated[tuple[Tariff, ...], Field(min_length=1, max_length=64)]
    zones: Annotated[tuple[Zone, ...], Field(min_length=1, max_length=64)]
    vendors: Annotated[tuple[Identifier, ...], Field(max_length=1_000)] = ()
    """Labour vendors that may quote; others' quotes are refused."""
    rules: RulesVersion = RULES_VERSION
    """Version of the rules of the cell until a `rules.adopted` event. Leave it out: it then is the newest
    version of the configuration's writer."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        tariffs = {tariff.name for tariff in self.tariffs}
        _refuse_repeats(f"cell {self.cell}: tariff", [tariff.name for tariff in self.tariffs])
        _refuse_repeats(f"cell {self.cell}: zone", [zone.id for zone in self.zones])
        _refuse_repeats(f"cell {self.cell}: vendor", list(self.vendors))
        _refuse_repeats(f"cell {self.cell}: node", [node.id for zone in self.zones for node in zone.nodes])
        for zone in self.zones:
            for gpu in zone.gpu_types:
                if gpu.samples_per_s * self.slot_s < 1:
                    raise zone.fault(
                        "gpu_type_too_slow",
                        f"a node of type {gpu.name} trains less than one sample in a slot of {self.slot_s} s",
                        gpu_type=gpu.name,
                        slot_s=self.slot_s,
                    )
            if not tariffs.issuperset(node.tariff for node in zone.nodes):
                node = next(node for node in zone.nodes if node.tariff not in tariffs)
                raise zone.fault(
                    "unknown_tariff",
                    f"node {node.id} pays tariff {node.tariff}, which the cell lacks",
                    node=node.id,
                    tariff=node.tariff,
                )
        self._refuse_unfit_borrowers()
        self._refuse_more_state_than_a_snapshot_holds()
        self._refuse_costs_beyond_exact_sums()
        return self

    @cached_property
    def live_jobs_bytes(self) -> int:
        """Bytes of a snapshot for live jobs: the rest after all parts that do not depend on them."""
        zones = len(self.zones)
        return MAX_SNAPSHOT_BYTES - sum(
            (
                _CONFIGURATION_BYTES,
                BYTES_PER_NODE_SLOT * sum(zone.policy.node_slots(zone) for zone in self.zones),
                self._nodes_bytes,
                sum(zone.policy.state_bytes(zone) for zone in self.zones),
                BYTES_PER_KEPT_ID * 2 * self.duplicate_window_events,
                _BYTES_PER_QUOTE * len(self.vendors) * zones,
                _BYTES_PER_ZONE * zones,
                MAX_PROFILE_READINGS * _BYTES_PER_PROFILE_READING,
            )
        )

    @property
    def _nodes_bytes(self) -> int:
        """Most bytes of nodes in a snapshot, besides the configuration."""
        longest_zone = max(len(zone.id) for zone in self.zones)
        ids = [node.id for zone in self.zones for node in zone.nodes]
        nodes = len(ids) * (_BYTES_PER_NODE + 2 * longest_zone) + _IDS_PER_NODE * sum(map(len, ids))
        lenders = [zone for zone in self.zones if zone.lending is not None]
        loans = sum(
            _BYTES_PER_LENT_NODE + _IDS_PER_LENT_NODE * (len(node.id) + longest_zone) + 2 * _RECLAIM_ID_BYTES
            for zone in lenders
            for node in zone.nodes
        )
        return nodes + loans + _BYTES_PER_LENDER * len(lenders)

    def _refuse_unfit_borrowers(self) -> None:
        zones = {zone.id for zone in self.zones}
        for zone in self.zones:
            borrowers = [] if zone.lending is None else [one.zone for one in zone.lending.borrowers]
            _refuse_repeats(f"zone {zone.id}: borrower", borrowers)
            for borrower in borrowers:
                if borrower not in zones:
                    raise _fault(
                        "unknown_borrower",
                        f"zone {zone.id} lends to zone {borrower}, which the cell lacks",
                        zone=zone.id,
                        borrower=borrower,
                    )
                if borrower == zone.id:
                    raise _fault(
                        "lends_to_itself",
                        f"zone {zone.id} lends to itself: name other zones as borrowers",
                        zone=zone.id,
                    )

    def _refuse_more_state_than_a_snapshot_holds(self) -> None:
        sizes = {zone.id: zone.policy.node_slots(zone) for zone in self.zones}
        node_slots = sum(sizes.values())
        if node_slots > MAX_NODE_SLOTS:
            largest = max(self.zones, key=lambda zone: sizes[zone.id])
            raise _fault(
                "too_many_node_slots",
                f"cell {self.cell}: horizon_slots x nodes is {node_slots} over all zones "
                f"({node_slots * BYTES_PER_NODE_SLOT / 2**20:.0f} MiB), at most {MAX_NODE_SLOTS} "
                f"({MAX_NODE_SLOTS * BYTES_PER_NODE_SLOT / 2**20:.0f} MiB) are held: zone {largest.id} has "
                f"{largest.horizon_slots} slots x {len(largest.nodes)} nodes = {sizes[largest.id]}",
                node_slots=node_slots,
                most_node_slots=MAX_NODE_SLOTS,
                zone=largest.id,
            )
        kept = 2 * self.duplicate_window_events
        if kept > MAX_KEPT_IDS:
            raise _fault(
                "window_too_large",
                f"cell {self.cell}: duplicate_window_events {self.duplicate_window_events}, of events and of "
                f"jobs, is {kept} ids, at most {MAX_KEPT_IDS} are held",
                remembered_ids=kept,
                most_remembered_ids=MAX_KEPT_IDS,
            )
        if self.live_jobs_bytes < LEAST_LIVE_JOBS_BYTES:
            raise _fault(
                "no_room_for_live_jobs",
                f"cell {self.cell}: {node_slots} node-slots, {kept} ids, {len(self.zones)} zones and "
                f"{len(self.vendors)} vendors with a quote in each leave {self.live_jobs_bytes} bytes of a "
                f"snapshot to live jobs, at least {LEAST_LIVE_JOBS_BYTES} are needed: make a second cell",
                left_bytes=self.live_jobs_bytes,
                needed_bytes=LEAST_LIVE_JOBS_BYTES,
            )

    def _refuse_costs_beyond_exact_sums(self) -> None:
        dearest = {tariff.name: max(tariff.micros_per_kwh) for tariff in self.tariffs}
        for zone in self.zones:
            power_kw = {gpu.name: gpu.power_kw for gpu in zone.gpu_types}
            for gpu_type, tariff in sorted(zone.node_classes):
                slot_micros = dearest[tariff] * power_kw[gpu_type] * self.slot_s / 3_600
                horizon_micros = slot_micros * zone.horizon_slots
                if horizon_micros > MAX_HORIZON_COST_MICROS:
                    raise zone.fault(
                        "costs_too_high",
                        f"a node of type {gpu_type} under tariff {tariff} may cost "
                        f"{horizon_micros:.3g} micros over {zone.horizon_slots} slots, at most "
                        f"{MAX_HORIZON_COST_MICROS:.3g} are added up exactly",
                        gpu_type=gpu_type,
                        tariff=tariff,
                        cost_micros=horizon_micros,
                        most_cost_micros=MAX_HORIZON_COST_MICROS,
                    )


def _refuse_repeats(what: str, names: list[str]) -> None:
    seen: set[str] = set()
    if len(set(names)) == len(names):
        return
    for name in names:
        if name in seen:
            raise _fault("given_twice", f"{what} {name} is given twice", name=name)
        seen.add(name)


def _fault(word: str, message: str, /, **facts: Fact) -> PydanticCustomError:
    return Fault(word, message, facts).error
