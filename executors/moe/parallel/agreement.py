"""Which collective all ranks issue next: all-to-all first."""

from dataclasses import dataclass

from executors.gang.group import DisagreementError
from executors.moe.parallel.micro_ops import Kind


@dataclass(frozen=True)
class Grant:
    """All ranks issue the micro-ops of a kind, in the order of their submission, up to this many in all."""

    kind: Kind
    up_to: int


class Agreement:
    """Decides the order for all ranks, from what they have told.

    The thesis (section 4.6.1) has each rank decide by itself. Ranks may then decide differently, and each
    waits for the other for ever: one in an allreduce, the other in an all-to-all (erratum I3). So there is
    one order for all, and what is guaranteed holds for all ranks together, as they share the network:

    - an allreduce micro-op is granted only once all ranks have it, and none has an all-to-all, or expects
      one, that has not ended on every rank;
    - one allreduce micro-op at a time is under way, and an all-to-all is granted as soon as one rank has it
      and that micro-op has ended on every rank.

    So no allreduce ever runs beside an all-to-all, on any two ranks, and an all-to-all waits behind one
    allreduce micro-op at most: one that was granted before word of the all-to-all came.
    """

    def __init__(self, world: int) -> None:
        self._labels: dict[Kind, dict[int, str]] = {kind: {} for kind in Kind}
        """Of what has not ended on every rank, by its place in the order of its kind."""
        self._submitted = {kind: [0] * world for kind in Kind}
        self._finished = {kind: [0] * world for kind in Kind}
        self._granted = dict.fromkeys(Kind, 0)
        self._expected = [0] * world

    def submitted(self, rank: int, kind: Kind, label: str) -> None:
        """A rank has a further micro-op of a kind to issue.

        Raises:
            DisagreementError: another rank's, at the same place of its order, is not the same.
        """
        index = self._submitted[kind][rank]
        other = self._labels[kind].setdefault(index, label)
        if other != label:
            raise DisagreementError(
                f"ranks disagree: {kind} micro-op {index} of rank {rank} is {label!r}, "
                f"that of another rank {other!r}"
            )
        self._submitted[kind][rank] += 1
        self._expected[rank] = max(self._expected[rank], self._submitted[Kind.ALL_TO_ALL][rank])

    def expected(self, rank: int, count: int) -> None:
        """A rank will submit so many further all-to-all micro-ops before long."""
        self._expected[rank] = self._submitted[Kind.ALL_TO_ALL][rank] + count

    def finished(self, rank: int, kind: Kind) -> None:
        """A micro-op that was granted has ended on a rank."""
        self._finished[kind][rank] += 1
        self._labels[kind].pop(min(self._finished[kind]) - 1, None)

    def grant(self) -> Grant | None:
        """What to issue next, which then counts as granted; None before anything changes."""
        allreduces = self._granted[Kind.ALLREDUCE]
        if min(self._finished[Kind.ALLREDUCE]) < allreduces:
            return None
        wanted = max(self._submitted[Kind.ALL_TO_ALL])
        if wanted > self._granted[Kind.ALL_TO_ALL]:
            return self._granting(Kind.ALL_TO_ALL, wanted)
        if max(self._expected) > min(self._finished[Kind.ALL_TO_ALL]):
            return None
        if min(self._submitted[Kind.ALLREDUCE]) > allreduces:
            return self._granting(Kind.ALLREDUCE, allreduces + 1)
        return None

    @property
    def is_idle(self) -> bool:
        """Whether no rank waits for anything."""
        return not any(max(self._submitted[kind]) > min(self._finished[kind]) for kind in Kind) and max(
            self._expected
        ) <= min(self._finished[Kind.ALL_TO_ALL])

    def awaited(self) -> str:
        """What all wait for, in words, where they do."""
        if (
            max(self._submitted[Kind.ALL_TO_ALL])
            == min(self._finished[Kind.ALL_TO_ALL])
            < max(self._expected)
        ):
            return f"no rank has come to the {Kind.ALL_TO_ALL} that was expected"
        for kind in Kind:
            finished = min(self._finished[kind])
            if max(self._submitted[kind]) > finished:
                what = f"{kind} micro-op {finished} ({self._labels[kind][finished]})"
                missing = _at_most(self._submitted[kind], finished)
                if missing:
                    return f"{_named(missing)} not come to {what}"
                return f"{_named(_at_most(self._finished[kind], finished))} not ended {what}"
        return "nothing"

    def _granting(self, kind: Kind, up_to: int) -> Grant:
        self._granted[kind] = up_to
        return Grant(kind, up_to)


def _at_most(counts: list[int], finished: int) -> list[int]:
    return [rank for rank, count in enumerate(counts) if count <= finished]


def _named(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    return f"ranks {', '.join(str(rank) for rank in ranks)} have"
