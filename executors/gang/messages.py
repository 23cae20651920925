"""The nodes and ranks of a generation, and the messages between a node's runner and its ranks, as JSON over a
pipe."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter

from executors.devices import Device
from executors.node.runner import Objection
from schemas.base import MAX_TEXT_LENGTH, Identifier, Record, RunId, Samples, UnixTime
from schemas.fleet import RunReport
from schemas.kind import Workload
from schemas.profiles import MeasuredSteps

W = TypeVar("W", bound=Workload)

Verdict = Literal["leave", "stop", "discard"]
"""`leave`: the other ranks continue, if ranks may join and leave. `stop`: all stop, checkpointed if the job
keeps checkpoints. `discard`: all stop, and no state is kept."""


class Membership(Record):
    """The place of a process in a generation. Rank 0 leads it."""

    kind: Literal["membership"] = "membership"
    generation: int
    rank: int
    world: int
    """Number of ranks."""


@dataclass(frozen=True)
class Members:
    """The nodes of a generation, each with its number of ranks, in the order of the ranks."""

    counts: tuple[tuple[str, int], ...]

    @property
    def world(self) -> int:
        return sum(count for _, count in self.counts)

    @property
    def is_one_node(self) -> bool:
        return len(self.counts) == 1

    def ranks_of(self, node: str) -> range:
        """The ranks of a node; empty if it has none."""
        first = 0
        for member, count in self.counts:
            if member == node:
                return range(first, first + count)
            first += count
        return range(0)

    def objection(self, node: str, gpus: int) -> Objection | None:
        """Return why a node with `gpus` GPUs cannot be a member; None if it can."""
        nodes = [member for member, _ in self.counts]
        if len(set(nodes)) < len(nodes):
            return Objection("impossible", "a node is among the members twice")
        if node not in nodes:
            detail = f"{node} is not among the members {', '.join(nodes)}"
            return Objection("impossible", detail[:MAX_TEXT_LENGTH])
        if (needed := len(self.ranks_of(node))) > gpus:
            return Objection("impossible", f"ranks here need {needed} GPUs, the node has {gpus}")
        return None


class RankOrder(Record, Generic[W]):
    """All values that a rank needs at its start: fields of the command, of the settings and of the node.

    A runner's own order may have further fields of its command or settings, by the same names.
    """

    cell: Identifier
    node: Identifier
    job_id: Identifier
    user: Identifier
    run_id: RunId
    workload: W
    membership: Membership
    resume_samples: Samples
    model_root: Path
    dataset_root: Path
    state_root: Path
    output_root: Path
    device: Device
    gpu: int
    """Number of its GPU on the node."""
    threads: int
    rank_host: str
    checkpoint_s: float
    checkpoint_wait_s: float
    progress_s: float
    join_timeout_s: float
    peer_timeout_s: float


class Release(Record):
    """Order to end at the next boundary of a step or batch."""

    kind: Literal["release"] = "release"
    verdict: Verdict
    leave_s: UnixTime = 0.0
    """For `leave`: Unix time from which the rank does not wait for the next generation to be complete (s)."""


class Instruction(Record):
    """An instruction of the cell to a running job; only the job's own work parses it."""

    kind: Literal["instruction"] = "instruction"
    data: dict[str, Any]


class Joined(Record):
    """The generation is complete, and this rank takes part in it."""

    kind: Literal["joined"] = "joined"
    generation: int
    samples_done: Samples
    dataset_samples: int | None
    """Records in the dataset; None if it was not read."""
    pause_s: float | None = None
    """Time since the last step in the generation before (s); None for a new process."""
    details: dict[str, int] = Field(default_factory=dict)
    """Further fields of the node's log."""


class RankProgress(Record):
    """Progress of the job."""

    kind: Literal["progress"] = "progress"
    samples_done: Samples
    """Samples that are kept if the job ends now."""
    loss: float | None = None
    node_s: float
    measured: MeasuredSteps | None = None
    """Its steps since the last report; None if none was measured."""
    leads: bool
    """Whether the rank's node reports it to the cell: one node does."""


ReportKinds: TypeAlias = Iterable[type[RunReport]]


class Report(Record):
    """A report of the run, which the node sends to the cell as it is."""

    kind: Literal["report"] = "report"
    type: str
    """The CloudEvents type."""
    data: dict[str, Any]

    @classmethod
    def of(cls, report: RunReport, **fields: Any) -> Self:
        """Return the message with a report; `fields` are further ones of a subclass."""
        return cls(type=report.TYPE, data=report.model_dump(mode="json"), **fields)

    def parsed(self, kinds: ReportKinds) -> RunReport:
        """Return the report, of one of the kinds that a rank may send."""
        kind = next(kind for kind in kinds if self.type == kind.TYPE)
        # By its text: in strict mode, pydantic accepts JSON lists for tuples only in JSON text.
        return kind.model_validate_json(json.dumps(self.data))


class Ended(Record):
    """The final message of a rank that ends in order."""

    kind: Literal["ended"] = "ended"
    reason: Literal["left", "stopped", "finished"]
    """`left`: this rank only."""
    samples_done: Samples
    loss: float | None = None
    node_s: float
    answers: bool = False
    """Whether this rank's node reports the finished job."""
    adapter_path: str | None = None
    adapter_digest: str | None = None


class Failed(Record):
    """The final message of a rank that cannot continue."""

    kind: Literal["failed"] = "failed"
    error: str
    permanent: bool
    """Whether the job would fail on every node."""
    cause: Literal["own", "peer"] = "own"
    """`peer`: the only fault is the loss of another rank."""
    needed_bytes: int | None = None
    """Set if a disk refused a write of this size."""


Directive: TypeAlias = Membership | Release | Instruction

RankMessage: TypeAlias = Joined | RankProgress | Report | Ended | Failed

DIRECTIVES: TypeAdapter[Directive] = TypeAdapter(Annotated[Directive, Field(discriminator="kind")])

MESSAGES: TypeAdapter[RankMessage] = TypeAdapter(Annotated[RankMessage, Field(discriminator="kind")])
