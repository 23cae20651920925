"""The jobs of a cell: every id, its owner, its state and progress, across all zones.

A submitted job waits until its zone admits or rejects it; an admitted one is completed, refunded or
withdrawn. Of finished jobs only the ids are kept, within a window.
"""

from functools import cached_property
from typing import Any, Literal, Self

from pydantic import TypeAdapter

from schemas.base import Outcome
from schemas.decisions import JobOutcome
from schemas.jobs import JobSubmitted
from schemas.kind import Terms, Workload
from schemas.kinds import AnyTerms, AnyWorkload
from streams.cell.live_bytes import LiveBytes, Refusal, document_bytes, documents_of
from streams.cell.packing import pack, unpack
from streams.cell.recent_ids import RecentIds

_WRITERS_AT_LEAST = 8
"""Users that share the window of ids of jobs that lost: none fills more than this part of it."""
_ANYBODY = ""
"""Whose the ids of jobs that won are: no other user may submit under them, for adapters lie under the id."""

_workloads: TypeAdapter[Workload] = TypeAdapter(AnyWorkload)
_terms: TypeAdapter[Terms] = TypeAdapter(AnyTerms)


class Job:
    """A job that is not over. Its zone keeps what it plans for it."""

    def __init__(
        self,
        job_id: str,
        user: str,
        zone: str,
        workload: Workload,
        terms: Terms,
        state: Literal["waiting", "admitted"] = "waiting",
        samples_done: int = 0,
    ) -> None:
        self.job_id = job_id
        self.user = user
        self.zone = zone
        self.workload = workload
        self.terms = terms
        self._state = state
        self._samples_done = samples_done
        self._packed: bytes | None = None

    @classmethod
    def of(cls, event: JobSubmitted) -> Self:
        """The job that an event submits."""
        return cls(event.job_id, event.user, event.zone, event.workload, event.terms)

    @cached_property
    def state_bytes(self) -> int:
        """What the register keeps of it takes in a snapshot, at most."""
        return document_bytes(self._documents)

    @cached_property
    def _documents(self) -> tuple[str, str]:
        """Workload and terms as JSON: to be counted when the job comes, and packed with each snapshot."""
        return documents_of(self.workload, self.terms)

    @property
    def state(self) -> Literal["waiting", "admitted"]:
        """Whether its zone has yet to decide about it."""
        return self._state

    @property
    def samples_done(self) -> int:
        """How far it is, as its zone takes the reports of its runs."""
        return self._samples_done

    @samples_done.setter
    def samples_done(self, samples_done: int) -> None:
        self._samples_done = samples_done
        self._packed = None

    def admit(self) -> None:
        """Its zone has taken it on."""
        self._state = "admitted"
        self._packed = None

    def describe(self) -> dict[str, Any]:
        """Describe what the register has of it, in values that JSON has."""
        return {
            "state": self._state,
            "user": self.user,
            "workload": self.workload.kind,
            "samples_done": self._samples_done,
            "total_samples": self.workload.total_samples,
        }

    def packed(self) -> bytes:
        """Everything in msgpack, kept until the next change: most jobs stay the same between snapshots."""
        if self._packed is None:
            self._packed = pack(
                [
                    self.job_id,
                    self.user,
                    self.zone,
                    *self._documents,
                    self._state,
                    self._samples_done,
                ]
            )
        return self._packed

    @classmethod
    def unpack(cls, packed: bytes) -> "Job":
        """The job that `packed` came from."""
        job_id, user, zone, workload, terms, state, samples_done = unpack(packed)
        return cls(
            job_id,
            user,
            zone,
            _workloads.validate_json(workload),
            _terms.validate_json(terms),
            state,
            samples_done,
        )


class JobRegister:
    """Of one cell."""

    def __init__(self, window: int, live_bytes: LiveBytes) -> None:
        """Begin without jobs.

        Args:
            live_bytes: what the cell's live jobs take in a snapshot.
            window: so many ids of jobs that are over are remembered, half of them of jobs that won.
        """
        self.live: dict[str, Job] = {}
        """By id, in the order of their submission."""
        self._live_bytes = live_bytes
        half = -(-window // 2)
        self._won = RecentIds(half, half)
        self._lost = RecentIds(half, -(-half // _WRITERS_AT_LEAST))

    def knows(self, job_id: str, user: str) -> bool:
        """Whether this user can submit nothing under this id: a job of any user won under it or waits for its
        decision, or one of this user lost, within the window."""
        return job_id in self.live or self._won.knows(_ANYBODY, job_id) or self._lost.knows(user, job_id)

    def no_room_for(self, job: Job) -> Refusal:
        """Why the cell cannot keep one job more; None if it can."""
        return self._live_bytes.refuse_growth(job.state_bytes)

    def add(self, job: Job) -> None:
        """Keep a new job, of an id that nobody has."""
        self.live[job.job_id] = job
        self._live_bytes.add(job.state_bytes)

    def remember(self, job: Job) -> None:
        """Keep the id of a job that its zone has judged: its user's alone where it lost at once, everybody's
        where it was admitted or waits."""
        if job.job_id in self.live:
            self._won.note(_ANYBODY, job.job_id)
        else:
            self._lost.note(job.user, job.job_id)

    def note(self, outcome: Outcome) -> None:
        """Put the job that a zone has decided about into its new state."""
        if not isinstance(outcome, JobOutcome):
            return
        if outcome.STATE == "admitted":
            self.live[outcome.job_id].admit()
        else:
            self._live_bytes.add(-self.live.pop(outcome.job_id).state_bytes)

    def state(self) -> dict[str, Any]:
        """Everything, of types that msgpack writes."""
        return {
            "live": [job.packed() for job in self.live.values()],
            "won": self._won.state(),
            "lost": self._lost.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of another register of the same window; this one must be empty."""
        for packed in state["live"]:
            self.add(Job.unpack(packed))
        self._won.restore(state["won"])
        self._lost.restore(state["lost"])
