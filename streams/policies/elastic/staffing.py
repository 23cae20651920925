"""Periodic reports of an elastic zone: its queue and its next reclaims."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter

from schemas.elastic.staffing import ReclaimEffect, TurnGiven, WaitingJob, ZoneStaffed
from solvers.elastic.lent import Lent, Reclaim, lent_by
from solvers.elastic.reclaiming import Choice
from streams.cell.states import Stateful
from streams.policies.elastic.turns import QueueTurns, Turn
from streams.policies.elastic.workforce import Workforce

ROUNDS_BETWEEN = 10
"""Rounds between reports, which take milliseconds in a large zone."""
MOST_QUEUED = 32
MOST_HELD_SHOWN = 32
RECLAIMS_AHEAD = 2
MOST_CHOICES = 3
"""Most choices of servers per report, harmless ones included: each takes up to half a second in the largest
zones."""


@dataclass
class Staffing(Stateful):
    """Time of the next report of one zone."""

    has_news: bool = False
    """Whether there was a round since the last report."""
    next_s: float = 0.0
    """Earliest time of the next report."""

    def is_due(self, time_s: float) -> bool:
        """Return whether a report is due."""
        return self.has_news and time_s >= self.next_s

    def note_round(self) -> None:
        """Note that a round is made now."""
        self.has_news = True

    def note_report(self, next_s: float) -> None:
        """Note that a report is made now."""
        self.has_news, self.next_s = False, next_s


def staffed(
    zone: str, workforce: Workforce, turns: QueueTurns, on_loan: Sequence[str], choose: Choice
) -> ZoneStaffed:
    """Return the report of a zone.

    Args:
        zone: its id.
        on_loan: the servers that may be reclaimed.
        choose: the choice of the servers to return.
    """
    harmless, reclaims = _reclaims(lent_by(workforce.cluster, on_loan), choose)
    return ZoneStaffed(
        zone=zone,
        queue=_queue(workforce, turns),
        turns=tuple(_given(turn, workforce) for turn in turns.all),
        on_loan=len(on_loan),
        harmless_returns=harmless,
        next_reclaims=tuple(map(_effect, reclaims)),
    )


def _given(turn: Turn, workforce: Workforce) -> TurnGiven:
    held = [server for server in turn.held if server in workforce.cluster.servers()]
    jobs = dict.fromkeys(job_id for server in held for job_id in workforce.cluster.server(server).jobs)
    errors_pct = [workforce.jobs[job_id].duration_error_pct for job_id in jobs]
    known_pct = [error_pct for error_pct in errors_pct if error_pct is not None]
    return TurnGiven(
        job_id=turn.job_id,
        servers=len(turn.held),
        held=turn.held[:MOST_HELD_SHOWN],
        by_s=turn.by_s,
        duration_error_pct=max(known_pct, default=None) if len(known_pct) == len(errors_pct) else None,
    )


def _queue(workforce: Workforce, turns: QueueTurns) -> tuple[WaitingJob, ...]:
    """Return the first jobs of the next round: those with turns, then the shortest; ties go by arrival."""
    ranks = {turn.job_id: rank for rank, turn in enumerate(turns.all)}
    ready = (entry for entry in workforce.queue() if workforce.is_ready(entry.job))
    # Stable: the queue is in the order of arrival.
    shortest = sorted(ready, key=attrgetter("shortest_s"))
    first = [entry for entry in shortest if entry.job.job.job_id in ranks]
    first.sort(key=lambda entry: ranks[entry.job.job.job_id])
    rest = (entry for entry in shortest if entry.job.job.job_id not in ranks)
    return tuple(
        WaitingJob(
            job_id=entry.job.job.job_id,
            base_gpus=entry.gpus,
            running_s=entry.shortest_s,
            duration_error_pct=entry.job.duration_error_pct,
        )
        for entry in islice(chain(first, rest), MOST_QUEUED)
    )


def _harmless(lent: Lent) -> int:
    """Return how many servers can leave without a preempted job, if those with the fewest workers leave
    first."""
    spare = {job.job_id: sum(job.workers.values()) - job.min_workers for job in lent.jobs}
    hosted: dict[str, list[tuple[str, int]]] = {server.server_id: [] for server in lent.servers}
    for job in lent.jobs:
        for server_id, workers in job.workers.items():
            if server_id in hosted:
                hosted[server_id].append((job.job_id, workers))
    harmless = 0
    for _, server_id in sorted((sum(count for _, count in jobs), id) for id, jobs in hosted.items()):
        if all(workers <= spare[job_id] for job_id, workers in hosted[server_id]):
            harmless += 1
            for job_id, workers in hosted[server_id]:
                spare[job_id] -= workers
    return harmless


def _reclaims(lent: Lent, choose: Choice) -> tuple[int, list[Reclaim]]:
    """Return the number of servers that can leave without a preempted job, and the smallest reclaims above
    that number."""
    harmless, reclaims = _harmless(lent), list[Reclaim]()
    for count in range(harmless + 1, min(harmless + MOST_CHOICES, len(lent.servers)) + 1):
        reclaim = choose(lent, count)
        if reclaim.preempted or reclaims:
            reclaims.append(reclaim)
        else:
            harmless = count
        if len(reclaims) == RECLAIMS_AHEAD:
            break
    return harmless, reclaims


def _effect(reclaim: Reclaim) -> ReclaimEffect:
    return ReclaimEffect(
        servers=len(reclaim.servers),
        preempting=reclaim.servers[reclaim.harmless :],
        preempts=reclaim.preempted,
    )
