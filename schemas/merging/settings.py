"""Settings of a zone under the merging policy."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import LEAST_S, Gib, Record
from schemas.cells import Zone
from schemas.facts import Fault
from schemas.kind import DEFAULT_ORDER_TIMEOUT_S, OrderTimeoutSeconds, PolicySettings
from schemas.merging.estimates import MAX_OUTCOMES, EstimatorName, PastMerge
from schemas.merging.reports import MeasuredStep

SchemeName = Literal["ymir", "srtf", "tiresias", "optimus", "pollux", "themis", "titan"]
TransferabilityName = Literal["task2vec", "task2feat"]

LEAST_INTERVAL_S = 0.05
STAGES_PER_PIPELINE = 4
"""Number of GPUs of one pipeline (section 5.2): a pipeline-parallel job gets a multiple of it, and is
profiled on it."""
_BYTES_PER_KIND = 16 * 1_024
"""Most bytes of a kind of jobs: its losses, its embedding, and results of its jobs."""
KINDS_KEPT = 128
"""Most kinds of jobs without a live job that are kept, and most kinds whose profiles are kept."""
MAX_SPEEDS = 4_096
"""Most offline step times."""
_BYTES_PER_SHAPE = 16 * 1_024
"""Most bytes of the shape of jobs that others are composed from: its modules may have long names."""
_BYTES_PER_TRANSFER = 128
TRANSFERS_KEPT = 4_096
"""Most pairs of kinds, with a mode, whose forecasts are kept."""
LIBRARY_KEPT = 64
"""Most adapters of finished jobs that later jobs may start from, the last ones."""
_BYTES_PER_ADAPTER = 512
BARRED_KEPT = 256
"""Most merges of kinds that are barred, because their runs have failed."""
_BYTES_PER_OUTCOME = 1_152
"""Most bytes of the result of a merge: the names of data in the settings may have many escapes."""
_OTHER_BYTES = 4 * 1_024
"""Most bytes of the rest of a zone's state: times of questions, errors of forecasts, and latest reports."""
_IDS_PER_NODE = 4
_BYTES_PER_NODE = 64


class MemoryRow(Record):
    """Memory that a GPU needs besides the base model for a micro-batch."""

    micro_batch_size: Annotated[int, Field(ge=1, le=4_096)]
    memory_gib: Gib


class MergingPolicy(PolicySettings):
    """Profiling, forecasts, merging, and allocation of GPUs (Ymir)."""

    takes_profiles: ClassVar = True

    kind: Literal["merging"] = "merging"
    scheme: SchemeName = "ymir"
    """Scheme of the allocation. All but `ymir` are for comparison, and do not merge."""
    interval_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=86_400)] = 120.0
    """Interval between allocations of GPUs."""
    idle_interval_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=86_400)] | None = 5.0
    """Interval between allocations while GPUs are idle and waiting jobs could use them; None for
    `interval_s`."""
    solve_limit_s: Annotated[float, Field(ge=LEAST_S, le=600)] = 2.0
    """Time limit of a solver for one allocation."""
    switch_s: Annotated[float, Field(ge=0, le=3_600)] = 3.0
    """Time that a task is assumed to lose when it starts or its GPUs change."""
    prewarm_s: Annotated[float, Field(ge=0, le=600)] = 30.0
    """Time before the expected start of a job at which its data loader is prepared (section 6.2)."""
    modes: Annotated[tuple[Literal["temporal", "spatial"], ...], Field(max_length=2)] = (
        "temporal",
        "spatial",
    )
    """Modes in which jobs may be merged; empty for no merges."""
    merges: Literal["shown", "expected"] = "shown"
    """Merges that are made. `shown`: those that save iterations as past merges show, and trials within
    `trial_budget`; none by which jobs are expected to end later. `expected`: all that are expected to save
    iterations, from the first job on."""
    trial_budget: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Most cost of trials, undone merges included, as a part of the samples of all finished jobs."""
    estimator: EstimatorName = "learned"
    """Estimator of iterations and gains. `published`: Eqs. 1 to 4, by the profile run alone, and a line of
    gains on scores. `learned`: by the results of the zone's jobs and merges."""
    transferability: TransferabilityName = "task2vec"
    """Measure of the similarity of two tasks."""
    watched_epochs: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of epochs without a gain of a job after which its merge is undone (section 4.3)."""
    profile_iterations: Annotated[int, Field(ge=3, le=1_024)] = 32
    """Most steps of a profile run."""
    profile_limit_s: Annotated[float, Field(ge=LEAST_S, le=86_400)] = 60.0
    fisher_samples: Annotated[int, Field(ge=1, le=65_536)] = 128
    """Number of records for the embedding of a task."""
    order_timeout_s: OrderTimeoutSeconds = DEFAULT_ORDER_TIMEOUT_S
    speeds: Annotated[tuple[MeasuredStep, ...], Field(max_length=MAX_SPEEDS)] = ()
    """Step times measured offline: they count where nothing was measured on the zone's nodes."""
    outcomes: Annotated[tuple[PastMerge, ...], Field(max_length=MAX_OUTCOMES)] = ()
    """Results of earlier merges, by which gains are forecast until the zone has its own results."""
    memory: Annotated[tuple[MemoryRow, ...], Field(max_length=256)] = ()
    """Memory measured offline; without it the executors try which micro-batch fits."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of schemes that draw random numbers."""

    def state_bytes(self, zone: Zone) -> int:
        """Return the most bytes of the zone's state: kinds of jobs, forecasts, and nodes."""
        ids = [node.id for node in zone.nodes]
        nodes = _BYTES_PER_NODE * len(ids) + _IDS_PER_NODE * sum(map(len, ids))
        kept = _BYTES_PER_KIND * KINDS_KEPT + _BYTES_PER_SHAPE
        learned = _BYTES_PER_TRANSFER * (TRANSFERS_KEPT + BARRED_KEPT) + _BYTES_PER_OUTCOME * MAX_OUTCOMES
        return nodes + kept + learned + _BYTES_PER_ADAPTER * LIBRARY_KEPT + _OTHER_BYTES

    def tick_interval_s(self, slot_s: float) -> float:  # noqa: ARG002
        """Return an interval that does not depend on slots."""
        return min(self.interval_s, self.idle_interval_s or self.interval_s, 10.0)

    def faults(self, zone: Zone) -> Iterator[Fault]:
        """Yield a fault for several GPU types, for which one lookup table does not suffice."""
        if len(zone.gpu_types) > 1:
            names = tuple(gpu.name for gpu in zone.gpu_types)
            yield Fault(
                "several_gpu_types",
                f"a merging zone has GPUs of one type, not of {', '.join(names)}: make a zone of each",
                {"gpu_types": names},
            )
