"""What a node's runner and its worker processes tell each other, as JSON over a pipe."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from executors.gang.membership import Membership
from executors.gang.messages import Ended, Failed, RankOrder, Release
from schemas.base import Record, Samples
from schemas.elastic.workload import ElasticWorkload


class WorkerOrder(RankOrder):
    """All that a worker process needs to know when it begins."""

    workload: ElasticWorkload
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


ElasticDirective: TypeAlias = Membership | Release
"""What a worker is told; the latest alone counts."""
ElasticWord: TypeAlias = Joined | Progress | Ended | Failed
"""What a worker says."""

DIRECTIVES: TypeAdapter[ElasticDirective] = TypeAdapter(
    Annotated[ElasticDirective, Field(discriminator="kind")]
)
WORDS: TypeAdapter[ElasticWord] = TypeAdapter(Annotated[ElasticWord, Field(discriminator="kind")])
