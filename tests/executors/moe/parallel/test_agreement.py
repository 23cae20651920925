"""Ranks announce collectives, and rank 0 grants them: all-to-all first."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.gang.group import DisagreementError
from executors.moe.parallel.agreement import Agreement, IssueGrant
from executors.moe.parallel.micro_ops import CollectiveKind

A, R = CollectiveKind.ALL_TO_ALL, CollectiveKind.ALLREDUCE


def test_allreduce_is_granted_once_all_have_it() -> None:
    agreement = Agreement(2)
    agreement.submitted(0, R, "gradient")
    assert agreement.grant() is None
    agreement.submitted(1, R, "gradient")
    assert agreement.grant() == IssueGrant(R, 1)


def test_all_to_all_precedes_allreduces() -> None:
    agreement = Agreement(2)
    for rank in range(2):
        agreement.submitted(rank, R, "gradient")
    agreement.submitted(1, A, "tokens")
    assert agreement.grant() == IssueGrant(A, 1)
    assert agreement.grant() is None
    agreement.submitted(0, A, "tokens")
    agreement.finished(0, A)
    assert agreement.grant() is None  # it still runs on rank 1
    agreement.finished(1, A)
    assert agreement.grant() == IssueGrant(R, 1)


def test_all_to_all_waits_for_running_allreduce_only() -> None:
    agreement = Agreement(2)
    for rank in range(2):
        for part in range(3):
            agreement.submitted(rank, R, f"part {part}")
    assert agreement.grant() == IssueGrant(R, 1)
    agreement.submitted(0, A, "tokens")
    agreement.finished(0, R)
    assert agreement.grant() is None
    agreement.finished(1, R)
    assert agreement.grant() == IssueGrant(A, 1)


def test_expected_all_to_all_holds_allreduces() -> None:
    agreement = Agreement(2)
    agreement.expected(0, 1)
    for rank in range(2):
        agreement.submitted(rank, R, "gradient")
    assert agreement.grant() is None
    assert not agreement.is_idle
    for rank in range(2):
        agreement.submitted(rank, A, "tokens")
    assert agreement.grant() == IssueGrant(A, 1)
    for rank in range(2):
        agreement.finished(rank, A)
    assert agreement.grant() == IssueGrant(R, 1)


def test_waiting_all_to_alls_are_granted_together() -> None:
    agreement = Agreement(2)
    for chunk in range(3):
        agreement.submitted(0, A, f"chunk {chunk}")
    assert agreement.grant() == IssueGrant(A, 3)


def test_differing_ranks_get_the_difference() -> None:
    agreement = Agreement(2)
    agreement.submitted(0, A, "layer 1 forward")
    with pytest.raises(
        DisagreementError, match=r"all-to-all micro-op 0 of rank 1 is 'layer 2 forward'.*'layer 1"
    ):
        agreement.submitted(1, A, "layer 2 forward")


def test_absent_ranks_are_named() -> None:
    agreement = Agreement(3)
    for rank in (0, 2):
        agreement.submitted(rank, A, "layer 1 forward")
    agreement.grant()
    assert agreement.awaited() == "rank 1 has not come to all-to-all micro-op 0 (layer 1 forward)"
    agreement.submitted(1, A, "layer 1 forward")
    agreement.finished(0, A)
    assert agreement.awaited() == "ranks 1, 2 have not ended all-to-all micro-op 0 (layer 1 forward)"


@given(
    world=st.integers(1, 4),
    program=st.lists(st.sampled_from([A, R]), max_size=20),
    seed=st.integers(0, 2**32),
)
def test_kinds_never_overlap_at_any_pace(world: int, program: list[CollectiveKind], seed: int) -> None:
    random = Random(seed)
    agreement = Agreement(world)
    submitted = [0] * world  # of the program
    granted, finished = (
        dict.fromkeys(CollectiveKind, 0),
        [dict.fromkeys(CollectiveKind, 0) for _ in range(world)],
    )
    while True:
        while (grant := agreement.grant()) is not None:
            other = A if grant.kind is R else R
            assert all(each[other] == granted[other] for each in finished)
            if grant.kind is R:
                heard = [program[: submitted[rank]].count(A) for rank in range(world)]
                assert max(heard) == granted[A]
            granted[grant.kind] = grant.up_to
        steps = []
        for rank in range(world):
            if submitted[rank] < len(program):
                steps.append((rank, None))
            for kind in CollectiveKind:
                has = program[: submitted[rank]].count(kind)
                if finished[rank][kind] < min(granted[kind], has):
                    steps.append((rank, kind))
        if not steps:
            break
        rank, kind = random.choice(steps)
        if kind is None:
            agreement.submitted(rank, program[submitted[rank]], "")
            submitted[rank] += 1
        else:
            agreement.finished(rank, kind)
            finished[rank][kind] += 1
    assert agreement.is_idle
    assert all(each[kind] == program.count(kind) for each in finished for kind in CollectiveKind)
