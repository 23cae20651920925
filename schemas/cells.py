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
"""Memory is counted in so small parts; a node needs at least one beside the base model."""
BYTES_PER_NODE_SLOT = 32
"""Two prices and the room for two resources."""
MAX_NODE_SLOTS = 2**19
"""Horizon x nodes over all zones of a cell: 16 MiB of prices and room. Fifty nodes for ten thousand slots,
five hundred for a week of ten minutes each."""
MAX_WAITING_BYTES = 3 * 2**20
"""Most bytes of bids that wait: one request may be about all of them, and none takes more of that than it
does here."""
BYTES_PER_REMEMBERED_ID = 40
"""With its writer, where each has one of its own."""
MAX_REMEMBERED_IDS = 2**18
"""Ids of events and of jobs in a cell: 10 MiB."""
MAX_SNAPSHOT_BYTES = 32 * 2**20
"""Kafka is set up for snapshots of cells up to this size. Nothing is hoped for from their compression: who
floods a cell chooses the bytes."""
LEAST_LIVE_JOBS_BYTES = 4 * 2**20
"""A configuration must leave so much of a snapshot to live jobs: at the least some 2,500 of usual size."""
_CONFIGURATION_BYTES = 2**20 + 2**17
"""The largest event, what compression and Kafka may add to a snapshot, and the runs that were disowned lately
(20 KiB at most)."""
_IDS_PER_NODE = 6
"""Ids of the node itself, where it was heard, is down, barred, cordoned, leaving and lent; the zones that it
goes to or serves then are counted beside that."""
_BYTES_PER_NODE = 64
"""Bytes around those ids, and whether policies may plan on it."""
_BYTES_PER_LENT_NODE = 192
"""Its loan, beside ids: times, and what is around them."""
_IDS_PER_LENT_NODE = 3
"""Ids of the node itself, on loan, wanted back, and serving; and as many of zones: its owner, twice, and its
borrower."""
_RECLAIM_ID_BYTES = 131
"""At most. A server on loan has that of its reclaim, and the reclaim has it."""
_BYTES_PER_LENDER = 16 * 1_024
"""Ids of reclaims that are over."""
_BYTES_PER_QUOTE = 512
"""A vendor's standing quote in a zone."""
_BYTES_PER_ZONE = 16 * 1_024
"""Sums, and what learned steepness has counted."""
MAX_RANK = 1_024
"""Of a LoRA adapter."""
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
    """Power drawn by a full node; with the tariff it makes the operational cost (e_ikt)."""
    gpus: Annotated[int, Field(ge=1, le=64, exclude_if=lambda gpus: gpus == 1)] = 1
    """GPUs of a node, which the figures above are of together."""


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
    """One measured point: how fast a LoRA task of this shape trains on a GPU type, and what it holds."""

    gpu_type: Identifier
    rank: Annotated[int, Field(ge=1, le=MAX_RANK)]
    batch_size: Annotated[int, Field(ge=1, le=65_536)]
    sequence_length: Annotated[int, Field(ge=1, le=1_048_576)]
    samples_per_s: SamplesPerSecond
    memory_gib: Gib


class BaseDimensions(Record):
    """Sizes of a base model of Llama's kind, from which follows what a task must take at least."""

    hidden_features: Annotated[int, Field(ge=1, le=1_000_000)]
    intermediate_features: Annotated[int, Field(ge=1, le=10_000_000)]
    key_value_features: Annotated[int, Field(ge=1, le=1_000_000)]
    """Features of all key heads together: less than the hidden ones where queries share them."""
    layers: Annotated[int, Field(ge=1, le=10_000)]
    vocabulary_size: Annotated[int, Field(ge=1, le=100_000_000)]
    activation_bytes: Literal[2, 4] = 2
    """Per number: 2 on a GPU (bfloat16), 4 on a CPU."""


class Borrower(Record):
    """A zone that loans may go to."""

    zone: Identifier
    weight: Annotated[float, Field(ge=1e-6, le=1_000_000)] = 1.0
    """Loans are shared among borrowers in proportion to their weights."""


class Lending(Record):
    """On what conditions a zone lends nodes that its own work leaves idle."""

    headroom: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """The fraction of the zone's nodes that is never lent beyond what its load needs (thesis, section 3.7.1);
    rounded up to whole nodes, and one at least stays."""
    notice_s: Annotated[float, Field(ge=LEAST_S, le=604_800)] = 300.0
    """The least time between a reclaim and the moment when the nodes must be back."""
    load_valid_s: Annotated[float, Field(ge=LEAST_S, le=604_800)] = 900.0
    """Nothing is lent on a load that was reported longer ago."""
    borrowers: Annotated[tuple[Borrower, ...], Field(min_length=1, max_length=64)]
    """Other zones of the cell. Each is lent only nodes whose GPU type it knows."""


