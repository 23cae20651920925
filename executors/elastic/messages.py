"""What a node's runner and its worker processes tell each other, as JSON over a pipe."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from executors.workers.membership import Membership
from executors.workers.settings import Device
from schemas.base import Identifier, Record, Samples, UnixTime
from schemas.elastic.workload import ElasticWorkload

Verdict = Literal["leave", "stop", "discard"]
"""`leave`: the others go on. `stop`: all stop, checkpointed if the job keeps checkpoints. `discard`: all
stop, nothing is kept."""


class Release(Record):
    """A worker process is to go, at a step's boundary."""

    kind: Literal["release"] = "release"
    verdict: Verdict
    leave_s: UnixTime
    """For `leave`: from then on it does not wait for the next generation to be complete."""


Directive = Annotated[Membership | Release, Field(discriminator="kind")]
"""What a worker is told; the latest alone counts."""


class WorkerOrder(Record):
    """All that a worker process needs to know when it begins."""

    cell: Identifier
    node: Identifier
    job_id: Identifier
    user: Identifier
    workload: ElasticWorkload
    resume_samples: Samples
    membership: Membership
    model_root: Path
    dataset_root: Path
    state_root: Path
    output_root: Path
    device: Device
    gpu: int
    """Which of the node's GPUs it has."""
    threads: int
    worker_host: str
    checkpoint_s: float
    checkpoint_wait_s: float
    progress_s: float
    join_timeout_s: float
    peer_timeout_s: float


class Joined(Record):
    """The generation is complete, and this worker trains in it."""

    kind: Literal["joined"] = "joined"
    generation: int
    samples_done: Samples
    dataset_samples: int | None
    """Records in its file; None where it was not read."""
    pause_s: float | None
    """Since its last step in the generation before; None for a new process."""


class Progress(Record):
    """How far the job is."""

    kind: Literal["progress"] = "progress"
    samples_done: Samples
    loss: float | None
    node_s: float
    leads: bool
    """Whether its node reports it: one does."""


class Ended(Record):
    """The last word of a worker process that ends as it should."""

    kind: Literal["ended"] = "ended"
    reason: Literal["left", "stopped", "finished"]
    samples_done: Samples
    loss: float | None
    node_s: float
    published: bool = False
    """Whether this process has published the result, so that its node reports it."""
    adapter_path: str | None = None
    adapter_digest: str | None = None


class Failed(Record):
    """The last word of a worker process that cannot go on."""

    kind: Literal["failed"] = "failed"
    error: str
    permanent: bool
    """Whether the job would fail so anywhere."""
    cause: Literal["own", "peer"] = "own"
    """`peer`: only that another process is gone."""
    needed_bytes: int | None = None
    """Set where a disk refused so many bytes."""


Word = Annotated[Joined | Progress | Ended | Failed, Field(discriminator="kind")]
"""What a worker says."""

DIRECTIVES: TypeAdapter[Membership | Release] = TypeAdapter(Directive)
WORDS: TypeAdapter[Joined | Progress | Ended | Failed] = TypeAdapter(Word)
