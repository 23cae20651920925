"""Ranks of a service fail with an error when one of them is lost, or diverges."""

from typing import Any

import pytest

from tests.executors.moe.conftest import RunRanks
from tests.support.served_ranks import lose

TIMEOUT_S = 2.0


def seen(run_survivors: RunRanks, how: str, among: list[int]) -> list[dict[str, Any]]:
    setup = {"layers": 2, "experts": 4, "how": how, "timeout_s": TIMEOUT_S, "profile_batches": 0}
    return run_survivors(lose, 3, among, **setup)


@pytest.mark.parametrize("how", ["dies", "stops", "dies_between_batches"])
def test_lost_rank_ends_others_in_time(run_survivors: RunRanks, how: str) -> None:
    for result in seen(run_survivors, how, [0, 2]):
        assert result["kind"] == "CollectiveLostError"
        assert f"another rank is gone, or has not come within {TIMEOUT_S:g} s" in result["message"]
        assert result["after_s"] < TIMEOUT_S + 3.0


def test_diverging_rank_is_detected_by_all(run_survivors: RunRanks) -> None:
    for result in seen(run_survivors, "disagrees", [0, 1, 2]):
        assert result["kind"] == "DisagreementError"
        assert result["message"] == (
            "the beginning of a batch: ranks [1] have decided differently from rank 0 since the choices at "
            "MoE layer 1: they differ in their plan, their settings or their code"
        )
