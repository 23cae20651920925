"""The part of a cell's snapshot that live jobs take: a cell admits no more of them than a snapshot holds.

Each job is counted by an upper bound on its packed state, which is known without packing it: the register of
jobs counts what it keeps of a job, and its zone what it keeps besides. The sum is kept up to date with every
change. It is not part of the state: restoring jobs counts them again.
"""

from collections import Counter

from schemas.cells import MAX_WAITING_BYTES
from schemas.facts import Fact, Facts
from schemas.kind import Terms, Workload

Refusal = Facts | None
"""Facts of a refusal; None where nothing is refused."""

_BYTES_BESIDE_WORKLOAD_AND_TERMS = 448
"""Of a job, packed, in the register: ids of 128 characters, its state, and how far it is."""

_FOR_LONGER_PLANS = 8
"""This part of the limit is left for plans that grow when they are made again."""
_FOR_WAITING = 2
"""Bids that wait for a solver, which cost nothing, take at most this part of the limit (and no more than a
request to the solver has room for)."""
_USERS_WAITING_AT_LEAST = 8
"""And those of one user at most this part of that."""


def job_bytes(workload: Workload, terms: Terms) -> int:
    """What the register keeps of a job takes in a snapshot, at most."""
    return document_bytes(documents_of(workload, terms))


def documents_of(workload: Workload, terms: Terms) -> tuple[str, str]:
    """Workload and terms of a job as JSON, in which the register keeps them."""
    return workload.model_dump_json(), terms.model_dump_json()


def document_bytes(documents: tuple[str, str]) -> int:
    """As `job_bytes`, of a job with these documents."""
    return _BYTES_BESIDE_WORKLOAD_AND_TERMS + sum(len(document.encode()) for document in documents)


class LiveBytes:
    """The count of one cell, over all its zones. A refusal has the facts of a `cell_full`."""

    def __init__(self, limit_bytes: int) -> None:
        self.total = 0
        """Of jobs and of waiting bids."""
        self.limit(limit_bytes)
        self._waiting: Counter[str] = Counter()
        """Bytes of waiting bids by user; only of users who have any."""
        self._waiting_total = 0

    def limit(self, limit_bytes: int) -> None:
        """There is so much room from now on."""
        self._limit = limit_bytes
        self._limit_admitted = limit_bytes - limit_bytes // _FOR_LONGER_PLANS
        self._limit_waiting = min(limit_bytes // _FOR_WAITING, MAX_WAITING_BYTES)
        self._limit_waiting_of_user = self._limit_waiting // _USERS_WAITING_AT_LEAST

    def add(self, count: int) -> None:
        """A live job takes `count` bytes more, or fewer if it is negative."""
        self.total += count

    def add_waiting(self, user: str, count: int) -> None:
        """Bids of a user that wait for a solver take `count` bytes more, or fewer if it is negative; `add`
        counts them too."""
        self._waiting_total += count
        self._waiting[user] += count
        if not self._waiting[user]:
            del self._waiting[user]

    def refuse_job(self, count: int) -> Refusal:
        """Why a job that takes `count` bytes more cannot be admitted; None if it can."""
        return _refuse("live_jobs", self.total, count, self._limit_admitted)

    def refuse_share(self, user: str, held: int, count: int) -> Refusal:
        """Why jobs of a user that cost nothing and hold `held` bytes cannot take `count` more; None if they
        can. They may hold as many as are left then. So no user takes the room of all others, and one who is
        alone has half of it."""
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
        """Why live jobs cannot take `count` bytes more at all; None if they can."""
        return _refuse("live_jobs", self.total, count, self._limit)

    def refuse_waiting(self, user: str, count: int) -> Refusal:
        """Why bids of this user that wait for a solver cannot take `count` bytes more; None if they can."""
        of_user, waiting = self._waiting.get(user, 0), self._waiting_total
        return _refuse("waiting_of_user", of_user, count, self._limit_waiting_of_user, user=user) or _refuse(
            "waiting", waiting, count, self._limit_waiting
        )


def _refuse(case: str, held: int, more: int, limit: int, **about: Fact) -> Refusal:
    if held + more <= limit:
        return None
    return {"case": case, **about, "held_bytes": held, "more_bytes": more, "limit_bytes": limit}
