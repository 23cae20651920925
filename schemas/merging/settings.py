"""Settings of a zone under the merging policy."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from schemas.base import LEAST_S, Gib, Record
from schemas.cells import Zone
from schemas.facts import Fault
from schemas.kind import DEFAULT_ORDER_TIMEOUT_S, OrderTimeoutSeconds, PolicySettings
from schemas.merging.estimates import MAX_OUTCOMES, PastMerge
from schemas.merging.reports import MeasuredStep

SchemeName = Literal["ymir", "srtf", "tiresias", "optimus", "pollux", "themis", "titan"]
TransferabilityName = Literal["task2vec", "task2feat"]

LEAST_INTERVAL_S = 0.05
STAGES_PER_PIPELINE = 4
"""GPUs that a pipeline-parallel job gets a multiple of, and is profiled on (section 5.2)."""
_BYTES_PER_KIND = 16 * 1_024
"""Most bytes of a kind of jobs: its losses, its embedding, and results of its jobs."""
KINDS_KEPT = 128
"""Kinds of jobs without a live job that are remembered, and kinds whose profiles are."""
_BYTES_PER_SPEED = 64
MAX_SPEEDS = 4_096
"""Configurations whose step times are remembered."""
_BYTES_PER_TRANSFER = 128
TRANSFERS_KEPT = 4_096
"""Pairs of kinds, and modes, of which is remembered what a merge is foretold to bring."""
_BYTES_PER_OUTCOME = 1_152
"""Most bytes of the result of a merge: two names of data in the settings may have many escapes."""
_BYTES_BESIDE = 4 * 1_024
"""Most bytes of the rest of a zone's state: times of questions, errors of forecasts, and latest reports."""
_IDS_PER_NODE = 4
_BYTES_PER_NODE = 64


class MemoryRow(Record):
    """Memory that a GPU needs beside the base model for a micro-batch."""

    micro_batch_size: Annotated[int, Field(ge=1, le=4_096)]
    memory_gib: Gib


class MergingPolicy(PolicySettings):
    """Profile, foretell, merge, and allocate GPUs (Ymir)."""

    kind: Literal["merging"] = "merging"
    scheme: SchemeName = "ymir"
    """Who gets how many GPUs. All but `ymir` merge nothing, and are there to be compared with."""
    interval_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=86_400)] = 120.0
    """GPUs are allocated so often."""
    idle_interval_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=86_400)] | None = 5.0
    """Where GPUs idle and jobs wait that could use them, so often; None where they wait for the next
    interval."""
    solve_limit_s: Annotated[float, Field(ge=LEAST_S, le=600)] = 2.0
    """A solver has so long for one allocation."""
    switch_s: Annotated[float, Field(ge=0, le=3_600)] = 3.0
    """Time that a task is assumed to lose when it starts or its GPUs change."""
    prewarm_s: Annotated[float, Field(ge=0, le=600)] = 30.0
    """Data loaders are prepared so long before their job is expected to run (section 6.2)."""
    modes: Annotated[tuple[Literal["temporal", "spatial"], ...], Field(max_length=2)] = (
        "temporal",
        "spatial",
    )
    """Modes in which jobs may be merged; empty where none are."""
    merges: Literal["shown", "expected"] = "shown"
    """Which merges are made. `shown`: those that past merges show to pay, and trials within `trial_budget`;
    none by which jobs are expected to end later. `expected`: all that are expected to save iterations, from
    the first job on."""
    trial_budget: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Part of the samples that all finished jobs were trained on which trials may cost, merges that were
    undone included."""
    transferability: TransferabilityName = "task2vec"
    """By what the similarity of two tasks is judged."""
    watched_epochs: Annotated[int, Field(ge=1, le=100)] = 2
    """A merge in which a job has not gained after so many epochs is undone (section 4.3)."""
    profile_iterations: Annotated[int, Field(ge=3, le=1_024)] = 32
    """Steps of a profile run, at most."""
    profile_limit_s: Annotated[float, Field(ge=LEAST_S, le=86_400)] = 60.0
    fisher_samples: Annotated[int, Field(ge=1, le=65_536)] = 128
    """Records that the embedding of a task is computed on."""
    order_timeout_s: OrderTimeoutSeconds = DEFAULT_ORDER_TIMEOUT_S
    speeds: Annotated[tuple[MeasuredStep, ...], Field(max_length=MAX_SPEEDS)] = ()
    """Step times that were measured offline: the lookup table begins with them."""
    outcomes: Annotated[tuple[PastMerge, ...], Field(max_length=MAX_OUTCOMES)] = ()
    """Results of earlier merges: gains are forecast from these until the zone has some of its own."""
    memory: Annotated[tuple[MemoryRow, ...], Field(max_length=256)] = ()
    """Measured offline; without them the executors find out which micro-batch fits."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of schemes that draw random numbers."""

    def state_bytes(self, zone: Zone) -> int:
        """Return the most bytes of the zone's state: kinds of jobs, step times, and nodes."""
        ids = [node.id for node in zone.nodes]
        nodes = _BYTES_PER_NODE * len(ids) + _IDS_PER_NODE * sum(map(len, ids))
        kept = _BYTES_PER_KIND * KINDS_KEPT + _BYTES_PER_SPEED * MAX_SPEEDS
        learned = _BYTES_PER_TRANSFER * TRANSFERS_KEPT + _BYTES_PER_OUTCOME * MAX_OUTCOMES
        return nodes + kept + learned + _BYTES_BESIDE

    def tick_interval_s(self, slot_s: float) -> float:  # noqa: ARG002
        """Slots are nothing to it."""
        return min(self.interval_s, self.idle_interval_s or self.interval_s, 10.0)

    def faults(self, zone: Zone) -> Iterator[Fault]:
        """Several GPU types, for which one lookup table is not enough."""
        if len(zone.gpu_types) > 1:
            names = tuple(gpu.name for gpu in zone.gpu_types)
            yield Fault(
                "several_gpu_types",
                f"a merging zone has GPUs of one type, not of {', '.join(names)}: make a zone of each",
                {"gpu_types": names},
            )
