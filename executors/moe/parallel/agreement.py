"""Choice of the next collective on all ranks: all-to-all first."""

from dataclasses import dataclass

from executors.gang.group import DisagreementError
from executors.moe.parallel.micro_ops import CollectiveKind


@dataclass(frozen=True)
class IssueGrant:
    """Permission for all ranks to issue the micro-ops of a kind, in order of submission, up to this count."""

    kind: CollectiveKind
    up_to: int


class Agreement:
    """Decides the order for all ranks, from their messages.

    The thesis (section 4.6.1) lets each rank decide by itself. Ranks may then decide differently, and wait
    for each other forever: one in an allreduce, the other in an all-to-all (erratum I3). So there is one
    order for all, and the guarantees hold for all ranks together, as they share the network:

    - an allreduce micro-op is granted only once all ranks have submitted it, and no rank has or expects an
      all-to-all that has not ended on every rank;
    - one allreduce micro-op at a time runs, and an all-to-all is granted as soon as one rank has it and that
      micro-op has ended on every rank.

    So an allreduce and an all-to-all never run at the same time, on any two ranks. An all-to-all waits for at
    most one allreduce micro-op, which was granted before the message of the all-to-all.
    """

    def __init__(self, world: int) -> None:
        self._labels: dict[CollectiveKind, dict[int, str]] = {kind: {} for kind in CollectiveKind}
        """Labels of micro-ops that have not ended on every rank, by place in the order of their kind."""
        self._submitted = {kind: [0] * world for kind in CollectiveKind}
        self._finished = {kind: [0] * world for kind in CollectiveKind}
        self._granted = dict.fromkeys(CollectiveKind, 0)
        self._expected = [0] * world

    def submitted(self, rank: int, kind: CollectiveKind, label: str) -> None:
        """Record another micro-op of a kind that a rank has submitted.

        Raises:
            DisagreementError: another rank has a different one at the same place of its order.
        """
        index = self._submitted[kind][rank]
        other = self._labels[kind].setdefault(index, label)
        if other != label:
            raise DisagreementError(
                f"ranks disagree: {kind} micro-op {index} of rank {rank} is {label!r}, "
                f"that of another rank {other!r}"
            )
        self._submitted[kind][rank] += 1
        self._expected[rank] = max(self._expected[rank], self._submitted[CollectiveKind.ALL_TO_ALL][rank])

    def expected(self, rank: int, count: int) -> None:
        """Record the number of all-to-all micro-ops that a rank will soon submit."""
        self._expected[rank] = self._submitted[CollectiveKind.ALL_TO_ALL][rank] + count

    def finished(self, rank: int, kind: CollectiveKind) -> None:
        """Record the end of a granted micro-op on a rank."""
        self._finished[kind][rank] += 1
        self._labels[kind].pop(min(self._finished[kind]) - 1, None)

    def grant(self) -> IssueGrant | None:
        """Return the next grant, which then counts as given; None until something changes."""
        allreduces = self._granted[CollectiveKind.ALLREDUCE]
        if min(self._finished[CollectiveKind.ALLREDUCE]) < allreduces:
            return None
        submitted = max(self._submitted[CollectiveKind.ALL_TO_ALL])
        if submitted > self._granted[CollectiveKind.ALL_TO_ALL]:
            return self._granting(CollectiveKind.ALL_TO_ALL, submitted)
        if max(self._expected) > min(self._finished[CollectiveKind.ALL_TO_ALL]):
            return None
        if min(self._submitted[CollectiveKind.ALLREDUCE]) > allreduces:
            return self._granting(CollectiveKind.ALLREDUCE, allreduces + 1)
        return None

    @property
    def is_idle(self) -> bool:
        """Return whether no rank waits for anything."""
        return not any(
            max(self._submitted[kind]) > min(self._finished[kind]) for kind in CollectiveKind
        ) and max(self._expected) <= min(self._finished[CollectiveKind.ALL_TO_ALL])

    def awaited(self) -> str:
        """Return the reason why all wait, for errors."""
        if (
            max(self._submitted[CollectiveKind.ALL_TO_ALL])
            == min(self._finished[CollectiveKind.ALL_TO_ALL])
            < max(self._expected)
        ):
            return f"no rank has come to the {CollectiveKind.ALL_TO_ALL} that was expected"
        for kind in CollectiveKind:
            finished = min(self._finished[kind])
            if max(self._submitted[kind]) > finished:
                what = f"{kind} micro-op {finished} ({self._labels[kind][finished]})"
                missing = _at_most(self._submitted[kind], finished)
                if missing:
                    return f"{_named(missing)} not come to {what}"
                return f"{_named(_at_most(self._finished[kind], finished))} not ended {what}"
        return "nothing"

    def _granting(self, kind: CollectiveKind, up_to: int) -> IssueGrant:
        self._granted[kind] = up_to
        return IssueGrant(kind, up_to)


def _at_most(counts: list[int], finished: int) -> list[int]:
    return [rank for rank, count in enumerate(counts) if count <= finished]


def _named(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    return f"ranks {', '.join(str(rank) for rank in ranks)} have"