class PolicySettings(Kinded):
    """Settings of a zone; its `kind` is that of the policy."""

    shares_base_model: ClassVar[bool] = True
    """Whether the zone's jobs share its base model, which every node must hold; otherwise they bring models
    of their own."""

    def faults(self, zone: "Zone") -> Iterator[Fault]:  # noqa: ARG002
        """Yield the faults of a zone's configuration for this policy."""
        yield from ()

    def node_slots(self, zone: "Zone") -> int:  # noqa: ARG002
        """For how many pairs of a node and a slot the policy keeps prices and room in its state."""
        return 0

    def state_bytes(self, zone: "Zone") -> int:  # noqa: ARG002
        """Return the most bytes of the policy in a snapshot that depend neither on jobs nor on node-slots."""
        return 0

    def tick_interval_s(self, slot_s: float) -> float:
        """A zone needs the time at least so often, in a cell with slots of `slot_s` seconds."""
        return min(slot_s / _TICKS_PER_SLOT, _LONGEST_TICK_INTERVAL_S)


POLICIES = OpenUnion("policy")
AnyPolicy: TypeAlias = Annotated[PolicySettings, POLICIES]


class Zone(Record):
    """Nodes that share one frozen base model, under one policy."""

    id: Identifier
    base_model: Identifier
    base_model_memory_gib: Gib
    """r_b: kept on every node in every slot, idle nodes too (erratum P6)."""
    base_dimensions: BaseDimensions | None = None
    """Where they are given, a bid that declares less memory than its task must take is rejected."""
    horizon_slots: Annotated[int, Field(ge=1, le=10_000)] = 144
    gpu_types: Annotated[tuple[GpuType, ...], Field(min_length=1, max_length=16)]
    # The least is checked below, in words that also fit a change which takes the last node.
    nodes: Annotated[tuple[Node, ...], Field(max_length=10_000, json_schema_extra={"minItems": 1})]
    throughput: Annotated[tuple[ThroughputRow, ...], Field(max_length=10_000)] = ()
    policy: AnyPolicy
    lending: Annotated[Lending | None, Field(exclude_if=lambda lending: lending is None)] = None
    """None where the zone offers no capacity; operators may lend its nodes even so."""

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
        """A fault of this zone; see `Fault`."""
        return Fault(word, f"zone {self.id}: {message}", {"zone": self.id, **facts}).error

    @property
    def node_classes(self) -> set[tuple[str, str]]:
        """Its pairs of GPU type and tariff: nodes of one pair cost the same."""
        return {(node.gpu_type, node.tariff) for node in self.nodes}


class CellConfigured(Event):
    """The whole configuration of a cell: the first event of its ledger."""

    TYPE: ClassVar = "millrace.cell.configured.v1"

    epoch_s: UnixTime
    """When slot 0 starts."""
    slot_s: Annotated[float, Field(ge=LEAST_SLOT_S, le=MAX_SLOT_S)] = 600.0
    node_timeout_s: Annotated[float, Field(ge=LEAST_S, le=86_400)] = 60.0
    """A node that was heard once and is silent for longer, while the worker listens, is considered dead."""
    duplicate_window_events: Annotated[int, Field(ge=1, le=10_000_000)] = 50_000
    """Number of ids of events that the cell keeps, and of jobs that are over, of all writers together;
    a repeated id of the same writer within the window changes nothing."""
    tariffs: Annotated[tuple[Tariff, ...], Field(min_length=1, max_length=64)]
    zones: Annotated[tuple[Zone, ...], Field(min_length=1, max_length=64)]
    vendors: Annotated[tuple[Identifier, ...], Field(max_length=1_000)] = ()
    """Labour vendors that may quote; quotes of others are refused."""
    rules: RulesVersion = RULES_VERSION
    """The rules that decide for the cell until a `rules.adopted` event. Leave it out: it then is the newest
    version that whoever writes the configuration knows."""

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
        """Room of a snapshot besides everything that does not depend on the live jobs."""
        zones = len(self.zones)
        return MAX_SNAPSHOT_BYTES - sum(
            (
                _CONFIGURATION_BYTES,
                BYTES_PER_NODE_SLOT * sum(zone.policy.node_slots(zone) for zone in self.zones),
                self._nodes_bytes,
                sum(zone.policy.state_bytes(zone) for zone in self.zones),
                BYTES_PER_REMEMBERED_ID * 2 * self.duplicate_window_events,
                _BYTES_PER_QUOTE * len(self.vendors) * zones,
                _BYTES_PER_ZONE * zones,
            )
        )

    @property
    def _nodes_bytes(self) -> int:
        """Return the most bytes of nodes in a snapshot, besides the configuration."""
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
        remembered = 2 * self.duplicate_window_events
        if remembered > MAX_REMEMBERED_IDS:
            raise _fault(
                "window_too_large",
                f"cell {self.cell}: duplicate_window_events {self.duplicate_window_events}, of events and of "
                f"jobs, is {remembered} ids, at most {MAX_REMEMBERED_IDS} are held",
                remembered_ids=remembered,
                most_remembered_ids=MAX_REMEMBERED_IDS,
            )
        if self.live_jobs_bytes < LEAST_LIVE_JOBS_BYTES:
            raise _fault(
                "no_room_for_live_jobs",
                f"cell {self.cell}: {node_slots} node-slots, {remembered} ids, {len(self.zones)} zones and "
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
