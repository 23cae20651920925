"""After any failure of one rank, the others are notified within a stated time, and continue in another
group."""

import pytest

from tests.executors.moe.conftest import RunRanks
from tests.support import parallel_scenarios as scenarios


@pytest.mark.parametrize(
    ("signal", "timeout_s", "within_s"),
    [
        pytest.param("SIGKILL", 30.0, 5.0, id="killed"),
        pytest.param("SIGSTOP", 3.0, 4.0, id="stopped"),
    ],
)
def test_lost_rank_is_reported_and_group_reformed(
    run_survivors: RunRanks, signal: str, timeout_s: float, within_s: float
) -> None:
    results = run_survivors(scenarios.lose_a_rank, 3, [0, 1], signal=signal, peer_timeout_s=timeout_s)
    for result in results:
        assert result["type"] == "CollectiveLostError", result
        assert "rank 2" in result["text"]
        assert result["after_s"] < within_s + 1.0  # which the machine may take to run four processes
        assert result["total"] == [2.0, 2.0, 2.0]


def test_ranks_with_other_terms_name_both(run: RunRanks) -> None:
    results = run(scenarios.disagree, 3, peer_timeout_s=20.0, terms="plan b", partition_bytes=256)
    for result in results:
        assert result["type"] == "DisagreementError", result
        assert "rank 2 has 'plan b', rank 0 has ''" in result["text"]


def test_ranks_with_other_micro_ops_name_both(run: RunRanks) -> None:
    results = run(scenarios.disagree, 3, peer_timeout_s=20.0, terms="", partition_bytes=128)
    for result in results:
        assert result["type"] == "DisagreementError", result
        assert "ranks disagree" in result["text"]
        assert "of 13, 16 x torch.float64" in result["text"]
        assert "of 7, 29 x torch.float64" in result["text"]
