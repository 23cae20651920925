"""What a node's runner and the processes of its jobs tell each other over a pipe, whatever the jobs do."""

from pathlib import Path
from typing import Literal

from executors.devices import Device
from executors.gang.membership import Membership
from schemas.base import Identifier, Record, Samples, UnixTime

Verdict = Literal["leave", "stop", "discard"]
"""`leave`: the others go on, where a job's processes may come and go. `stop`: all stop, checkpointed if the
job keeps checkpoints. `discard`: all stop, nothing is kept."""


class RankOrder(Record):
    """What any process of a job needs to know when it begins."""

    cell: Identifier
    node: Identifier
    job_id: Identifier
    user: Identifier
    membership: Membership
    resume_samples: Samples
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


class Release(Record):
    """A process is to go, at a boundary of a step or batch."""

    kind: Literal["release"] = "release"
    verdict: Verdict
    leave_s: UnixTime = 0.0
    """For `leave`: from then on it does not wait for the next generation to be complete."""


class Ended(Record):
    """The last word of a process that ends as it should."""

    kind: Literal["ended"] = "ended"
    reason: Literal["left", "stopped", "finished"]
    """`left`: it alone."""
    samples_done: Samples
    loss: float | None = None
    node_s: float
    answers: bool = False
    """Whether this process answers for the finished job, so that its node reports it."""
    adapter_path: str | None = None
    adapter_digest: str | None = None


class Failed(Record):
    """The last word of a process that cannot go on."""

    kind: Literal["failed"] = "failed"
    error: str
    permanent: bool
    """Whether the job would fail so anywhere."""
    cause: Literal["own", "peer"] = "own"
    """`peer`: only that another process is gone."""
    needed_bytes: int | None = None
    """Set where a disk refused so many bytes."""
