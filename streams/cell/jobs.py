"""The jobs of a cell, over all zones: ids, owners, states and progress.

A submitted job waits until its zone admits or rejects it; an admitted one is completed, refunded or
withdrawn. Of finished jobs only the ids are kept, within a window.
"""

from functools import cached_property
from typing import Any, Literal, Self

from pydantic import TypeAdapter

from schemas.base import Outcome
from schemas.decisions import JobOutcome
from schemas.jobs import JobSubmitted
from schemas.kind import AnyTerms, AnyWorkload, Terms, Workload
from streams.cell.live_bytes import LiveBytes, Refusal, document_bytes, documents_of
from streams.cell.packing import pack, unpack
from streams.cell.recent_ids import RecentIds

_WRITERS_AT_LEAST = 8
"""Users that share the window of ids of rejected jobs: none fills more than this part of it."""
_ANYBODY = ""
"""Owner of admitted job ids. They are reserved for all users, because adapters are stored by job id."""

_workloads: TypeAdapter[Workload] = TypeAdapter(AnyWorkload)
_terms: TypeAdapter[Terms] = TypeAdapter(AnyTerms)


class Job:
    """A live job. Its plan is kept by its zone."""

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
        """Return the job that an event submits."""
        return cls(event.job_id, event.user, event.zone, event.workload, event.terms)

    @cached_property
    def state_bytes(self) -> int:
        """Most bytes of its entry in the register in a snapshot."""
        return document_bytes(self._documents)

    @cached_property
    def _documents(self) -> tuple[str, str]:
        """Workload and terms as JSON: counted at submission, and packed with each snapshot."""
        return documents_of(self.workload, self.terms)

    @property
    def state(self) -> Literal["waiting", "admitted"]:
        """`waiting` until its zone has decided about it."""
        return self._state

    @property
    def samples_done(self) -> int:
        """Progress, as its zone has accepted it from reports."""
        return self._samples_done

    @samples_done.setter
    def samples_done(self, samples_done: int) -> None:
        self._samples_done = samples_done
        self._packed = None

    def admit(self) -> None:
        """Note that its zone has admitted it."""
        self._state = "admitted"
        self._packed = None

    def describe(self) -> dict[str, Any]:
        """Describe the register's content about a job, in values that JSON has."""
        return {
            "state": self._state,
            "user": self.user,
            "workload": self.workload.kind,
            "samples_done": self._samples_done,
            "total_samples": self.workload.total_samples,
        }

    def packed(self) -> bytes:
        """Return everything in msgpack, cached until the next change: few jobs change between snapshots."""
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
        """Return the job that was packed."""
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
    """Jobs of one cell."""

    def __init__(self, window: int, live_bytes: LiveBytes) -> None:
        """Begin without jobs.

        Args:
            live_bytes: bytes of the cell's live jobs in a snapshot.
            window: number of ids of ended jobs to keep, half of them of admitted ones.
        """
        self.live: dict[str, Job] = {}
        """By id, in the order of their submission."""
        self.live_bytes = live_bytes
        half = -(-window // 2)
        self._won = RecentIds(half, half)
        self._lost = RecentIds(half, -(-half // _WRITERS_AT_LEAST))

    def has_id(self, job_id: str, user: str) -> bool:
        """Return whether the id is in use for this user. It is if, within the window, a job of any user was
        admitted under it or waits for its decision, or a job of this user was rejected under it."""
        return job_id in self.live or self._won.has(_ANYBODY, job_id) or self._lost.has(user, job_id)

    def no_room_for(self, job: Job) -> Refusal:
        """Return why the cell cannot keep one job more; None if it can."""
        return self.live_bytes.refuse_growth(job.state_bytes)

    def add(self, job: Job) -> None:
        """Keep a new job, of an unused id."""
        self.live[job.job_id] = job
        self.live_bytes.add(job.state_bytes)

    def keep_id(self, job: Job) -> None:
        """Keep the id of a job after its submission: for its user if it was rejected at once, for all
        users if it was admitted or waits."""
        if job.job_id in self.live:
            self._won.note(_ANYBODY, job.job_id)
        else:
            self._lost.note(job.user, job.job_id)

    def note(self, outcome: Outcome) -> None:
        """Apply a decision to the state of its job."""
        if not isinstance(outcome, JobOutcome):
            return
        if outcome.STATE == "admitted":
            self.live[outcome.job_id].admit()
        else:
            self.live_bytes.add(-self.live.pop(outcome.job_id).state_bytes)

    def state(self) -> dict[str, Any]:
        """Return everything, in types that msgpack writes."""
        return {
            "live": [job.packed() for job in self.live.values()],
            "won": self._won.state(),
            "lost": self._lost.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Set the state, of a register of the same window; this one must be empty."""
        for packed in state["live"]:
            self.add(Job.unpack(packed))
        self._won.restore(state["won"])
        self._lost.restore(state["lost"])
