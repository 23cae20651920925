"""Default share of a device's memory that experts may use."""

from torch import nn

from executors.moe.training.spread import RESERVED_RATIO, budget_of_free, expert_budget
from tests.support.parallel_experts import CPU


def test_cpu_memory_is_limited_only_by_setting() -> None:
    dense = nn.Linear(4, 4).parameters()
    assert expert_budget(None, CPU, dense) is None
    assert expert_budget(1.5, CPU, dense) == 3 * 2**29


def test_dense_part_and_reserve_precede_experts() -> None:
    assert budget_of_free(1_000, dense_bytes=50) == int(800 * (1 - RESERVED_RATIO))


def test_dense_part_may_leave_no_room() -> None:
    assert budget_of_free(1_000, dense_bytes=251) == 0
