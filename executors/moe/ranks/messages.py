"""What a node's runner and its rank processes tell each other, as JSON over a pipe."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from executors.workers.membership import Membership
from executors.workers.settings import Device
from schemas.base import Identifier, Record, RunId, Samples
from schemas.experts.commands import LayerPlacement, MoeWorkload

Verdict = Literal["stop", "discard"]
"""`stop`: at the next boundary, checkpointed if the job keeps checkpoints. `discard`: nothing is kept."""


class Placed(Record):
    """Experts of some layers stand so from the next batch on."""

    kind: Literal["placed"] = "placed"
    revision: int
    layers: tuple[LayerPlacement, ...]


class Release(Record):
    """A rank is to end at a boundary of a step or batch."""

    kind: Literal["release"] = "release"
    verdict: Verdict


Directive = Annotated[Placed | Release, Field(discriminator="kind")]


class RankOrder(Record):
    """All that a rank process needs to know when it begins."""

    cell: Identifier
    node: Identifier
    run_id: RunId
    job_id: Identifier
    user: Identifier
    workload: MoeWorkload
    membership: Membership
    resume_samples: Samples
    report_interval_s: float
    revision: int
    placement: tuple[LayerPlacement, ...]
    model_root: Path
    dataset_root: Path
    state_root: Path
    output_root: Path
    device: Device
    gpu: int
    """Which of the node's GPUs it has."""
    threads: int
    worker_host: str
    expert_memory_gib: float | None
    checkpoint_s: float
    checkpoint_wait_s: float
    progress_s: float
    join_timeout_s: float
    collective_timeout_s: float


class Joined(Record):
    """All ranks have come together, and this one takes part."""

    kind: Literal["joined"] = "joined"
    samples_done: Samples
    dataset_samples: int | None
    """Records in its file; None where it was not read."""
    experts_per_device: int | None = None
    """Of each layer, if it trains."""
    resident_experts: int | None = None
    """How many of them stay in the device's memory."""


class Progress(Record):
    """How far the job is; only its leader says so."""

    kind: Literal["progress"] = "progress"
    samples_done: Samples
    """That would be left if the job ended now."""
    loss: float | None = None
    node_s: float


class Told(Record):
    """A report of the run, to be passed on as it is; only its leader has any."""

    kind: Literal["told"] = "told"
    type: str
    """The CloudEvents type."""
    data: dict[str, Any]


class Ended(Record):
    """The last word of a rank that ends as it should."""

    kind: Literal["ended"] = "ended"
    reason: Literal["stopped", "finished"]
    samples_done: Samples
    loss: float | None = None
    node_s: float
    answers: bool = False
    """Whether this rank answers for the finished job, so that its node reports it."""
    adapter_path: str | None = None
    adapter_digest: str | None = None


class Failed(Record):
    """The last word of a rank that cannot go on."""

    kind: Literal["failed"] = "failed"
    error: str
    permanent: bool
    """Whether the job would fail so anywhere."""
    cause: Literal["own", "peer"] = "own"
    """`peer`: only that another rank is gone."""
    needed_bytes: int | None = None
    """Set where a disk refused so many bytes."""


Word = Annotated[Joined | Progress | Told | Ended | Failed, Field(discriminator="kind")]
"""What a rank says."""

DIRECTIVES: TypeAdapter[Placed | Release] = TypeAdapter(Directive)
WORDS: TypeAdapter[Joined | Progress | Told | Ended | Failed] = TypeAdapter(Word)
