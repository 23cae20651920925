"""Bytes of live jobs in a cell's snapshot: a cell admits no more jobs than a snapshot has room for.

Each job is counted by an upper bound on its packed state, which needs no packing: the register of jobs counts
its own part, and the zone the rest. The sum is updated with every change. It is not part of the state:
restoring jobs counts them again.
"""

from collections import Counter

from schemas.cells import MAX_WAITING_BYTES
from schemas.facts import Fact, Facts
from schemas.kind import Terms, Workload

Refusal = Facts | None
"""Facts of a refusal; None without one."""

_BYTES_WITHOUT_WORKLOAD_AND_TERMS = 448
"""Packed size of a job in the register: ids of 128 characters, state and progress."""

_FOR_LONGER_PLANS = 8
"""Part of the limit that is left for plans that grow when they are computed again: one eighth."""
_FOR_WAITING = 2
"""Bids that wait for a solver cost nothing, so they may use at most this part of the limit (and no more than
a request to the solver has room for)."""
_USERS_WAITING_AT_LEAST = 8
"""Bids of one user may use at most this part of that."""


def job_bytes(workload: Workload, terms: Terms) -> int:
    """Return the most bytes of a job in the register in a snapshot."""
    return document_bytes(documents_of(workload, terms))


def documents_of(workload: Workload, terms: Terms) -> tuple[str, str]:
    """Return workload and terms of a job as JSON, as the register keeps them."""
    return workload.model_dump_json(), terms.model_dump_json()


def document_bytes(documents: tuple[str, str]) -> int:
    """Return the `job_bytes` of a job with these documents."""
    return _BYTES_WITHOUT_WORKLOAD_AND_TERMS + sum(len(document.encode()) for document in documents)


class LiveBytes:
    """Bytes of one cell, over all its zones. A refusal has the facts of a `cell_full`."""

    def __init__(self, limit_bytes: int) -> None:
        self.total = 0
        """Bytes of jobs and of waiting bids."""
        self.limit(limit_bytes)
        self._waiting: Counter[str] = Counter()
        """Bytes of waiting bids by user, for users with waiting bids."""
        self._waiting_total = 0

    def limit(self, limit_bytes: int) -> None:
        """Set the limit."""
        self._limit = limit_bytes
        self._limit_admitted = limit_bytes - limit_bytes // _FOR_LONGER_PLANS
        self._limit_waiting = min(limit_bytes // _FOR_WAITING, MAX_WAITING_BYTES)
        self._limit_waiting_of_user = self._limit_waiting // _USERS_WAITING_AT_LEAST

    def add(self, count: int) -> None:
        """Add to the bytes of live jobs; `count` may be negative."""
        self.total += count

    def add_waiting(self, user: str, count: int) -> None:
        """Add to the bytes of a user's waiting bids; `count` may be negative. `add` counts them, too."""
        self._waiting_total += count
        self._waiting[user] += count
        if not self._waiting[user]:
            del self._waiting[user]

    def refuse_job(self, count: int) -> Refusal:
        """Return why a job of `count` bytes cannot be admitted; None if it can."""
        return _refuse("live_jobs", self.total, count, self._limit_admitted)

    def refuse_share(self, user: str, held: int, count: int) -> Refusal:
        """Return why jobs of a user, which cost nothing and hold `held` bytes, cannot have `count` more; None
        if they can. They may hold as many bytes as are left after that. So no user fills the room of all
        others, and a single user gets half of it."""
        left = max(self._limit_admitted - self.total - count, 0)
        if held + count <= left:
            return None
        return {
            "case": "jobs_of_user",
            "user": user,
            "held_bytes": held,
            "more_bytes": count,
            "left_bytes": left,
        }

    def refuse_growth(self, count: int) -> Refusal:
        """Return why live jobs cannot have `count` bytes more at all; None if they can."""
        return _refuse("live_jobs", self.total, count, self._limit)

    def refuse_waiting(self, user: str, count: int) -> Refusal:
        """Return why waiting bids of a user cannot have `count` bytes more; None if they can."""
        of_user, waiting = self._waiting.get(user, 0), self._waiting_total
        return _refuse("waiting_of_user", of_user, count, self._limit_waiting_of_user, user=user) or _refuse(
            "waiting", waiting, count, self._limit_waiting
        )


def _refuse(case: str, held: int, more: int, limit: int, **about: Fact) -> Refusal:
    if held + more <= limit:
        return None
    return {"case": case, **about, "held_bytes": held, "more_bytes": more, "limit_bytes": limit}
